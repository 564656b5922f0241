"""Compiled loops over an update beside plain numpy: masks are equal bit for bit, all else agrees to rounding."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf import compiling
from fedmf.randomness import SecretKey
from fedmf.updates import masks
from fedmf.updates.masks import kept_coordinates
from fedmf.updates.rotation import hadamard
from without_numba import both_forms, needs_numba

KEY = SecretKey.reproducible(5)


@needs_numba
@pytest.mark.parametrize("gamma", [1.0, 0.999, 0.5, 0.1, 0.01, 1e-3, 1e-5, 2.0**-32])
@pytest.mark.parametrize("dimension", [0, 1, 2, 3, 15, 1024, 1025, 40_000, 1 << 20])
def test_compiled_masks_are_those_of_numpy_bit_for_bit(dimension, gamma):
    for step in range(6):
        key = KEY.mask_key("m", step)
        plain, quick = both_forms(lambda key=key: kept_coordinates(key, dimension, gamma))
        assert quick.dtype == plain.dtype
        np.testing.assert_array_equal(quick, plain)


@needs_numba
@given(st.integers(0, 3000), st.floats(1e-4, 1.0), st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_compiled_masks_are_those_of_numpy_however_many_words_are_drawn_at_once(
    dimension, gamma, seed, words
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masks, "_draws_for", lambda coordinates, keep_probability: words)
        key = SecretKey.reproducible(seed)
        plain, quick = both_forms(lambda: kept_coordinates(key, dimension, gamma))
        np.testing.assert_array_equal(quick, plain)


@needs_numba
@pytest.mark.parametrize("gamma", [2.0**-32, 1e-5, 0.01, 0.3, 0.5, 0.999])
def test_compiled_masks_read_words_at_the_edges_of_the_table_as_numpy_does(gamma):
    """Where leading bits do not tell the gap, below, at and above each edge, and the largest and smallest words."""
    table = masks.gap_table(gamma)
    words = np.concatenate([table - np.uint64(1), table, np.array([0, 2**64 - 1], np.uint64)])
    words = np.random.default_rng(0).permutation(np.concatenate([words, words]))
    for dimension in (1 << 20, 5000, 1):
        plain = masks._positions_in_numpy(words, gamma, -1, dimension)
        quick = masks._positions_compiled(compiling.loops(), words, gamma, -1, dimension)
        np.testing.assert_array_equal(quick[1], plain[1])
        assert (quick[0] == plain[0]) or min(quick[0], plain[0]) >= dimension


def butterflies(vector):
    """The slow twin: one bit of a coordinate after another, in float64."""
    done, stride = vector.astype("f8"), 1
    while stride < done.size:
        pairs = done.reshape(-1, 2, stride)
        done = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        stride *= 2
    return done / done.size**0.5


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("bits", [*range(19), 20, 21])
def test_compiled_and_plain_transforms_agree_with_the_slow_twin_to_rounding(bits, dtype):
    rng = np.random.default_rng(bits)
    vector = (rng.normal(size=1 << bits) * 10.0 ** rng.uniform(-6, 6, 1 << bits)).astype(dtype)
    given, expected = vector.copy(), butterflies(vector)
    for found in both_forms(lambda: hadamard(vector)):
        assert found.dtype == vector.dtype
        unit = np.finfo(dtype).eps / 2
        assert np.linalg.norm(found - expected) <= 2 * bits * unit * np.linalg.norm(expected)
    np.testing.assert_array_equal(vector, given)  # left alone


@needs_numba
@pytest.mark.parametrize("kind", ["read-only", "strided", "big-endian", "float16"])
def test_compiled_transform_takes_whatever_numpy_takes(kind):
    vector = np.random.default_rng(0).normal(size=4096).astype(">f4" if kind == "big-endian" else "f4")
    if kind == "read-only":
        vector.setflags(write=False)
    if kind == "strided":
        vector = np.repeat(vector, 2)[::2]
    if kind == "float16":
        vector = vector.astype(np.float16)
    plain, quick = both_forms(lambda: hadamard(vector))
    assert quick.dtype == plain.dtype
    np.testing.assert_allclose(quick, plain, atol=1e-5)


@needs_numba
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(
    "bad", [[np.nan], [np.inf], [-np.inf], [np.inf, np.inf], [np.inf, -np.inf], [np.nan, np.inf]], ids=str
)
def test_what_is_not_finite_spoils_every_coordinate_compiled_or_not(bad, dtype):
    vector = np.random.default_rng(0).normal(size=1 << 13).astype(dtype)
    vector[[700, 5000][: len(bad)]] = bad
    with np.errstate(invalid="ignore"):
        for found in both_forms(lambda: hadamard(vector)):
            assert not np.isfinite(found).any()


@needs_numba
@given(st.integers(0, 13), st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_compiled_transform_is_its_own_inverse_and_the_same_bits_each_time(bits, seed):
    vector = np.random.default_rng(seed).normal(size=1 << bits).astype("f4")
    once = hadamard(vector)
    np.testing.assert_array_equal(hadamard(vector.copy()), once)
    np.testing.assert_allclose(hadamard(once), vector, atol=1e-5)
