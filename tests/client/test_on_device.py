"""The device's form of `privatize`: its values to rounding, its bounds after rounding, and only kept values come back."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from client.on_device import DevicePrivatizer, hadamard
from client.privatize import privatize
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates import rotation as numpy_rotation
from fedmf.updates.rotation import Rotation
from fedmf.updates.wire import Bounds

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
KEY = SecretKey(bytes(range(32)))
D = 700


def both(update, bounds, kind="hadamard", keep=0.25, device="cpu", **vectors):
    """Return the kept values of the numpy path and of the device's, and whether the device found the update finite."""
    turn = Rotation(kind, len(update), PublicSeed(3))
    ours = privatize(update, bounds=bounds, rotation=turn, keep_probability=keep, mask_key=KEY, **vectors)
    place = torch.device(device)
    privatizer = DevicePrivatizer(bounds=bounds, rotation=turn, keep_probability=keep, device=place)
    there = {name: torch.from_numpy(vector).to(place) for name, vector in vectors.items()}
    theirs, finite = privatizer.privatize(torch.from_numpy(update).to(place), mask_key=KEY, **there)
    return ours, theirs, finite


def normals(size=D, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["hadamard", "identity"])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6, 1e30])
def test_values_agree_with_the_numpy_path_to_rounding(kind, size, device):
    """Shorter than the ball, in it, beyond it, and so long that a float32 norm would overflow."""
    bounds = Bounds(l2_norm=1.0, linf_norm=0.06)
    ours, theirs, finite = both(normals(scale=size), bounds, kind, device=device)
    assert finite
    assert theirs.dtype == ours.dtype == np.float32
    tolerance = 2e-6 * float(np.abs(ours).max())  # 10 stages of the rotation and two products, 2^-24 each
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=tolerance)
    assert np.abs(ours).max() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_public_scale_is_applied_first(device):
    scale = np.linspace(0, 3, D, dtype=np.float32)
    ours, theirs, _ = both(normals(), Bounds(l2_norm=1.0, linf_norm=0.2), scale=scale, device=device)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scaled", [False, True])
