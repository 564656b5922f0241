import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.linalg import hadamard as dense_hadamard

from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.updates.rotation import Rotation, hadamard, padded_dimension


@pytest.mark.parametrize(
    ("count", "kind", "padded"),
    [(1, "hadamard", 1), (1024, "hadamard", 1024), (1025, "hadamard", 2048), (1025, "identity", 1025)],
)
def test_padding_is_to_the_next_power_of_two_for_the_rotation_only(count, kind, padded):
    assert padded_dimension(count, kind) == padded


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 32, 64, 128, 512, 2048])
def test_transform_matches_the_dense_matrix(size):
    vector = np.random.default_rng(0).normal(size=size).astype("f4")
    expected = dense_hadamard(size) @ vector.astype("f8") / np.sqrt(size)
    np.testing.assert_allclose(hadamard(vector), expected, atol=3e-6)


@pytest.mark.parametrize("size", [3, 6, 1000])
def test_transform_refuses_other_sizes(size):
    with pytest.raises(SettingError, match="power of two"):
        hadamard(np.zeros(size, np.float32))


@pytest.mark.parametrize("make", [lambda n: np.eye(n)[0], np.ones, lambda n: (-1.0) ** np.arange(n)])
def test_transform_is_orthonormal_on_the_traps(make):
    """A known trap of docs/privacy.md: an un-normalised Hadamard matrix lengthens e_1 or the constant row."""
    vector = make(256).astype("f4")
    assert np.linalg.norm(hadamard(vector)) == pytest.approx(np.linalg.norm(vector), rel=1e-6)
    np.testing.assert_allclose(hadamard(hadamard(vector)), vector, atol=1e-5)


@given(st.integers(1, 700), st.sampled_from(["hadamard", "identity"]), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_rotation_keeps_norms_and_is_undone(dimension, kind, seed):
    rotation = Rotation(kind, dimension, PublicSeed(seed))
    vector = np.random.default_rng(seed).normal(size=dimension).astype("f4")
    rotated = rotation.rotate(vector)
    assert rotated.shape == (padded_dimension(dimension, kind),)
    assert np.linalg.norm(rotated) == pytest.approx(np.linalg.norm(vector), rel=1e-5)
    np.testing.assert_allclose(rotation.unrotate(rotated), vector, atol=1e-5)


def test_rotation_spreads_a_single_coordinate():
    rotation = Rotation("hadamard", 1000, PublicSeed(0))
    np.testing.assert_allclose(np.abs(rotation.rotate(np.eye(1000, dtype="f4")[3])), 1 / 32, rtol=1e-6)


def test_refuses_unknown_rotation():
    with pytest.raises(SettingError, match="hadamard, identity"):
        Rotation("fourier", 4, PublicSeed(0))
