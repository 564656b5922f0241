"""What a run costs: Renyi curve, exact Gaussian, conversion, calibration, ledger and statement.

The theorem, its proof sketch and what it does not cover: docs/privacy.md.
"""

from fedmf.accounting.adjacency import ADJACENCIES
from fedmf.accounting.calibration import calibrate_noise_multiplier
from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.accounting.ledger import Ledger
from fedmf.accounting.rdp import rdp, rdp_curve, rdp_per_coordinate
from fedmf.accounting.release import EpochRelease
from fedmf.accounting.spent import ACCOUNTANTS, PrivacySpent, check_accountant, divergence, privacy_spent
from fedmf.accounting.statement import Statement, delta_warning, write_statement

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "EpochRelease",
    "Ledger",
    "PrivacySpent",
    "Statement",
    "calibrate_noise_multiplier",
    "check_accountant",
    "delta_warning",
    "divergence",
    "gaussian_delta",
    "gaussian_epsilon",
    "privacy_spent",
    "rdp",
    "rdp_curve",
    "rdp_per_coordinate",
    "write_statement",
]
