"""What a run costs: Renyi curve, exact Gaussian, conversion, calibration and ledger.

The theorem and its proof: docs/theory.md; what it does not cover: docs/privacy.md.
"""

from fedmf.accounting.calibration import (
    calibrate_noise_multiplier,
    mean_noise_std,
    most_epochs,
    resolve_linf_ratio,
    smallest_cohort,
    smallest_keep_probability,
)
from fedmf.accounting.caveats import (
    NOT_COVERED,
    check_mask,
    check_weighting,
    delta_warning,
    epsilon_warning,
)
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.floating_point import FloatingPoint, finite_precision
from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.accounting.renyi import rdp, rdp_per_coordinate
from fedmf.accounting.spent import Ledger, PrivacySpent, divergence, privacy_spent
from fedmf.setting import ACCOUNTANTS, ADJACENCIES, GEOMETRIES

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "GEOMETRIES",
    "NOT_COVERED",
    "EpochEvent",
    "FloatingPoint",
    "Ledger",
    "PrivacySpent",
    "calibrate_noise_multiplier",
    "check_mask",
    "check_weighting",
    "delta_warning",
    "divergence",
    "epsilon_warning",
    "finite_precision",
    "gaussian_delta",
    "gaussian_epsilon",
    "mean_noise_std",
    "most_epochs",
    "privacy_spent",
    "rdp",
    "rdp_per_coordinate",
    "resolve_linf_ratio",
    "smallest_cohort",
    "smallest_keep_probability",
]
