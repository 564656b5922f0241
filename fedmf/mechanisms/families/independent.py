"""Independent noise, C = I: DP-SGD and DP-FedAvg. No state; the error of a prefix sum grows like sqrt(t)."""

import numpy as np

from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Workload

ONE = np.ones(1, dtype=np.float32)


def fit(workload: Workload) -> Fitted:
    """Return the one coefficient 1, with which the stream passes its fresh rows on, and the cost of B = A."""
    impulse = np.eye(1, workload.rounds)[0]
    norms, left = toeplitz.row_norms(impulse, workload)
    return Fitted(1.0, norms, ONE, left)


INDEPENDENT = Family("independent", fit, ToeplitzStream)
