"""The optimal factorization, found in O(T) a step and pole and streamed with the fewest buffers that reach it.

Prefix sums, momentum and any positive learning rates. Denisov et al. (NeurIPS 2022) Theorem 3.2 and section
4, by `optimum.fixed_point`; the exact recurrence of `optimum.pole_process` is reduced by
`optimum.truncation`. After that columns are made unit and the tables rounded to float32, and what is
reported, sensitivity and loss, is that of the rounded tables.
"""

import logging

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.factorization import root_loss
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.optimum.pole_process import innovations, pole_process
from fedmf.mechanisms.optimum.truncation import truncate
from fedmf.mechanisms.streams.recurrence import (
    RecurrentStream,
    StrategyForm,
    rounded_with_cost,
    tables_of,
    with_unit_columns,
)
from fedmf.mechanisms.workload import Workload

_log = logging.getLogger(__name__)

EXCESS = 1e-4  # of the deployed loss over the certified lower bound, where `buffers` is not given
MOST_BUFFERS = 12
USUAL_BUFFERS = 6  # what epochs of thousands of rounds take, or one more or less (docs/mechanisms.md)


def fit(
    workload: Workload, buffers: int | None = None, *, solution: fixed_point.Solution | None = None
) -> Fitted:
    """Return the tables with `buffers` buffers, or the fewest within 1e-4 of the lower bound on the loss.

    `solution` is the optimum of `workload` where it is known already. Raises `SettingError` for fewer than 1 buffer, more than rounds, or more than 64.
    """
    if buffers is not None:
        check_at_least("buffers", buffers, 1)
        if buffers > min(workload.rounds, 64):
            raise SettingError(
                f"buffers is {buffers}; beyond the {workload.rounds} rounds of an epoch, or a dozen, nothing is "
                f"gained, so at most {min(workload.rounds, 64)}."
            )
    solution = solution or fixed_point.certified(workload)
    process = pole_process(solution, workload)
    reduced = truncate(process, innovations(process), buffers or MOST_BUFFERS)
    if buffers is not None:
        return _leading(reduced, workload, buffers)
    return _fewest(reduced, workload, solution.lower)


def _fewest(reduced: StrategyForm, workload: Workload, lower: float) -> Fitted:
    """Return the fit with the fewest buffers whose loss is within EXCESS of the bound: a usual number first, then bisection."""
    failing, passing = 0, MOST_BUFFERS + 1
    best: Fitted | None = None
    while passing - failing > 1:
        r = _next_count(failing, passing)
        candidate = _leading(reduced, workload, r)
        if _excess(candidate, workload, lower) <= EXCESS:
            passing, best = r, candidate
        else:
            failing = r
    if best is None:
        best = _leading(reduced, workload, MOST_BUFFERS)
        _log.warning(
            "%d buffers leave the loss %.2e above its lower bound; %.0e was wanted. The mechanism is valid.",
            MOST_BUFFERS,
            _excess(best, workload, lower),
            EXCESS,
        )
    return best


def _next_count(failing: int, passing: int) -> int:
    """Return the number of buffers to try when `failing` are too few and `passing` enough.

    >>> _next_count(0, 13), _next_count(0, 6), _next_count(6, 13), _next_count(0, 5), _next_count(7, 13)
    (6, 5, 7, 2, 10)
    """
    if (failing, passing) == (0, MOST_BUFFERS + 1):
        return USUAL_BUFFERS
    if (failing, passing) == (0, USUAL_BUFFERS):
        return USUAL_BUFFERS - 1
    if (failing, passing) == (USUAL_BUFFERS, MOST_BUFFERS + 1):
        return USUAL_BUFFERS + 1
    return (failing + passing) // 2


def _excess(candidate: Fitted, workload: Workload, lower: float) -> float:
    """Return by how much the loss is above its lower bound, as a share of it."""
    assert candidate.left is not None
    return (root_loss(workload, candidate.per_round_error, candidate.left) / lower) ** 2 - 1


def _leading(reduced: StrategyForm, workload: Workload, r: int) -> Fitted:
    """Return the tables of the leading r buffers and what they cost, sensitivity included, as rounded."""
    leading = StrategyForm(reduced.F[:, :r, :r], reduced.g[:, :r], reduced.lam[:, :r], reduced.c)
    return rounded_with_cost(tables_of(with_unit_columns(leading)), workload)


OPTIMAL = Family("optimal", fit, RecurrentStream, settings=("buffers",), from_optimum=True)
