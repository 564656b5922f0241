"""Denisov et al.'s approximation of the optimum: B' = h diagonals plus a matrix of rank r below them.

The decoder B of the optimum is approximated by B'_ij = b_ij for i - j < h and L_i . R_j below, fitted by
alternating least squares, and C' = B'^-1 A is RECOMPUTED from it: with the old C the product would not be A
and the noise not private. Source: Denisov et al. (NeurIPS 2022), Appendix H and the last column of their
Table 2.
"""

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.families import Family, chosen, optimal
from fedmf.mechanisms.optimum.fixed_point import Solution
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.workload import Float32, Float64, Workload

RIDGE = 1e-10  # relative to the largest entry: rows near the edges determine fewer than r numbers


def fit(
    workload: Workload,
    bands: int | None = None,
    rank: int | None = None,
    *,
    solution: Solution | None = None,
) -> RecurrentStream:
    """Return the stream of `bands` diagonals and `rank` (4 and 4 if None, at most T).

    Raises `SettingError` for bands or rank below 1 or above T.
    """
    bands = chosen("bands", bands, 4, most=workload.rounds)
    rank = chosen("rank", rank, 4, most=workload.rounds)
    B = workloads.apply(workload, optimal.fit(workload, solution=solution).materialize_noising())
    left, right = alternating_least_squares(B, bands, rank)
    return RecurrentStream(
        workload.rounds, tables(np.tril(B) - np.tril(B, -bands), left, right, bands, workload)
    )


def alternating_least_squares(
    B: Float64, bands: int, rank: int, sweeps: int = 100
) -> tuple[Float64, Float64]:
    """Return L and R, (T, r) each, that fit L R^T to B where i - j >= `bands`.

    Each half sweep solves its rows exactly, with a small ridge on both factors that makes the objective fall
    in every step. Deterministic: it starts from the profile of the optimum's rows, 1/sqrt(distance), seen
    from r places.
    """
    rounds = len(B)
    target = np.tril(B, -bands)  # what the low-rank part is to be, below the bands
    ridge = RIDGE * float(np.abs(B).max())
    places = rounds * np.arange(1, rank + 1) / rank
    right = 1 / np.sqrt(np.abs(places - np.arange(rounds)[:, None]) + bands)
    for _ in range(sweeps):
        left = _regress(target, right, bands, ridge)  # the rows of L, given R
        # The rows of R, given L: the same regression on the transpose, read from its other corner.
        right = _regress(target.T[::-1, ::-1], left[::-1], bands, ridge)[::-1]
    return _regress(target, right, bands, ridge), right


def _regress(target: Float64, right: Float64, bands: int, ridge: float) -> Float64:
    """Return, for every i, the weights on the rows of `right` up to i - bands that fit target row i best."""
    rank = right.shape[1]
    grams = np.zeros((len(target), rank, rank))  # sum of R_j R_j^T over j <= i - bands, for each row i
    grams[bands:] = np.cumsum(right[:, :, None] * right[:, None, :], axis=0)[: len(target) - bands]
    moments = target @ right  # sum of target_ij R_j over the same j, as the rest of the row is zero
    systems = grams + ridge * np.eye(rank)
    try:
        weights = np.linalg.solve(systems, moments[:, :, None])
    except np.linalg.LinAlgError:  # the ridge of a row is below the rounding of its sum
        weights = np.linalg.pinv(systems, hermitian=True) @ moments[:, :, None]
    return np.asarray(weights[:, :, 0], dtype=np.float64)


def tables(banded: Float64, left: Float64, right: Float64, bands: int, workload: Workload) -> Float32:
    """Return the tables of x = A^-1 B' z for B' = `banded` (T, T), of that many bands, and L R^T below them.

    The state is the last p rows z and the r sums of R_j z_j over the rows before them. A^-1 mixes rows t, t - 1 and, with
    momentum, t - 2 of B'. All are linear in the state once p = h, or h + 1 with momentum: older entries of each of these
    rows lie in the low-rank part.
    """
    rounds, r = left.shape
    past = bands if workload.momentum == 0 else bands + 1
    noising = workloads.solve(workload, banded + np.tril(left @ right.T, -bands))
    result = np.zeros((rounds, past + r + 1, past + r + 1), dtype=np.float32)
    # The last row gives the noise row, from the fresh row, the rows kept and the sums.
    result[:, -1, -1] = np.diag(noising)
    for back in range(1, past + 1):
        result[back:, -1, back - 1] = np.diag(noising, -back)
    result[:, -1, past:-1] = workloads.solve(workload, left)
    # The fresh row enters in front, every kept row moves one place back, the sums stay.
    result[:, 0, -1] = 1
    result[:, np.arange(1, past), np.arange(past - 1)] = 1
    result[:, np.arange(past, past + r), np.arange(past, past + r)] = 1
    # The row that leaves the window, z_{t-p}, joins the sums as R_{t-p} z_{t-p}.
    result[past:, past : past + r, past - 1] = right[: max(rounds - past, 0)]
    return result


BANDED_LOW_RANK = Family(
    "banded_low_rank", fit, settings=("bands", "rank"), most_rounds=4096, from_optimum=True
)
