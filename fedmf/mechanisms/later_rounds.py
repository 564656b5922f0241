"""What the rounds after an epoch see of it: three numbers that stand for all of them.

The noise restarts with every epoch, the model does not: what an epoch's noise leaves in momentum and model is there
in every later round of the run. With m and y the momentum and the output after the epoch's last round, the outputs
of the later rounds add to the squared error

    c Var(y) + 2 beta b Cov(y, m) + beta^2 a Var(m),

where Q = [[a, b], [b, c]] is the covariance that these rounds, read backward, give to the state (x, d) of the chain
d_i = d_{i+1} + w_i, x_i = beta x_{i+1} + eta_i d_i for white w: from the last round of the run to the first one
after the epoch,

    c <- c + 1,     a <- beta^2 a + 2 beta eta b + eta^2 c  (the new c, the old b),     b <- beta b + eta c.

The determinant D = a c - b^2 is carried by its own recursion, D <- beta^2 (D + a) with the old a, because the
difference would lose its digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.filters import lfilter


@dataclass(frozen=True)
class LaterRounds:
    """The covariance [[a, b], [b, c]] of the chain's state behind an epoch, and its determinant a c - b^2.

    `c` is the number of later rounds. All are 0 where none follow.
    """

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    determinant: float = 0.0

    @property
    def covariance(self) -> Float64:
        """Q, shape (2, 2) float64."""
        return np.array([[self.a, self.b], [self.b, self.c]])

    def loss(self, left: Float64, beta: float) -> float:
        """Return the squared error that later rounds add, given the covariance (2, 2) of (m, y) left to them."""
        return float(self.c * left[1, 1] + 2 * beta * self.b * left[0, 1] + beta**2 * self.a * left[0, 0])


NONE = LaterRounds()


def later_rounds(learning_rates: Sequence[float] | Float64, beta: float) -> LaterRounds:
    """Return what the rounds of these learning rates, in the order of the run, are for an epoch before them.

    >>> later_rounds([1.0, 1.0], 0.0)
    LaterRounds(a=2.0, b=2.0, c=2.0, determinant=0.0)
    """
    return at_boundaries(np.asarray(learning_rates, dtype=np.float64), beta, [0])[0]


def at_boundaries(learning_rates: Float64, beta: float, starts: Sequence[int]) -> list[LaterRounds]:
    """Return what the rounds from each of `starts` to the end of the run are for an epoch that ends there.

    `learning_rates` (n,) are those of the whole run; a start of n has no later rounds.
    """
    n = len(learning_rates)
    eta = learning_rates[::-1]
    c = np.arange(1.0, n + 1)
    b = lfilter([1.0], [1.0, -beta], eta * c)
    entering = 2 * beta * eta * _before(b) + eta**2 * c
    a = lfilter([1.0], [1.0, -(beta**2)], entering)
    determinant = lfilter([1.0], [1.0, -(beta**2)], beta**2 * _before(a))
    rows = np.stack([a, b, c, determinant], axis=1)
    return [LaterRounds(*rows[n - start - 1].tolist()) if start < n else NONE for start in starts]


def _before(values: Float64) -> Float64:
    """Return the values one step earlier, 0 before the first."""
    return np.concatenate([[0.0], values[:-1]])
