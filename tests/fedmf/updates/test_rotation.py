"""The rotation keeps norms and is undone; its transform agrees with a slow twin, compiled or not."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.updates.rotation import Rotation, hadamard, padded_dimension
from oracles import both_forms, needs_numba


def test_the_rotation_pads_to_the_next_power_of_two_and_nothing_else_does():
    for count, padded in ((1, 1), (1024, 1024), (1025, 2048)):
        assert padded_dimension(count, "hadamard") == padded
        assert padded_dimension(count, "identity") == count
    with pytest.raises(SettingError, match="hadamard, identity"):
        Rotation("fourier", 4, PublicSeed(0))


@pytest.mark.parametrize("make", [lambda n: np.eye(n)[0], np.ones, lambda n: (-1.0) ** np.arange(n)])
def test_transform_is_orthonormal_on_the_traps(make):
    """A known trap of docs/privacy.md: an un-normalised Hadamard matrix lengthens e_1 or the constant row."""
    vector = make(256).astype("f4")
    assert np.linalg.norm(hadamard(vector)) == pytest.approx(np.linalg.norm(vector), rel=1e-6)
    np.testing.assert_allclose(hadamard(hadamard(vector)), vector, atol=1e-5)


@given(st.integers(1, 700), st.sampled_from(["hadamard", "identity"]), st.integers(0, 1000))
@settings(max_examples=50)
def test_rotation_keeps_norms_and_is_undone(dimension, kind, seed):
    rotation = Rotation(kind, dimension, PublicSeed(seed))
    vector = np.random.default_rng(seed).normal(size=dimension).astype("f4")
    for turned in both_forms(lambda: rotation.turn(vector)):
        assert turned.values.shape == (padded_dimension(dimension, kind),)
        assert np.linalg.norm(turned.values) == pytest.approx(np.linalg.norm(vector), rel=1e-5)
        assert turned.norm == pytest.approx(np.linalg.norm(vector), rel=1e-6)
        np.testing.assert_allclose(rotation.unrotate(turned.values), vector, atol=1e-5)


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
