import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from fedmf.randomness import PublicSeed
from fedmf.updates.clipping import clip_l2, clip_linf, default_linf_bound, l2_norm, zero_if_not_finite
from fedmf.updates.rotation import Rotation

any_float32 = hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32))


def as_given_or_zero(vector):
    """What the look for entries that are not finite leaves of a vector that is not rotated."""
    return zero_if_not_finite(Rotation("identity", vector.size, PublicSeed(0)).turn(vector)).values


@given(any_float32, st.floats(1e-6, 1e6))
@settings(max_examples=300, deadline=None)
def test_whatever_comes_in_leaves_within_both_bounds(vector, bound):
    """Known traps of docs/privacy.md: NaN, inf, and the float32 norm of 1e30 that overflows."""
    vector = as_given_or_zero(vector)
    clipped = clip_l2(vector, bound)
    assert np.isfinite(clipped).all()
    assert np.linalg.norm(clipped.astype("f8")) <= bound
    boxed = clip_linf(vector, bound)
    assert np.abs(boxed.astype("f8")).max() <= bound


def test_large_finite_vectors_are_scaled_not_lost():
    clipped = clip_l2(np.full(4, 1e30, np.float32), 1.0)
    np.testing.assert_allclose(clipped, 0.5, rtol=1e-5)


def test_short_vectors_pass_unchanged():
    vector = np.array([0.3, -0.4], np.float32)
    assert clip_l2(vector, 1.0) is vector
    np.testing.assert_array_equal(clip_linf(vector, 1.0), vector)


def test_one_bad_entry_zeroes_the_vector():
    for bad in (np.nan, np.inf, -np.inf):
        assert not as_given_or_zero(np.array([1, bad, 2], np.float32)).any()
    assert as_given_or_zero(np.array([1, 3e38, 2], np.float32))[1] == np.float32(3e38)


def test_norm_is_taken_in_float64():
    assert l2_norm(np.full(4, 1e30, np.float32)) == pytest.approx(2e30)


def test_default_linf_bound_is_the_formula_and_never_above_the_l2_bound():
    assert default_linf_bound(1.0, 2**20, 100) == pytest.approx(0.005935076377073027, rel=1e-12)
    assert default_linf_bound(2.0, 4, 100) == 2.0


@pytest.mark.parametrize("bound", [1e-20, 1e-12, 1e-6, 3e-5, 1e-3, 1.0])
@pytest.mark.parametrize("largest", [3e38, 2e37, 1e36])
def test_the_longest_vectors_end_at_the_bound_however_small_it_is(bound, largest):
    """The factor is then no normal float32: it would be lost, or rounded up by more than the margin."""
    vector = largest * np.random.default_rng(0).uniform(-1, 1, 1000)
    clipped = clip_l2(vector.astype("f4"), bound)
    assert clipped.dtype == np.float32
    assert bound * (1 - 2.0**-19) < np.linalg.norm(clipped.astype("f8")) <= bound
