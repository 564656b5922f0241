"""The exact epsilon by simulation: against closed forms and quadrature, and how often its interval misses."""

import math
import re

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from experiments.audit.exact import check_reach, exact_epsilon, upper_quantile
from experiments.audit.law import Law, own_mask
from fedmf.accounting import gaussian_epsilon
from fedmf.errors import SettingError


def found(law, delta, seed=0, confidence=0.999, draws=40_000):
    return exact_epsilon(law, delta, draws=draws, confidence=confidence, rng=np.random.default_rng(seed))


@pytest.mark.parametrize(("mu", "delta"), [(0.8, 0.02), (2.0, 0.1)])
def test_without_masks_it_is_the_gaussian_accountants_number(mu, delta):
    """Four coordinates, two epochs of unequal shifts: one Gaussian with mu^2 the sum of their squares."""
    shifts = np.array([[0.6, 0.8]]) * mu / 2
    exact = found(Law(*own_mask(1.0), shifts, 4), delta)
    truth = gaussian_epsilon(mu, delta)
    assert exact.low < truth < exact.high
    assert exact.high - exact.low < 0.1 * truth
    assert exact.estimate == pytest.approx(truth, rel=0.05)


def mixture_delta(epsilon, shift, gamma, add):
    """The slow twin: delta of one masked coordinate by summing over a fine grid."""
    x = np.linspace(-12, 12 + shift, 400_001)
    out = norm.pdf(x)
    into = (1 - gamma) * out + gamma * norm.pdf(x - shift)
    first, second = (into, out) if add else (out, into)
    return np.maximum(first - math.exp(epsilon) * second, 0).sum() * (x[1] - x[0])


@pytest.mark.parametrize(("shift", "gamma"), [(2.0, 0.3), (1.0, 0.9)])
def test_with_a_mask_it_is_the_larger_of_both_directions(shift, gamma):
    exact = found(Law(*own_mask(gamma), np.array([[shift]]), 1), 0.02)
    both = []
    for add in (True, False):
        at = mixture_delta(0.0, shift, gamma, add)
        both.append(
            brentq(lambda e, add=add: mixture_delta(e, shift, gamma, add) - 0.02, 0, 8) if at > 0.02 else 0
        )
    assert exact.low < max(both) < exact.high
    assert exact.high - exact.low < 0.15 * max(both)


def test_the_direction_that_gives_away_more_counts():
    """With "in" and "out" exchanged the other direction is the larger one, and nothing changes."""
    kept_in, kept_out = own_mask(0.3)
    there = found(Law(kept_in, kept_out, np.array([[2.0]]), 1), 0.02)
    back = found(Law(kept_out, kept_in, np.array([[2.0]]), 1), 0.02, seed=1)
    assert max(there.low, back.low) < min(there.high, back.high)


def test_each_direction_has_half_of_the_error():
    law, rng = Law(*own_mask(0.3), np.array([[2.0]]), 1), np.random.default_rng(0)
    losses = law.scores(40_000, present=True, rng=rng) - rng.standard_exponential(40_000)
    exact = found(law, 0.02, confidence=0.8)
    assert (exact.estimate, exact.low, exact.high) == upper_quantile(losses, 0.02, error=0.1)


def test_clients_count_equally_and_are_known():
    """Of two clients one of whom gives nothing away, delta is half of the other's: not that of a middle one."""
    half = found(Law(*own_mask(1.0), np.array([[2.0], [0.0]]), 1), 0.02)
    assert half.low < gaussian_epsilon(2.0, 0.04) < half.high


def test_a_law_that_gives_nothing_away_has_epsilon_zero():
    exact = found(Law(*own_mask(1.0), np.array([[1e-6]]), 2), 0.02)
    assert exact.low == exact.estimate == exact.high == 0


def test_the_interval_misses_no_more_often_than_stated():
    """Exponential draws, whose quantile is known: 20 % error, 3000 times; misses lie within 4 standard errors."""
    rng, tail = np.random.default_rng(1), 0.02
    truth = -math.log(tail)
    missed = np.array(
        [
            (low > truth, high < truth)
            for _, low, high in (
                upper_quantile(rng.standard_exponential(1000), tail, error=0.2) for _ in range(3000)
            )
        ]
    ).mean(axis=0)
    assert missed.max() < 0.1 + 4 * (0.1 * 0.9 / 3000) ** 0.5
    assert missed.min() > 0.03


def test_too_few_draws_for_the_tail_are_refused():
    with pytest.raises(SettingError, match=r"draws is 50, too few for a tail of 0\.001"):
        upper_quantile(np.arange(50.0), 0.001, error=0.01)


@pytest.mark.parametrize("delta", [1e-5, 1 - 1e-5])
def test_a_delta_that_the_draws_do_not_reach_is_refused_with_the_deltas_that_they_do(delta):
    """What the sentence names is reached by an interval of both directions, and what lies well beyond it is not."""
    with pytest.raises(SettingError, match=f"delta is {delta:g}") as refused:
        check_reach(delta, draws=20_000, confidence=1 - 1e-7)
    least, most = map(float, re.search(r"from (\S+) to (\S+) at", str(refused.value)).groups())
    law = Law(*own_mask(0.3), np.array([[2.0]]), 1)
    for named, beyond in ((least, 0.9 * least), (most, 1 - 0.9 * (1 - most))):
        found(law, named, confidence=1 - 1e-7, draws=20_000)
        with pytest.raises(SettingError, match="reach deltas"):
            found(law, beyond, confidence=1 - 1e-7, draws=20_000)
