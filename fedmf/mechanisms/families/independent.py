"""Independent noise, C = I: DP-SGD and DP-FedAvg. No state; the error of a prefix sum grows like sqrt(t)."""

import numpy as np

from fedmf.mechanisms.arrays import Arrays
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Workload

ONE = np.ones(1, dtype=np.float32)


def fit(workload: Workload) -> Arrays:
    """Return sensitivity 1 and the row norms of B = A."""
    impulse = np.eye(1, workload.rounds)[0]
    return {"sensitivity": np.array(1.0), "per_round_error": toeplitz.row_norms(impulse, workload)}


def stream(workload: Workload, arrays: Arrays) -> ToeplitzStream:
    """Return the stream that passes its fresh rows on."""
    return ToeplitzStream(workload.rounds, ONE)
