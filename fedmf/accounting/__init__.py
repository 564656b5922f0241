"""What a run costs: Renyi curve, exact Gaussian, conversion, calibration and ledger.

The theorem and its proof: docs/theory.md; what it does not cover: docs/privacy.md.
"""

from fedmf.accounting.calibration import calibrate_noise_multiplier as calibrate_noise_multiplier
from fedmf.accounting.caveats import delta_warning as delta_warning, epsilon_warning as epsilon_warning
from fedmf.accounting.epoch import EpochEvent as EpochEvent
from fedmf.accounting.floating_point import (
    FloatingPoint as FloatingPoint,
    finite_precision as finite_precision,
)
from fedmf.accounting.gaussian import gaussian_delta as gaussian_delta, gaussian_epsilon as gaussian_epsilon
from fedmf.accounting.renyi import rdp as rdp, rdp_per_coordinate as rdp_per_coordinate
from fedmf.accounting.spent import (
    Ledger as Ledger,
    PrivacySpent as PrivacySpent,
    divergence as divergence,
    privacy_spent as privacy_spent,
)
