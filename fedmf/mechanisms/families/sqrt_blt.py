"""The square-root factorization in O(log T) buffers: its coefficients as a short sum of powers.

The coefficients of (1 - x)^-1/2 (1 - beta x)^-1/2 are the moments of an arcsine law,

    c_j = (1 / pi) integral over [beta, 1] of theta^j / sqrt((1 - theta) (theta - beta)) d theta,

so that any quadrature of it makes c_j a sum a_k theta_k^j, which a stream holds in one buffer a node. The nodes are the
poles of the best rational approximation of the inverse square root, as in `optimum.poles`: with z = (1 - x)/(1 - beta x)

    z^-1/2 ~ sum_k w_k / (z + s_k)      gives      u_k = 1/(1 + s_k),  theta_k = beta + (1 - beta) u_k,  a_k = w_k u_k / sum.

The coefficients differ from those of `sqrt_toeplitz` by less than `TOLERANCE`, and the root loss by some 1e-4 either
way; what is deployed is costed as deployed, so that privacy rests on no approximation. Source: Dvijotham, McMahan,
Pillutla, Steinke, Thakurta, "Efficient and near-optimal noise generation for streaming differential privacy" (FOCS 2024),
whose rational functions these are; the square root is that of Henzinger, Upadhyay, Upadhyay (SODA 2023).

>>> from fedmf.mechanisms import design, prefix_sum
>>> short, long = (design(family, prefix_sum(1024)) for family in ("sqrt_blt", "sqrt_toeplitz"))
>>> short.stream.buffers, long.stream.buffers, abs(short.root_loss / long.root_loss - 1) < 1e-4
(8, 1023, True)
"""

import numpy as np

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.families import sqrt_toeplitz
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.optimum.poles import Interval, zolotarev
from fedmf.mechanisms.streams.recurrence import RecurrentStream, StrategyForm, rounded_with_cost, tables_of
from fedmf.mechanisms.workload import Workload

TOLERANCE = 1e-3  # relative, of every coefficient: root losses then agree to 1e-4
MOST_BUFFERS = 24  # reach the tolerance at 2^30 rounds
LOWEST = 2.0  # over 1 + T (1 - beta): below it z does not come within T rounds
_CHUNK = 4096  # coefficients at once


def fit(workload: Workload, buffers: int | None = None) -> Fitted:
    """Return the one table of all rounds, with `buffers` buffers (None: as few as `TOLERANCE` takes), and its cost.

    That of a constant learning rate, as `sqrt_toeplitz`; the cost is that of the workload itself. Raises `SettingError`
    for fewer than 1 or more than 24 buffers.
    """
    return rounded_with_cost(tables_of(strategy_form(workload, buffers)), workload)


def strategy_form(workload: Workload, buffers: int | None) -> StrategyForm:
    """Return C, the same in every round, as a recurrence; see `fit`."""
    theta, weights = _nodes_of(workload, buffers)
    diagonal = np.diag(theta)[None]
    return StrategyForm(diagonal, np.ones((1, len(theta))), (weights * theta)[None], np.ones(1))


def _nodes_of(workload: Workload, buffers: int | None) -> tuple[Float64, Float64]:
    """Return the nodes asked for, or the fewest whose coefficients are within `TOLERANCE` of the square root's."""
    if buffers is not None:
        check_at_least("buffers", buffers, 1)
        if buffers > MOST_BUFFERS:
            raise SettingError(
                f"buffers is {buffers}; more than {MOST_BUFFERS} change nothing: ask for fewer."
            )
        return nodes(workload, buffers)
    wanted = sqrt_toeplitz.coefficients(workload)
    for count in range(1, MOST_BUFFERS):
        theta, weights = nodes(workload, count)
        if np.abs(coefficients(theta, weights, workload.rounds) / wanted - 1).max() <= TOLERANCE:
            return theta, weights
    return nodes(workload, MOST_BUFFERS)


def nodes(workload: Workload, count: int) -> tuple[Float64, Float64]:
    """Return theta in (beta, 1) and weights a > 0 that add up to 1, shape (count,) each."""
    beta = workload.momentum
    low = min(0.5, LOWEST / (1 + workload.rounds * (1 - beta)))
    shifts, weights = zolotarev(Interval(low, 1.0), count)
    share = 1 / (1 + shifts)
    return beta + (1 - beta) * share, weights * share / (weights * share).sum()


def coefficients(theta: Float64, weights: Float64, rounds: int) -> Float64:
    """Return sum_k a_k theta_k^j for j = 0 .. T - 1, shape (T,)."""
    logs = np.log(theta)
    steps = np.arange(rounds)
    chunks = (steps[start : start + _CHUNK] for start in range(0, rounds, _CHUNK))
    return np.concatenate([np.exp(chunk[:, None] * logs) @ weights for chunk in chunks])


SQRT_BLT = Family("sqrt_blt", fit, RecurrentStream, settings=("buffers",))
