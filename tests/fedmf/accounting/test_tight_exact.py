"""The quadratic-variation bound against exact hockey-stick divergences: never below one, and wrong variants are."""

import math

import mpmath
import numpy as np
import pytest

from fedmf.accounting import EpochEvent
from fedmf.accounting.gaussian import gaussian_delta
from fedmf.accounting.tight import (
    Setting,
    least_stop,
    quadratic_variation_epsilon,
)
from oracles import Pair, add, epoch, hitting_probability, log_exponential_moment, power, profiles, remove

pytestmark = pytest.mark.long

DELTAS = (1e-2, 1e-5)


def random_setting(rng):
    """(event, epochs, tau) with gamma from .001 to 1, tau from .001 to 5, K from 1 to 12, one to three epochs."""
    gamma, tau = float(10 ** rng.uniform(-3, 0)), float(10 ** rng.uniform(-3, 0.7))
    ratio = float(rng.choice([1.0, rng.uniform(1, 4), rng.uniform(1, 12)]))
    event = EpochEvent(1 / math.sqrt(ratio * tau), gamma, 1 / math.sqrt(ratio))
    return event, int(rng.integers(1, 4)), tau


def exact_cases(settings, seed):
    """(delta, exact divergence at the epsilon that A, B and C prove at delta), for profiles and directions."""
    rng = np.random.default_rng(seed)
    for _ in range(settings):
        event, epochs, tau = random_setting(rng)
        proved = [(delta, quadratic_variation_epsilon(event, epochs, delta)) for delta in DELTAS]
        for profile in profiles(tau, event.ratio, rng).values():
            pair = power(epoch(profile, event.keep_probability), epochs)
            for delta, epsilon in proved:
                if epsilon < math.inf:
                    yield delta, add(pair, epsilon)
                    yield delta, remove(pair, epsilon)


def smallest_margin(cases):
    """(number of cases whose exact divergence is positive, smallest bound over exact): the others cannot fail."""
    margins = [delta / exact for delta, exact in cases if exact > 0]
    return len(margins), min(margins)


def test_the_bound_is_above_the_exact_divergence_of_every_small_case():
    count, margin = smallest_margin(exact_cases(16, seed=1))
    assert count >= 180
    assert 1 <= margin < 1.1  # and some come near, or the check would be idle


MENU = (1, 2, 3, 5, 9)  # coordinates in the second epoch


@pytest.mark.parametrize("gamma", [0.03, 0.3, 0.9])
@pytest.mark.parametrize("tau", [0.05, 1.5])
def test_an_adversary_who_chooses_the_second_epoch_by_the_first_gains_nothing_over_the_bound(gamma, tau):
    """By dynamic programming: after each outcome of the first epoch the worst profile of the second."""
    ratio = 2.3
    event = EpochEvent(1 / math.sqrt(ratio * tau), gamma, 1 / math.sqrt(ratio))
    menu = [epoch([min(tau, ratio * tau / n)] * n, gamma) for n in MENU]
    menu.append(epoch([tau, tau, 0.3 * tau], gamma))
    for delta in (1e-2, 1e-4):
        epsilon = quadratic_variation_epsilon(event, 2, delta)
        for turn in (lambda pair: pair, lambda pair: Pair(pair.q, pair.p)):
            worlds = [turn(pair) for pair in menu]
            adaptive = max(best_reply(first, worlds, epsilon) for first in worlds)
            fixed = max(best_reply(first, [second], epsilon) for first in worlds for second in worlds)
            assert fixed <= adaptive <= delta


def test_the_adversary_does_gain_from_choosing():
    menu = [epoch([0.5] * 2, 0.3), epoch([0.1] * 10, 0.3)]
    adaptive = max(best_reply(first, menu, 0.3) for first in menu)
    assert adaptive > max(best_reply(first, [second], 0.3) for first in menu for second in menu) * 1.0001


def best_reply(first, menu, epsilon):
    """The sum over outcomes of the first epoch of the largest divergence that an entry of the menu gives."""
    z = math.exp(epsilon)
    gains = [
        np.maximum(np.outer(first.p, second.p) - z * np.outer(first.q, second.q), 0).sum(axis=1)
        for second in menu
    ]
    return float(np.max(gains, axis=0).sum()) - 1e-12


