"""Private running sums (continual counting) with a stated (epsilon, delta), and online learning on them.

A `Counter` releases every prefix sum of vectors that are fed one at a time, with correlated Gaussian noise: Dwork, Naor,
Pitassi, Rothblum (STOC 2010) with the factorization of choice. `sqrt_toeplitz` is the mechanism of Henzinger, Upadhyay,
Upadhyay (SODA 2023), `optimal` the optimum of Denisov et al. (NeurIPS 2022), the default.

>>> counter = continual_counter(100, epsilon=1.0, delta=1e-6)
>>> state = counter.start(key=SecretKey.generate())
>>> for bit in (1, 0, 1):
...     released, state = counter.feed(bit, state)
>>> round(counter.error_bound(failure=0.05), 1)
36.0

An `OnlineLearner` is DP-FTRL on such sums: online convex optimization with private gradients,

    theta_{t+1} = argmin_{|theta| <= R}  <s_t + b_t, theta> + |theta|^2 / (2 eta)
                = projection of -eta (s_t + b_t),

s_t the sum of the gradients so far and b_t its noise. For convex losses with gradients of norm at most L,

    E regret  <=  R^2 / (2 eta) + eta T L^2 / 2 + eta L sqrt(d T) sigma ||B||_F.

Proof. Losses are replaced by their linear parts. With the exact leader theta'_t of the same gradients, the
regret is sum <g_t, theta'_t - u> + sum <g_t, theta_t - theta'_t>. The first sum is at most R^2 / (2 eta) +
eta T L^2 / 2, the bound of follow the regularised leader; it holds on every path, however the gradients were
chosen. The projection does not expand, so |theta_t - theta'_t| <= eta |b_{t-1}|, and sum E |b_t| <= sqrt(d)
sigma sum ||row t of B|| <= sqrt(d T) sigma ||B||_F.

This is the bound of Denisov et al. (NeurIPS 2022), Proposition 4.1, for any factorization, and with the
||B||_F ||C|| of the square root that of Henzinger, Upadhyay, Upadhyay (SODA 2023), Theorem 6; the constants
are those of the proof above.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from fedmf.accounting.calibration import calibrate_noise_multiplier
from fedmf.accounting.caveats import LARGEST
from fedmf.accounting.floating_point import MOST, check_price, finite_precision
from fedmf.checks import check_at_least, check_open_unit, check_positive
from fedmf.errors import SettingError
from fedmf.mechanisms import Factorization, design, prefix_sum
from fedmf.mechanisms.noise import next_noise, released
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.mechanisms.workload import Float64
from fedmf.randomness import SecretKey


@dataclass(frozen=True)
class CounterState:
    """What goes in and comes out: the sum released last (d,), stream state and key; secret as a whole."""

    released: Float64 = field(repr=False)
    stream: StreamState
    key: SecretKey


@dataclass(frozen=True)
class Counter:
    """Private prefix sums of `factorization.rounds` vectors of length `dimension` and 2-norm at most `norm`.

    All sums together are (epsilon, delta)-differentially private for streams that differ in one vector,
    replaced by zero, even if later vectors depend on earlier releases: they are one Gaussian with mu = 1 /
    `noise_multiplier` (Denisov et al. 2022, Theorem 2.1), accounted exactly (Balle, Wang 2018), with what finite
    precision adds (`fedmf.accounting.floating_point`): each vector is released with its noise, and releases are added up.
    For single numbers of one sign, such as counts, the same holds for replacement by any other such number.
    """

    factorization: Factorization
    dimension: int
    norm: float
    epsilon: float
    delta: float
    noise_multiplier: float

    def start(self, *, key: SecretKey) -> CounterState:
        """Return the state before the first vector. A key serves one counter, once."""
        return CounterState(np.zeros(self.dimension), self.factorization.stream.init(self.dimension), key)

    def feed(self, value: ArrayLike, state: CounterState) -> tuple[Float64, CounterState]:
        """Return the private sum (d,) of all vectors so far, `value` included, and the next state.

        A vector longer than `norm` is clipped to it; one with a number that is not finite counts as zero.
        Raises `SettingError` for another length, or after the last round.
        """
        vector = clip(value, self.dimension, self.norm)
        stream, dimension = self.factorization.stream, self.dimension
        noise, following = next_noise(stream, state.stream, state.key, dimension=dimension)
        sigma = self.noise_multiplier * self.factorization.sensitivity * self.norm
        total = state.released + released(vector, noise, sigma, np.float64)
        return total, CounterState(total, following, state.key)

    @property
    def stddev(self) -> Float64:
        """Standard deviation of each coordinate of every released sum, shape (T,), in units of the values."""
        return self.noise_multiplier * self.norm * self.factorization.per_round_error

    def error_bound(self, *, failure: float) -> float:
        """Return what no coordinate of any of the T sums is off by, except with probability `failure`.

        The largest standard deviation times the normal quantile of failure / (2 T d): a union bound.
        """
        check_open_unit("failure", failure)
        return float(-ndtri(failure / (2 * self.factorization.rounds * self.dimension)) * self.stddev.max())


def continual_counter(
    rounds: int,
    *,
    epsilon: float,
    delta: float,
    norm: float = 1.0,
    dimension: int = 1,
    family: str = "optimal",
) -> Counter:
    """Return a counter of `rounds` vectors with the least noise that is (epsilon, delta)-private; see `Counter`.

    `norm` bounds the 2-norm of one vector, 1 for counting. Raises `SettingError` for values out of range.
    """
    check_positive("epsilon", epsilon)
    if epsilon > LARGEST:
        raise SettingError(f"epsilon is {epsilon:g}; a counter claims no privacy above {LARGEST:g}.")
    check_positive("norm", norm)
    check_at_least("dimension", dimension, 1)
    factorization, precision = design(family, prefix_sum(rounds)), 0.0
    for _ in range(2):  # the second time with what finite precision costs, which more noise makes no larger
        noise_multiplier = calibrate_noise_multiplier(
            epsilon=epsilon, delta=delta, keep_probability=1, linf_over_l2=1, epochs=1, precision=precision
        )
        price = finite_precision(
            [factorization.precision],
            dimension=dimension,
            rounds=rounds,
            cohort_size=1,
            noise_multiplier=noise_multiplier,
            delta=delta,
        )
        precision = min(price.a, MOST)
    check_price(price, f"{rounds} rounds of {family}", dimension)
    return Counter(factorization, dimension, norm, epsilon, delta, noise_multiplier)


def clip(value: ArrayLike, dimension: int, norm: float) -> Float64:
    """Return `value` as a float64 vector of 2-norm at most `norm`; zero if a number in it is not finite."""
    vector = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if vector.shape != (dimension,):
        raise SettingError(f"the vector has shape {vector.shape}; this counter takes shape ({dimension},).")
    largest = float(np.abs(vector).max())
    if not np.isfinite(largest):
        return np.zeros(dimension)
    length = largest * float(np.linalg.norm(vector / largest)) if largest else 0.0
    return vector * (norm / length) if length > norm else vector


@dataclass(frozen=True)
class OnlineLearner:
    """DP-FTRL with learning rate eta on the ball of `radius` R; privacy is that of `counter`, whose norm is L."""

    counter: Counter
    radius: float
    learning_rate: float

    def start(self, *, key: SecretKey) -> tuple[Float64, CounterState]:
        """Return the first point, the origin (d,), and the state before the first gradient."""
        return np.zeros(self.counter.dimension), self.counter.start(key=key)

    def step(self, gradient: ArrayLike, state: CounterState) -> tuple[Float64, CounterState]:
        """Return the next point (d,) and state from the gradient at the last point, clipped to norm L."""
        released, state = self.counter.feed(gradient, state)
        point = -self.learning_rate * released
        return point * min(1.0, self.radius / max(float(np.linalg.norm(point)), 1e-300)), state

    def regret_bound(self) -> float:
        """Return the bound on the expected regret over all rounds, least at the learning rate of `online_learner`.

        There it is R sqrt(T L^2 + 2 L sqrt(d T) sigma ||B||_F).
        """
        return self.radius**2 / (2 * self.learning_rate) + self.learning_rate * _growth(self.counter) / 2


def online_learner(
    rounds: int,
    *,
    dimension: int,
    lipschitz: float,
    radius: float,
    epsilon: float,
    delta: float,
    family: str = "optimal",
) -> OnlineLearner:
    """Return the learner with the learning rate that is best for its regret bound.

    It is R / sqrt(T L^2 + 2 L sqrt(d T) sigma ||B||_F).
    """
    check_positive("radius", radius)
    counter = continual_counter(
        rounds, epsilon=epsilon, delta=delta, norm=lipschitz, dimension=dimension, family=family
    )
    return OnlineLearner(counter, radius, radius / math.sqrt(_growth(counter)))


def _growth(counter: Counter) -> float:
    """Return T L^2 + 2 L sqrt(d T) sigma ||B||_F: twice what eta multiplies in the bound.

    sigma ||B||_F is the noise multiplier times L times the root loss; sqrt(d T) of it bounds the sum of the expected
    noise norms.
    """
    rounds, norm = counter.factorization.rounds, counter.norm
    spread = counter.noise_multiplier * norm * counter.factorization.root_loss
    return rounds * norm**2 + 2 * norm * math.sqrt(counter.dimension * rounds) * spread
