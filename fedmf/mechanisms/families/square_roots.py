"""The square-root factorization C = A^1/2 of a Toeplitz workload, and two forms of it in O(log T) buffers.

`sqrt_toeplitz` keeps the whole history. For prefix sums C = B has coefficients f(0) = 1, f(k) = (1 - 1/(2k)) f(k - 1),
those of (1 - x)^-1/2; for momentum those of (1 - x)^-1/2 (1 - beta x)^-1/2. With a learning-rate schedule C stays as for
a constant rate and B = A C^-1. Source: Henzinger, Upadhyay, Upadhyay, "Almost tight error bounds on differentially private
continual counting" (SODA 2023); Fichtenberger, Henzinger, Upadhyay (ICML 2023).

`sqrt_blt` has its coefficients as a short sum of powers. They are the moments of an arcsine law,

    c_j = (1 / pi) integral over [beta, 1] of theta^j / sqrt((1 - theta) (theta - beta)) d theta,

so that any quadrature of it makes c_j a sum a_k theta_k^j, which a stream holds in one buffer a node. The nodes are the
poles of the best rational approximation of the inverse square root, as in `optimum.poles`: with z = (1 - x)/(1 - beta x)

    z^-1/2 ~ sum_k w_k / (z + s_k)      gives      u_k = 1/(1 + s_k),  theta_k = beta + (1 - beta) u_k,  a_k = w_k u_k / sum.

The coefficients differ from those of `sqrt_toeplitz` by less than `TOLERANCE`, and the root loss by some 1e-4 either
way; the cost is that of what is deployed, so that privacy rests on no approximation. Source: Dvijotham, McMahan,
Pillutla, Steinke, Thakurta, "Efficient and near-optimal noise generation for streaming differential privacy" (FOCS 2024),
whose rational functions these are.

`normalized_sqrt` divides every column by its norm. The first column of A^1/2 is the longest, and the sensitivity is its
norm alone; later columns may be as long at no cost in privacy. With D the diagonal matrix of the column norms,
C = A^1/2 D^-1 and B = A C^-1 = A D A^-1/2: the same noise as the square root's, from fresh rows that are scaled by the
norms. Streamed by the recurrence of `sqrt_blt`, of which only the inputs change from round to round, so that the columns of
what is deployed are unit to the rounding of its tables. Its root loss is within about 1.5 % of the optimum for prefix sums,
with no solver at all. Source: Henzinger, Kalinin, Upadhyay, "Normalized square root: sharper matrix factorization bounds
for differentially private continual counting" (2025): rms error at most 0.748 + log(T)/pi + o(1).

>>> from fedmf.mechanisms import design, prefix_sum, relative_gap
>>> short, long = (design(family, prefix_sum(1024)) for family in ("sqrt_blt", "sqrt_toeplitz"))
>>> short.stream.buffers, long.stream.buffers, abs(short.root_loss / long.root_loss - 1) < 1e-4
(8, 1023, True)
>>> [round(relative_gap(design(family, prefix_sum(64))), 3) for family in ("sqrt_toeplitz", "normalized_sqrt")]
[0.062, 0.013]
"""

import numpy as np

from fedmf.mechanisms.families import Family, chosen
from fedmf.mechanisms.optimum.poles import Interval, zolotarev
from fedmf.mechanisms.streams import toeplitz
from fedmf.mechanisms.streams.recurrence import RecurrentStream, StrategyForm, tables_of, with_unit_columns
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Float64, Workload

TOLERANCE = 1e-3  # relative, of every coefficient: root losses then agree to 1e-4
MOST_BUFFERS = 24  # reach the tolerance at 2^30 rounds
LOWEST = 2.0  # over 1 + T (1 - beta): below it z does not come within T rounds
_CHUNK = 4096  # coefficients at once


def fit_toeplitz(workload: Workload) -> ToeplitzStream:
    """Return the stream of all coefficients."""
    coefs = coefficients(workload)
    return ToeplitzStream(workload.rounds, coefs / coefs[0])


def coefficients(workload: Workload) -> Float64:
    """Return the first column of C, shape (T,).

    >>> coefficients(Workload(4))
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    power = np.cumprod(np.concatenate([[1.0], 1 - 1 / (2 * np.arange(1, workload.rounds))]))
    if workload.momentum == 0:
        return power
    return toeplitz.multiply(power, power * workload.momentum ** np.arange(workload.rounds), workload.rounds)


def fit_blt(workload: Workload, buffers: int | None = None) -> RecurrentStream:
    """Return the stream of one table for all rounds, with `buffers` buffers (None: as few as `TOLERANCE` takes).

    Raises `SettingError` for fewer than 1 or more than 24 buffers.
    """
    return RecurrentStream(workload.rounds, tables_of(_strategy_form(workload, buffers)))


def fit_normalized(workload: Workload, buffers: int | None = None) -> RecurrentStream:
    """Return the stream with tables for every round; `buffers` as in `fit_blt`."""
    form = _strategy_form(workload, buffers)
    repeated = (np.repeat(array, workload.rounds, axis=0) for array in (form.F, form.g, form.lam, form.c))
    return RecurrentStream(workload.rounds, tables_of(with_unit_columns(StrategyForm(*repeated))))


def _strategy_form(workload: Workload, buffers: int | None) -> StrategyForm:
    """Return C, the same in every round, as a recurrence.

    From the nodes asked for, or the fewest whose coefficients are within `TOLERANCE` of the square root's.
    """
    wanted, most = coefficients(workload), chosen("buffers", buffers, MOST_BUFFERS, most=MOST_BUFFERS)
    for count in range(1 if buffers is None else most, most + 1):
        theta, weights = nodes(workload, count)
        if np.abs(sum_of_powers(theta, weights, workload.rounds) / wanted - 1).max() <= TOLERANCE:
            break
    return StrategyForm(np.diag(theta)[None], np.ones((1, len(theta))), (weights * theta)[None], np.ones(1))


def nodes(workload: Workload, count: int) -> tuple[Float64, Float64]:
    """Return theta in (beta, 1) and weights a > 0 that add up to 1, shape (count,) each."""
    beta = workload.momentum
    low = min(0.5, LOWEST / (1 + workload.rounds * (1 - beta)))
    shifts, weights = zolotarev(Interval(low, 1.0), count)
    share = 1 / (1 + shifts)
    return beta + (1 - beta) * share, weights * share / (weights * share).sum()


def sum_of_powers(theta: Float64, weights: Float64, rounds: int) -> Float64:
    """Return sum_k a_k theta_k^j for j = 0 .. T - 1, shape (T,)."""
    logs = np.log(theta)
    steps = np.arange(rounds)
    chunks = (steps[start : start + _CHUNK] for start in range(0, rounds, _CHUNK))
    return np.concatenate([np.exp(chunk[:, None] * logs) @ weights for chunk in chunks])


SQRT_TOEPLITZ = Family("sqrt_toeplitz", fit_toeplitz)
SQRT_BLT = Family("sqrt_blt", fit_blt, settings=("buffers",))
NORMALIZED_SQRT = Family("normalized_sqrt", fit_normalized, settings=("buffers",))