# Wrong variants. A variant's claim is the least that its formula gives over a grid of lam, mu and b.

GRID_S = np.geomspace(1e-2, 1e6, 65)
SHARES_OF_T = np.geomspace(1e-6, 1, 241)


def claim(setting, epsilon, exponent, *, stop=None, tail=True, hits=True):
    """Least d_mu + exp(-s mu^2/tau + exponent(setting, s, stop)) + n pi; exponent is n psi in the theorem."""
    total = setting.coordinates * setting.tau
    gaussian = np.array([gaussian_delta(epsilon, math.sqrt(total * share)) for share in SHARES_OF_T])
    pi = 0.0
    if stop is not None and hits:
        pi = hitting_probability(stop, tau=setting.tau, keep_probability=setting.keep_probability)
    least = math.inf
    for s in GRID_S:
        exceeding = -s * setting.coordinates * SHARES_OF_T + exponent(setting, float(s), stop)
        beyond = np.exp(np.minimum(exceeding, 700)) if tail else 0.0
        least = min(least, float(np.min(gaussian + beyond)) + setting.coordinates * pi)
    return least


def proved(setting, s, stop):
    psi = log_exponential_moment(s, tau=setting.tau, keep_probability=setting.keep_probability, stop=stop)
    return setting.coordinates * psi


def cut_short(setting, s, stop):
    """The integral of psi ends at 12 + sqrt(tau): it misses the peak near p = 1."""
    root, gamma = math.sqrt(setting.tau), setting.keep_probability
    x = np.linspace(-13, 12 + root, 20_001)
    log_l = root * x - setting.tau / 2
    y = 1 - gamma + gamma * np.exp(log_l)
    logs = np.log(y) + s * (1 - (1 - gamma) / y) ** 2 - x * x / 2 - math.log(2 * math.pi) / 2
    return setting.coordinates * float(np.logaddexp.reduce(logs) + math.log(x[1] - x[0]))


def only_whole(setting, s, stop):
    """floor(K) psi without the rest of the budget."""
    return math.floor(setting.coordinates) * proved(setting, s, stop) / setting.coordinates


def one_coordinate(t, gamma, epsilon):
    """The exact divergence P over Q of one coordinate, to 30 digits."""
    with mpmath.workdps(30):
        root, z = mpmath.sqrt(t), mpmath.exp(epsilon)
        x = (mpmath.log((z - (1 - gamma)) / gamma) + mpmath.mpf(t) / 2) / root
        return float((1 - gamma - z) * mpmath.ncdf(-x) + gamma * mpmath.ncdf(root - x))


def only_whole_case():
    return Setting(0.5, 0.9, 1.9), 0.5, add(epoch([0.5, 0.45], 0.9), 0.5)


def deep_case():
    return Setting(0.25, 1e-4, 1.0), 5.0, one_coordinate(0.25, 1e-4, 5.0)


def stopped_case():
    return Setting(1.0, 0.01, 3.0), 1.0, add(epoch([1.0] * 3, 0.01), 1.0)


WRONG = {
    "integral cut short": (deep_case, {"exponent": cut_short}),
    "floor without the rest": (only_whole_case, {"exponent": only_whole}),
    "no tail term": (only_whole_case, {"exponent": proved, "tail": False}),
    "no term for the stops": (stopped_case, {"exponent": proved, "stop": least_stop(1.0), "hits": False}),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variant_claims_less_than_the_exact_divergence_and_the_theorem_does_not(name):
    case, wrong = WRONG[name]
    setting, epsilon, exact = case()
    assert exact > 0
    assert claim(setting, epsilon, **wrong) < exact * 0.99
    assert claim(setting, epsilon, proved, stop=wrong.get("stop")) >= exact


def test_the_floor_form_of_psi_is_less_than_an_even_split_needs():
    """psi is not convex in time: floor(K) psi(tau) + psi(rest) does not bound the sum of psi(t_j) of step 6."""
    tau, lam, gamma = 40.0, 2.5e-4, 0.01

    def psi(t):
        return log_exponential_moment(lam * t, tau=t, keep_probability=gamma)

    even = 2 * psi(0.75 * tau)
    assert psi(tau) + psi(0.5 * tau) < even * 0.999
    assert 1.5 * psi(tau) >= even
