"""A factorization of one workload used for another: C and the stream stay, the decoder becomes A' A^-1 B.

What a server does that adds noise fitted to prefix sums and then runs momentum: private by post-processing,
but not as accurate as C fitted to the momentum workload.
"""

import numpy as np

from fedmf.errors import SettingError
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.streams.recurrence import RecurrentStream, output_variances
from fedmf.mechanisms.workload import Workload


def post_process(mechanism: Factorization, workload: Workload) -> Factorization:
    """Return `mechanism` with its cost on `workload`, of as many rounds.

    Raises `SettingError` for another number of rounds or a stream that is not a recurrence.
    """
    if workload.rounds != mechanism.rounds:
        raise SettingError(
            f"the workload has {workload.rounds} rounds; the mechanism has {mechanism.rounds}."
        )
    if not isinstance(mechanism.stream, RecurrentStream):
        raise SettingError(f"{mechanism.family} is not streamed by a recurrence; use optimal or blt.")
    error = mechanism.sensitivity * np.sqrt(output_variances(mechanism.stream, workload))
    return Factorization(
        mechanism.family, workload, mechanism.sensitivity, error, mechanism.stream, mechanism.seconds
    )
