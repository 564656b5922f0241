"""Online convex optimization with private gradients: DP-FTRL on the running sums of `counter`, and its regret.

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
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedmf.checks import check_positive
from fedmf.counting.counter import Counter, CounterState, continual_counter
from fedmf.errors import SettingError
from fedmf.mechanisms import bounds
from fedmf.mechanisms.arrays import Float64
from fedmf.randomness import SecretKey

SHORTEST_SQUARE_ROOT = 7  # Theorem 2 of Henzinger et al. fails for their own factorization below


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
        length = float(np.linalg.norm(point))
        return point * min(1.0, self.radius / max(length, 1e-300)), state

    def regret_bound(self) -> float:
        """Return the bound on the expected regret over all rounds; see `regret_bound`."""
        return _regret(self.counter, _noise_sum(self.counter), self.radius, self.learning_rate)


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
    """Return the learner with the learning rate that is best for its regret bound."""
    check_positive("radius", radius)
    counter = continual_counter(
        rounds, epsilon=epsilon, delta=delta, norm=lipschitz, dimension=dimension, family=family
    )
    return OnlineLearner(counter, radius, best_learning_rate(counter, radius))


def best_learning_rate(counter: Counter, radius: float) -> float:
    """Return the eta that minimises `regret_bound`: R / sqrt(T L^2 + 2 L sqrt(d T) sigma ||B||_F)."""
    check_positive("radius", radius)
    return radius / math.sqrt(_growth(counter, _noise_sum(counter)))


def regret_bound(counter: Counter, radius: float) -> float:
    """Return the bound on the expected regret at the best learning rate.

    It is R sqrt(T L^2 + 2 L sqrt(d T) sigma ||B||_F): L is the counter's norm and sigma ||B||_F its noise
    multiplier times L times the root loss of its factorization.
    """
    check_positive("radius", radius)
    return radius * math.sqrt(_growth(counter, _noise_sum(counter)))


def square_root_regret_bound(counter: Counter, radius: float) -> float:
    """Return `regret_bound` with the closed form sqrt(T) (1 + ln(4T/5) / pi) in place of the root loss.

    Henzinger et al.'s Theorem 2, an upper bound for `sqrt_toeplitz` and so for the optimum. Raises
    `SettingError` for fewer than 7 rounds, where Theorem 2 does not hold.
    """
    check_positive("radius", radius)
    rounds = counter.factorization.rounds
    if rounds < SHORTEST_SQUARE_ROOT:
        raise SettingError(f"rounds is {rounds}; Theorem 2 holds from {SHORTEST_SQUARE_ROOT} rounds on.")
    noise = counter.noise_multiplier * counter.norm * bounds.henzinger_upper(rounds)
    return radius * math.sqrt(_growth(counter, math.sqrt(counter.dimension * rounds) * noise))


def _noise_sum(counter: Counter) -> float:
    """Return sqrt(d T) sigma ||B||_F, which bounds the sum of the expected noise norms."""
    rounds = counter.factorization.rounds
    spread = counter.noise_multiplier * counter.norm * counter.factorization.root_loss
    return math.sqrt(counter.dimension * rounds) * spread


def _growth(counter: Counter, noise_sum: float) -> float:
    """Return T L^2 + 2 L noise_sum: twice what eta multiplies in the bound."""
    return counter.factorization.rounds * counter.norm**2 + 2 * counter.norm * noise_sum


def _regret(counter: Counter, noise_sum: float, radius: float, learning_rate: float) -> float:
    return radius**2 / (2 * learning_rate) + learning_rate * _growth(counter, noise_sum) / 2
