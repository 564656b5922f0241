"""Workloads: what is to be computed from the rows of an epoch, A = S diag(eta) M_beta, and what follows it.

Row t of the input is the sum that round t releases; A x holds the models of an epoch, relative to its first
one:

    m_t = beta m_{t-1} + x_t,      (A x)_t = (A x)_{t-1} + eta_t m_t.

S is the matrix of prefix sums, M_beta the Toeplitz matrix with coefficients beta^k. With beta = 0 and eta = 1
this is plain prefix summing. Source: Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022), Proposition 4.2.

The noise restarts with every epoch, the model does not: what an epoch's noise leaves in momentum and model is there in
every later round of the run. With m and y the momentum and the output after the epoch's last round, the outputs of the
later rounds add to the squared error

    c Var(y) + 2 beta b Cov(y, m) + beta^2 a Var(m),

where Q = [[a, b], [b, c]] is the covariance that these rounds, read backward, give to the state (x, d) of the chain
d_i = d_{i+1} + w_i, x_i = beta x_{i+1} + eta_i d_i for white w: from the last round of the run to the first one
after the epoch,

    c <- c + 1,     a <- beta^2 a + 2 beta eta b + eta^2 c  (the new c, the old b),     b <- beta b + eta c.

The determinant D = a c - b^2 has its own recursion, D <- beta^2 (D + a) with the old a, because the difference would
lose its digits. So only the Gram matrix of all outputs counts, W = A^T A + R Q R^T: `Workload.later` holds Q, and R (T, 2)
is the response of x = A^T w to the state after the epoch, so that R^T x = (beta m_T, y_T). `of_run` makes the workloads
of a run's epochs.

>>> materialize(momentum(3, 0.5))
array([[1.  , 0.  , 0.  ],
       [1.5 , 1.  , 0.  ],
       [1.75, 1.5 , 1.  ]])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fedmf.checks import check_at_least, check_below_one
from fedmf.errors import SettingError

# Arrays of this package: float64 for mathematics, float32 for the tables of a stream, or either.
Float64 = np.typing.NDArray[np.float64]
Float32 = np.typing.NDArray[np.float32]
Floats = np.typing.NDArray[np.floating]

SMALLEST_RATE = 1e-6  # relative to the largest: below it the optimum is not resolved in double precision
SHORT = 1024  # numbers up to which a recursion runs in Python: the import of scipy.signal takes 0.7 s


@dataclass(frozen=True)
class LaterRounds:
    """The covariance [[a, b], [b, c]] of the chain's state after an epoch, and its determinant a c - b^2.

    `c` is the number of later rounds. All are 0 where none follow.
    """

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    determinant: float = 0.0

    def loss(self, left: Float64, beta: float) -> float:
        """Return the squared error that later rounds add, given the covariance (2, 2) of (m, y) left to them."""
        return float(self.c * left[1, 1] + 2 * beta * self.b * left[0, 1] + beta**2 * self.a * left[0, 0])


NONE = LaterRounds()


def at_boundaries(learning_rates: Float64, beta: float, starts: Sequence[int]) -> list[LaterRounds]:
    """Return what the rounds from each of `starts` to the end of the run are for an epoch that ends there.

    `learning_rates` (n,) are those of the whole run; a start of n has no later rounds.

    >>> at_boundaries(np.ones(2), 0.0, [0])
    [LaterRounds(a=2.0, b=2.0, c=2.0, determinant=0.0)]
    """
    n = len(learning_rates)
    eta = learning_rates[::-1]
    c = np.arange(1.0, n + 1)
    b = recursion(beta, eta * c)
    a = recursion(beta**2, 2 * beta * eta * _before(b) + eta**2 * c)
    rows = np.stack([a, b, c, recursion(beta**2, beta**2 * _before(a))], axis=1)
    return [LaterRounds(*rows[n - start - 1].tolist()) if start < n else NONE for start in starts]


def _before(values: Float64) -> Float64:
    """Return the values one step earlier, 0 before the first."""
    return np.concatenate([[0.0], values])[:-1]


@dataclass(frozen=True)
class Workload:
    """A = S diag(eta) M_beta of `rounds` rounds; `learning_rates` is None for eta = 1.

    `later` is what the rounds of the run after this epoch see of it; by default none follow. Raises `SettingError` for
    rounds < 1, momentum outside [0, 1), and learning rates that are not one positive finite number a round or span more
    than six orders of magnitude.
    """

    rounds: int
    momentum: float = 0.0
    learning_rates: tuple[float, ...] | None = None
    later: LaterRounds = NONE

    def __post_init__(self) -> None:
        check_at_least("rounds", self.rounds, 1)
        check_below_one("momentum", self.momentum)
        values = rates(self)
        if values.shape != (self.rounds,):
            raise SettingError(
                f"learning_rates holds {values.size} numbers; it must hold one a round, {self.rounds}."
            )
        if not np.all(np.isfinite(values)) or np.any(values <= 0):
            raise SettingError(
                f"learning_rates holds {values[~(values > 0) | ~np.isfinite(values)][0]}; "
                "every rate must be a finite number above 0."
            )
        if values.min() < SMALLEST_RATE * values.max():
            raise SettingError(
                f"learning_rates lie between {values.min()} and {values.max()}; "
                f"the smallest must be at least {SMALLEST_RATE} of the largest: raise the small ones to that."
            )


def prefix_sum(rounds: int) -> Workload:
    """Return the workload of prefix sums over `rounds` rounds."""
    return Workload(rounds)


def momentum(rounds: int, beta: float, learning_rates: tuple[float, ...] | None = None) -> Workload:
    """Return the workload of gradient descent with momentum `beta` and one learning rate a round or all 1."""
    return Workload(
        rounds, beta, None if learning_rates is None else tuple(float(rate) for rate in learning_rates)
    )


def of_run(
    rounds: int, epochs: int, beta: float = 0.0, learning_rates: tuple[float, ...] | None = None
) -> tuple[Workload, ...]:
    """Return the workload of each epoch of a run: `epochs` epochs of `rounds` rounds, momentum going on.

    `learning_rates` has one rate for each round of the whole run, None for eta = 1. The last workload has no later
    rounds: it is that of an epoch alone.

    >>> [workload.later.c for workload in of_run(2, 3)]
    [4.0, 2.0, 0.0]
    """
    check_at_least("rounds", rounds, 1)
    check_at_least("epochs", epochs, 1)
    eta = np.ones(rounds * epochs) if learning_rates is None else np.asarray(learning_rates, dtype=np.float64)
    if eta.shape != (rounds * epochs,):
        raise SettingError(
            f"learning_rates holds {eta.size} numbers; a run of {epochs} epochs of {rounds} rounds needs one a "
            f"round, {rounds * epochs}."
        )
    ends = range(rounds, rounds * epochs + 1, rounds)
    return tuple(
        Workload(
            rounds, beta, None if learning_rates is None else tuple(eta[end - rounds : end].tolist()), later
        )
        for end, later in zip(ends, at_boundaries(eta, beta, ends), strict=True)
    )


def rates(workload: Workload) -> Float64:
    """Return the learning rates eta, shape (T,) float64."""
    given = workload.learning_rates
    return np.ones(workload.rounds) if given is None else np.asarray(given, dtype=np.float64)


def materialize(workload: Workload) -> Float64:
    """Return the dense workload matrix A, shape (T, T) float64, lower triangular."""
    return apply(workload, np.eye(workload.rounds))


def apply(workload: Workload, rows: Float64) -> Float64:
    """Return A x for rows x of shape (T, ...) in O(T), float64."""
    return np.cumsum(_column(rates(workload), rows) * recursion(workload.momentum, rows), axis=0)


def solve(workload: Workload, rows: Float64) -> Float64:
    """Return A^-1 y for rows y of shape (T, ...) in O(T), float64."""
    steps = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1])) / _column(rates(workload), rows)
    return steps - workload.momentum * np.concatenate([np.zeros_like(steps[:1]), steps[:-1]])


def after_last(workload: Workload, rows: Float64) -> Float64:
    """Return what rows (T, ...) leave after the last round: momentum m_T and output y_T, shape (2, ...)."""
    averaged = recursion(workload.momentum, rows)
    return np.stack([averaged[-1], (_column(rates(workload), rows) * averaged).sum(axis=0)])


def gram_apply(workload: Workload, x: Float64) -> Float64:
    """Return W x for x of shape (T,) in O(T): W = A^T A + R Q R^T, later rounds of the run among the rows."""
    outputs, (momentum, output) = apply(workload, x), after_last(workload, x)
    # R^T x = (beta m, y); Q R^T x is the state (x, d) with which the chain A^T starts after the last round.
    later = workload.later
    behind = np.array([[later.a, later.b], [later.b, later.c]]) @ [workload.momentum * momentum, output]
    driven = rates(workload)[::-1] * (behind[1] + np.cumsum(outputs[::-1]))
    driven[0] += workload.momentum * behind[0]
    return recursion(workload.momentum, driven)[::-1]


def gram(workload: Workload) -> Float64:
    """Return the dense W = A^T A + R Q R^T, shape (T, T) float64."""
    return np.stack([gram_apply(workload, column) for column in np.eye(workload.rounds)])


def recursion(beta: float, rows: Float64) -> Float64:
    """Return y with y_t = beta y_(t-1) + x_t along the first axis: `scipy.signal.lfilter`, bit for bit."""
    if rows.ndim > 1:
        result = np.array(rows, np.float64)
        for step in range(1, len(result)):
            result[step] += beta * result[step - 1]
        return result
    if len(rows) <= SHORT:
        # Python's floats round as C's doubles do, and cost a tenth of numpy's scalars.
        return np.array(list(accumulate(rows.tolist(), lambda last, x: beta * last + x)), np.float64)
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -beta], rows), np.float64)


def _column(values: Float64, rows: Float64) -> Float64:
    """Shape `values` (T,) so that it multiplies along the first axis of `rows`."""
    return values.reshape((-1,) + (1,) * (rows.ndim - 1))