def test_what_was_sent_is_subtracted_before_anything_else(scaled, device):
    """Far from zero, so that a clip of the wrong vector would show."""
    bounds, sent = Bounds(l2_norm=1.0, linf_norm=0.2), normals(scale=40, seed=1)
    more = {"scale": np.linspace(0, 3, D, dtype=np.float32)} if scaled else {}
    ours, theirs, _ = both(sent + normals(), bounds, device=device, start=sent, **more)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)
    direct, _, _ = both(normals(), bounds, **more)
    np.testing.assert_allclose(theirs, direct, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("given", ["start", "scale"])
def test_a_start_or_a_scale_that_is_not_finite_gives_zero_too(given, device):
    bad = np.ones(D, np.float32)
    bad[7] = np.inf
    ours, theirs, finite = both(normals(), Bounds(l2_norm=1.0, linf_norm=0.2), device=device, **{given: bad})
    assert not finite
    np.testing.assert_array_equal(theirs, np.zeros_like(ours))


@pytest.mark.parametrize("device", DEVICES)
def test_int8_levels_are_those_of_the_numpy_path_but_for_rounding(device):
    """The same keyed draws; a value within rounding of its threshold may take the next level."""
    bounds = Bounds(l2_norm=1.0, linf_norm=0.2, value_type="int8")
    ours, theirs, _ = both(normals(), bounds, device=device)
    assert theirs.dtype == ours.dtype == np.int8
    assert np.count_nonzero(theirs != ours) <= 2
    assert np.abs(theirs.astype(int) - ours).max() <= 1


@pytest.mark.parametrize("device", DEVICES)
def test_without_bounds_the_values_are_those_of_the_rotation(device):
    ours, theirs, _ = both(normals(), Bounds(l2_norm=None, linf_norm=None), device=device)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bounded", [True, False])
def test_an_update_that_is_not_finite_counts_as_zero_and_is_said(bad, bounded, device):
    update = normals()
    update[5] = bad
    bounds = Bounds(l2_norm=1.0, linf_norm=0.1) if bounded else Bounds(l2_norm=None, linf_norm=None)
    ours, theirs, finite = both(update, bounds, device=device)
    assert not finite
    np.testing.assert_array_equal(theirs, np.zeros_like(ours))


@given(
    st.integers(0, 1000),
    st.sampled_from([1e-30, 1e-3, 1.0, 3.0, 1e20, 1e38]),
    st.floats(1e-3, 1e3),
    st.floats(0.01, 1.0),
    st.sampled_from(["spread", "one coordinate", "few", "equal"]),
)
def test_bounds_hold_after_rounding_on_every_coordinate(seed, size, l2, share, shape):
    """Keep probability 1: all of the vector is looked at, in float64, at the bound itself and not around it."""
    rng = np.random.default_rng(seed)
    update = {
        "spread": rng.standard_normal(D),
        "one coordinate": np.eye(1, D, seed % D)[0],
        "few": rng.standard_normal(D) * (rng.random(D) < 0.01),
        "equal": np.ones(D),
    }[shape] * size
    with np.errstate(over="ignore"):
        update = update.astype(np.float32)
    linf = l2 * share
    for kind in ("hadamard", "identity"):
        _, values, _ = both(update, Bounds(l2_norm=l2, linf_norm=linf), kind, keep=1.0)
        wide = values.astype(np.float64)
        assert np.sqrt(wide @ wide) <= l2
        assert np.abs(wide).max() <= linf


@pytest.mark.parametrize("wrong", [1.001, 1e30, np.nan, np.inf])
def test_bounds_hold_whatever_the_rotation_gives(wrong, monkeypatch):
    """A thousandth is what products in a reduced precision would make of it: the clips after it do not trust it."""

    def rotate(vector):
        turned = hadamard(vector)
        turned[: 1 if wrong > 2 or np.isnan(wrong) else None] *= wrong
        return turned

    monkeypatch.setattr("client.on_device.hadamard", rotate)
    _, values, _ = both(normals(scale=9.0), Bounds(l2_norm=1.0, linf_norm=1.0), keep=1.0)
    wide = values.astype(np.float64)
    assert 0.99 < np.sqrt(wide @ wide) <= 1.0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [1, 2, 4, 1 << 11])
def test_the_transform_is_that_of_numpy_and_leaves_its_argument(size, device):
    vector = normals(size)
    given_vector = torch.from_numpy(vector.copy()).to(device)
    turned = hadamard(given_vector).cpu().numpy()
    np.testing.assert_allclose(turned, numpy_rotation.hadamard(vector.copy()), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(given_vector.cpu().numpy(), vector)


@pytest.mark.parametrize("size", [1e37, 1.2e37, 1.5e37, 2e37, 3e37])
def test_a_hopelessly_long_update_keeps_its_direction(size):
    """The factor that brings it into the ball is below the smallest normal float32."""
    ours, theirs, finite = both(normals(scale=size), Bounds(l2_norm=1e-4, linf_norm=1e-4))
    assert finite
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-6 * float(np.abs(ours).max()))


def test_the_update_is_left_as_it_is():
    update = torch.from_numpy(normals(scale=100))
    before = update.clone()
    turn = Rotation("identity", D, PublicSeed(3))
    bounds = Bounds(l2_norm=1.0, linf_norm=0.1)
    place = torch.device("cpu")
    DevicePrivatizer(bounds=bounds, rotation=turn, keep_probability=0.5, device=place).privatize(
        update, mask_key=KEY, scale=torch.full((D,), 0.5)
    )
    assert torch.equal(update, before)


@pytest.mark.parametrize("device", DEVICES)
def test_only_kept_values_come_back_to_the_host(device, monkeypatch):
    """And one number more, which says whether training stayed finite."""
    moved, real = [], torch.Tensor.cpu

    def cpu(tensor):
        moved.append(tensor.numel())
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    _, theirs, _ = both(normals(), Bounds(l2_norm=1.0, linf_norm=0.1), keep=0.05, device=device)
    assert moved == [len(theirs) + 1]
    assert len(theirs) < 100
