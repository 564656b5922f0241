"""The papers' own way to the optimum of any lower triangular A: one eigendecomposition a step.

The fixed point of v <- diag (V^1/2 W V^1/2)^1/2, Denisov et al. (NeurIPS 2022), Theorem 3.2, with C^T C = X(v) and
W = A^T A, to which later rounds of the run are added where the workload has any. An oracle for `optimal` on small T, and the way to workloads that are not momentum. Not an oracle for learning rates
that decay to nothing: there eigendecompositions in double precision lose the small end of the spectrum (11 %
wrong at T = 256, cosine to 0).
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from fedmf.errors import SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64, check_lower_triangular
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import dense
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.workload import Workload

GAP = 1e-9


@dataclass(frozen=True)
class DenseSolution:
    """Lower triangular C (T, T) with unit columns, B = A C^-1, and bounds on the root loss of the optimum."""

    C: Float64
    B: Float64
    lower: float
    upper: float


def solve(
    matrix: Float64, gap: float = GAP, max_iterations: int = 500, *, gram: Float64 | None = None
) -> DenseSolution:
    """Return the optimal factorization of a lower triangular `matrix` (T, T).

    To relative `gap` on the loss, or as near as `max_iterations` steps come. The loss is tr(`gram` (C^T C)^-1), with
    the Gram matrix (T, T) of all rows that count: those of `matrix` alone if None. Raises `SettingError` for a matrix that is not square, finite, lower triangular and invertible.
    """
    check_lower_triangular("the workload", matrix)
    if max_iterations < 1:
        raise SettingError(f"max_iterations is {max_iterations}; it must be at least 1.")
    gram = matrix.T @ matrix if gram is None else gram
    v = np.sqrt(np.diag(gram))  # any positive start will do: the column norms of all rows
    for _ in range(max_iterations):
        X = _strategy_gram(gram, v)
        diagonal = np.diag(X)  # 1 at the fixed point
        trace = float(v @ diagonal)  # tr(V X), the loss
        # The duality bounds of `optimum.fixed_point`, on the loss.
        lower, upper = trace**2 / v.sum(), diagonal.max() * trace
        if upper <= lower * (1 + gap):
            break
        v = v * diagonal
    # Unit columns, whatever v is: C^T C = X with its diagonal divided out; then B = A C^-1.
    C = _reverse_cholesky(X / np.sqrt(np.outer(diagonal, diagonal)))
    B = solve_triangular(C, matrix.T, lower=True, trans="T").T
    return DenseSolution(C, B, float(np.sqrt(lower)), float(np.sqrt(upper)))


def _strategy_gram(gram: Float64, v: Float64) -> Float64:
    """Return X(v) = V^-1/2 (V^1/2 W V^1/2)^1/2 V^-1/2 for W = `gram`."""
    root = np.sqrt(v)
    values, vectors = np.linalg.eigh(gram * np.outer(root, root))
    square_root: Float64 = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    X: Float64 = square_root / np.outer(root, root)
    return X


def _reverse_cholesky(X: Float64) -> Float64:
    """Return the lower triangular C with C^T C = X."""
    flipped = np.linalg.cholesky(X[::-1, ::-1])
    return np.asarray(flipped.T[::-1, ::-1], dtype=np.float64)


def fit(workload: Workload) -> Fitted:
    """Return the dense C^-1 with its cost."""
    solution = solve(workloads.materialize(workload), gram=workloads.gram(workload))
    return dense.rounded_with_cost(
        solve_triangular(solution.C, np.eye(workload.rounds), lower=True), workload
    )


# 512 rounds are a few seconds of eigendecompositions.
OPTIMAL_DENSE = Family("optimal_dense", fit, DenseStream, most_rounds=512)
