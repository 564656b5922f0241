"""The optimal factorization, found in O(T) and streamed with the fewest buffers that reach it.

Prefix sums, momentum and any positive learning rates. Denisov et al. (NeurIPS 2022) Theorem 3.2 and section
4, by `optimal_solve`; the exact recurrence of `optimal_stream` is reduced by `truncation`. After that columns
are made unit and the tables rounded to float32, and what is reported, sensitivity and loss, is that of the
rounded tables.
"""

import logging

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Arrays, Float64
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.optimum.pole_process import innovations, pole_process
from fedmf.mechanisms.optimum.truncation import truncate
from fedmf.mechanisms.streams.recurrence import (
    RecurrentStream,
    StrategyForm,
    deployed,
    tables_of,
    with_unit_columns,
)
from fedmf.mechanisms.workload import Workload

_log = logging.getLogger(__name__)

EXCESS = 1e-4  # of the deployed loss over the certified lower bound, where `buffers` is not given
MOST_BUFFERS = 12


def fit(workload: Workload, buffers: int | None = None) -> Arrays:
    """Return the float32 tables with `buffers` buffers, or the fewest
    whose loss is within 1e-4 of the lower bound.

    Raises `SettingError` for fewer than 1 buffer, more than rounds, or more than 64.
    """
    if buffers is not None:
        check_at_least("buffers", buffers, 1)
        if buffers > min(workload.rounds, 64):
            raise SettingError(
                f"buffers is {buffers}; beyond the {workload.rounds} rounds of an epoch, or a dozen, nothing is "
                f"gained, so at most {min(workload.rounds, 64)}."
            )
    solution = fixed_point.certified(workload)
    process = pole_process(solution, workload)
    reduced = truncate(process, innovations(process), buffers or MOST_BUFFERS)
    if buffers is not None:
        return _deploy(reduced, workload, buffers)
    return _fewest(reduced, workload, solution.lower)


def stream(workload: Workload, arrays: Arrays) -> RecurrentStream:
    """Return the stream of fitted tables."""
    return RecurrentStream(workload.rounds, arrays["tables"])


def _fewest(reduced: StrategyForm, workload: Workload, lower: float) -> Arrays:
    """Return the deployment with the fewest buffers whose loss is within EXCESS
    of the bound, by bisection.
    """
    failing, passing = 0, MOST_BUFFERS + 1
    best: Arrays = {}
    while passing - failing > 1:
        r = (failing + passing) // 2
        candidate = _deploy(reduced, workload, r)
        if root_loss(candidate) ** 2 <= lower**2 * (1 + EXCESS):
            passing, best = r, candidate
        else:
            failing = r
    if not best:
        best = _deploy(reduced, workload, MOST_BUFFERS)
        _log.warning(
            "%d buffers leave the loss %.2e above its lower bound; %.0e was wanted. The mechanism is valid.",
            MOST_BUFFERS,
            root_loss(best) ** 2 / lower**2 - 1,
            EXCESS,
        )
    return best


def _deploy(reduced: StrategyForm, workload: Workload, r: int) -> Arrays:
    """Return the tables of the leading r buffers and what they cost, sensitivity included, as rounded."""
    leading = StrategyForm(reduced.F[:, :r, :r], reduced.g[:, :r], reduced.lam[:, :r], reduced.c)
    return deployed(tables_of(with_unit_columns(leading)), workload)


def root_loss(arrays: Arrays) -> float:
    """Return the root loss of deployed tables."""
    error: Float64 = arrays["per_round_error"]
    return float(np.linalg.norm(error))
