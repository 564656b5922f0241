"""From the sum to the next model, compiled and in numpy: the same bits, whatever the numbers."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.mechanisms.noise import NoiseRow, released
from server.aggregation import FixedPoint
from server.optimizer import Sgd
from without_numba import both_forms

# Zeros of both signs, the smallest and the largest subnormal, the smallest normal, 1 and its neighbours, huge, not finite.
SPECIAL = np.array([0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 0.99999994, 1.0, 1.0000001, 0.1, 3e38, np.inf])
SPECIAL = np.concatenate([SPECIAL, -SPECIAL, [np.nan]]).astype("f4")
SIZES = st.sampled_from([0, 1, 7, 1023, 1024, 1025, 3000])
NUMBERS = [0.0, 0.3, 1.0, 1e-45, 1e-30, 1e38, np.float64(0.3), np.float64(1e-30), 1]


def same_bits(one, other):
    """Whether two arrays have the same type and bits; of what is not a number only that it is none."""
    integers = np.dtype(f"u{one.dtype.itemsize}")
    same = one.view(integers) == other.view(integers)
    return one.dtype == other.dtype and bool((same | (np.isnan(one) & np.isnan(other))).all())


def both(run):
    """What `run` gives in numpy, and compiled."""
    with np.errstate(all="ignore"):
        return both_forms(run)


def drawn(seed, size, dtype="f4"):
    """Numbers of all magnitudes, every fourth one of them special."""
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        values = (rng.normal(size=size) * 10.0 ** rng.uniform(-46, 38, size)).astype(dtype)
    return np.where(rng.random(size) < 0.25, rng.choice(SPECIAL, size), values).astype(dtype)


@given(st.integers(0, 2**32), SIZES, st.booleans())
@settings(max_examples=50, deadline=None)
def test_the_sum_becomes_the_same_real_numbers_compiled(seed, size, donate):
    grid = FixedPoint.fit(0.25, 3)
    total = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, size, np.int64, endpoint=True)
    total >>= np.random.default_rng(seed).integers(0, 64, size)
    plain, quick = both(lambda: grid.value(total.copy(), donate=donate))
    assert same_bits(plain, quick)
    given_away = total.copy()
    assert np.shares_memory(grid.value(given_away, donate=donate), given_away) == (donate and size > 0)
    assert donate or (given_away == total).all()


@given(st.integers(0, 2**32), SIZES, st.sampled_from(NUMBERS), st.sampled_from([1.0, 0.3, -2.5]))
@settings(max_examples=100, deadline=None)
def test_noise_is_added_to_the_same_bits_compiled(seed, size, sigma, own):
    fresh = np.random.default_rng(seed).integers(-(2**47), 2**47, size) + 0.5
    row = NoiseRow(drawn(seed + 1, size, "f8") * 2**44, own, fresh)
    for dtype in (np.float32, np.float64):
        plain, quick = both(lambda dtype=dtype: released(drawn(seed, size, "f8"), row, sigma, dtype))
        assert quick.dtype == dtype
        assert same_bits(plain, quick)


@given(st.data(), st.integers(0, 2**32), SIZES, st.booleans())
@settings(max_examples=200, deadline=None)
def test_sgd_takes_the_same_step_compiled(data, seed, size, nesterov):
    rate = data.draw(st.sampled_from([*NUMBERS[1:], 3e38]))
    momentum = data.draw(st.sampled_from([0.9, 1e-45, np.float64(0.9)] if nesterov else [0, 0.0, 0.9, 1e-45]))
    decay = data.draw(st.sampled_from([0.0, 0.5 / rate, 1e-60 / rate, np.float64(1e-3) / rate]))
    sgd = Sgd(rate, momentum, "cosine", nesterov, min(decay, 1e300))
    model, velocity, mean = (drawn(seed + i, size) for i in range(3))
    plain, quick = both(lambda: sgd.step(model, {"velocity": velocity}, mean, progress=0.25))
    assert same_bits(plain[0], quick[0])
    assert same_bits(plain[1]["velocity"], quick[1]["velocity"])


def test_sgd_takes_the_same_step_compiled_where_special_numbers_meet():
    """Each triple of them: a -0.0 that decays, a sum that overflows, infinities that cancel, subnormal products."""
    model, velocity, mean = np.array(list(itertools.product(SPECIAL, repeat=3)), "f4").T.copy()
    for nesterov, decay in itertools.product([False, True], [0.0, 0.5, 1e-60]):
        sgd = Sgd(0.7, 0.9, nesterov=nesterov, weight_decay=decay)
        plain, quick = both(lambda sgd=sgd: sgd.step(model, {"velocity": velocity}, mean))
        assert same_bits(plain[0], quick[0])
        assert same_bits(plain[1]["velocity"], quick[1]["velocity"])


def test_compiled_loops_report_vectors_of_another_length():
    """They would read beyond its end."""
    short, long = np.zeros(3, np.float32), np.zeros(4, np.float32)
    for model, velocity, mean in ((long, short, long), (long, long, short)):
        with pytest.raises(ValueError):
            Sgd(0.1, 0.9).step(model, {"velocity": velocity}, mean)
    with pytest.raises(ValueError):
        released(np.zeros(3), NoiseRow(np.zeros(4), 1.0, np.full(4, 0.5)), 1.0, np.float32)
