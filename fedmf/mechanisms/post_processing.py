"""A factorization of one workload used for another: C and the stream stay, the decoder becomes A' A^-1 B.

What a server does that adds noise fitted to prefix sums and then runs momentum: private by post-processing,
but not as accurate as C fitted to what the server does.
"""

from dataclasses import replace

import numpy as np

from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.streams.recurrence import RecurrentStream, output_variances
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.streams.tree import TreeStream
from fedmf.mechanisms.workload import Workload


def post_process(mechanism: Factorization, workload: Workload) -> Factorization:
    """Return `mechanism` with its cost on `workload`, of as many rounds.

    Raises `SettingError` for another number of rounds.
    """
    if workload.rounds != mechanism.rounds:
        raise SettingError(
            f"the workload has {workload.rounds} rounds; the mechanism has {mechanism.rounds}."
        )
    errors, left = _errors(mechanism.stream, workload)
    return replace(
        mechanism,
        workload=workload,
        per_round_error=mechanism.sensitivity * errors,
        left=mechanism.sensitivity**2 * left,
    )


def _errors(stream: NoiseStream, workload: Workload) -> tuple[Float64, Float64]:
    """Return the row norms (T,) of B for a stream, and what is left (2, 2); densely where nothing else is known."""
    if isinstance(stream, RecurrentStream | TreeStream):
        variances, left = output_variances(stream, workload)
        return np.sqrt(variances), left
    if isinstance(stream, ToeplitzStream):
        coefs = stream.coefs.astype(np.float64)
        return toeplitz.row_norms(toeplitz.inverse(coefs, workload.rounds), workload)
    noising = stream.materialize_noising()
    after = workloads.after_last(workload, noising)
    return np.linalg.norm(workloads.apply(workload, noising), axis=1), after @ after.T
