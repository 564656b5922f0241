"""What a client makes of its update, in numpy, compiled and on a device: docs/theory.md, section 3, on vectors made to break it.

Norms are taken without rounding: the square of a float32 is exact in float64, and `math.fsum` adds exactly.
"""

import itertools
import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from scipy.linalg import hadamard as dense_hadamard

from client.privatize import Kept, hadamard, privatize, privatize_there
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.updates import vectors, wire
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.rotation import Rotation
from fedmf.updates.vectors import TAU, dequantize, level_step, round_to_levels
from fedmf.updates.wire import Bounds
from oracles import needs_numba, without_numba
from plans import KEY, random_vector, small_plan

COMPILED = pytest.param("compiled", marks=needs_numba)
FORMS = ["numpy", COMPILED, "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
HOST = pytest.mark.parametrize("form", ["numpy", COMPILED], indirect=True)
DEVICE = pytest.mark.parametrize("form", FORMS[2:], indirect=True)
PROVED = {"numpy": 521 * 2.0**-24, "compiled": 35 * 2.0**-24}  # by how much a rotation may lengthen
SIZES = [1, 2, 3, 50, 64, 1000, 1024, 5000, 40_000, (1 << 17) + 3]
KINDS = ["hadamard", "identity"]
SEED = PublicSeed(3)


@pytest.fixture(params=FORMS)
def form(request):
    """Where and how updates are privatized."""
    with without_numba() if request.param == "numpy" else nullcontext():
        yield request.param


def kept(update, bounds, rotation, keep_probability=1.0, form="host", **more) -> Kept:
    """What leaves the client."""
    plan = ClientPlan(bounds, rotation, keep_probability, SEED)
    update = np.asarray(update, np.float32)
    if form not in ("cpu", "cuda"):
        return privatize(update, plan, KEY, **more)
    place = torch.device(form)
    there = {name: torch.from_numpy(np.array(vector)).to(place) for name, vector in more.items()}
    return privatize_there(torch.from_numpy(update).to(place), plan, KEY, **there)


def send(*given, **more):
    return kept(*given, **more).values


def rotated(size, kind="hadamard"):
    return Rotation(kind, size, SEED)


def normals(size=700, scale=1.0, seed=0):
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype("f4")


def square(vector):
    """The squared Euclidean norm, exact."""
    wide = np.asarray(vector, np.float64)
    return Fraction(math.fsum(wide * wide))


def adversaries(size, rotation, seed=0):
    """Vectors (size,) float32 that are hard to bound, by name."""
    rng = np.random.default_rng(seed)
    signs = rotation.unrotate(np.eye(1, rotation.padded, dtype="f4")[0])
    signs = np.sign(signs) if rotation.kind == "hadamard" else np.ones(size, "f4")
    odd = 1 + (2 * rng.integers(0, 1 << 22, size) + 1) * 2.0**-23  # every sum of two has to be rounded
    found = {
        "normal": rng.normal(size=size),
        "all on one coordinate once rotated": signs,
        "there, with low bits set": signs * odd,
        "every low bit set": signs * (2 - 2.0**-23),
        "half of it just above a tie": signs * np.where(np.arange(size) % 2, 1 + 2.0**-23, 2.0**-24 * 3),
        "one coordinate": np.eye(1, size)[0],
        "zero": np.zeros(size),
        "of all sizes": rng.normal(size=size) * 10.0 ** rng.uniform(-30, 0, size),
        "denormal": rng.integers(-9, 9, size) * 2.0**-149,
        "denormal and one": np.where(np.arange(size) == size // 2, 1, 2.0**-140),
    }
    if size > 1 << 17:  # exact sums take their time
        found = {name: found[name] for name in ("there, with low bits set", "of all sizes")}
    return {name: np.asarray(vector, np.float32) for name, vector in found.items()}


def assert_within(sent, bounds):
    """The whole vector, as it is kept with probability 1, is within both bounds in exact arithmetic."""
    assert np.isfinite(sent).all()
    assert square(sent) <= Fraction(bounds.radius) ** 2
    assert Fraction(float(np.abs(sent).max())) <= Fraction(bounds.linf_norm)


@pytest.mark.parametrize(
    ("size", "kind"),
    [
        *itertools.product(SIZES, KINDS),
        *[pytest.param(1 << 20, kind, marks=pytest.mark.slow) for kind in KINDS],  # 131075 tells as much
    ],
)
def test_whole_vector_and_kept_values_are_within_the_bounds_in_exact_arithmetic(size, kind, form):
    rotation = rotated(size, kind)
    for name, vector in adversaries(size, rotation).items():
        for l2_norm, share, longer in ((1.0, 1.0, 3.0), (0.1, 0.02, 0.9999), (7e-12, 1.0, 1e9)):
            bounds = Bounds(l2_norm, l2_norm * share)
            length = math.sqrt(square(vector)) or 1.0
            update = (vector.astype("f8") * (longer * l2_norm / length)).astype("f4")
            whole = send(update, bounds, rotation, form=form)
            assert_within(whole, bounds)
            part = send(update, bounds, rotation, 0.3, form=form)
            np.testing.assert_array_equal(part, whole[wire.coordinates(KEY, rotation.padded, 0.3)], name)
            if share == 1 and longer > 1 and length > 1e-30 and vector.any():  # only the margin is lost
                assert square(whole) > Fraction(l2_norm * (1 - 2.0**-13)) ** 2


@HOST
@pytest.mark.parametrize(
    "size", [2, 4, 8, 64, 1024, 1 << 13, 1 << 17, pytest.param(1 << 20, marks=pytest.mark.slow)]
)
def test_no_vector_is_lengthened_by_more_than_is_proved(size, form):
    rotation = rotated(size)
    for seed in range(2 if size > 1 << 14 else 20):
        for name, vector in adversaries(size, rotation, seed).items():
            if name not in ("denormal", "denormal and one", "zero"):
                turned = rotation.turn(vector)
                ratio = float(square(turned.values) / square(vector)) ** 0.5
                assert 1 - PROVED[form] <= ratio <= 1 + PROVED[form], name
                assert turned.norm == pytest.approx(float(square(vector)) ** 0.5, rel=2.0**-25)


@HOST
def test_without_the_margin_the_bound_would_be_exceeded(form, monkeypatch):
    """So the margin is needed: half of all vectors end up longer than the bound by a few roundings."""
    bounds, rotation = Bounds(1.0, 1.0), rotated(4096)
    updates = [vector * 2 for seed in range(5) for vector in adversaries(4096, rotation, seed).values()]
    assert all(square(send(update, bounds, rotation)) <= 1 for update in updates)
    monkeypatch.setattr(vectors, "ROTATION_MARGIN", 0.0)
    assert any(square(send(update, bounds, rotation)) > 1 for update in updates)


@pytest.mark.parametrize("largest", [3.4e38, 2e37, 1e31, 1e30, 1e20, 1e-30, 1e-44])
@pytest.mark.parametrize("l2_norm", [1e-20, 1e-6, 1.0, 1e20])
def test_huge_and_tiny_updates_end_within_the_bounds(l2_norm, largest, form):
    rotation = rotated(5000)
    for scale in (np.ones(5000), np.random.default_rng(0).uniform(-1, 1, 5000)):
        bounds = Bounds(l2_norm, max(l2_norm / 8, 1e-20))
        update = (largest * scale).astype("f4")
        sent = send(update, bounds, rotation, form=form)
        assert_within(sent, bounds)
        if largest > l2_norm:
            assert sent.any()
            spread = send(update, Bounds(l2_norm, l2_norm), rotation, form=form)
            assert square(spread) > Fraction(l2_norm * (1 - 2.0**-13)) ** 2


@pytest.mark.parametrize("value_type", ["float32", "int8", "unbounded"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["update", "start", "scale", "difference"])
def test_what_is_not_finite_becomes_the_zero_vector_and_is_told(where, bad, value_type, form):
    rotation = rotated(5000)
    bounds = Bounds(None, None) if value_type == "unbounded" else Bounds(1.0, 0.1, value_type)
    arrays = {name: np.full(5000, value, "f4") for name, value in (("update", 1), ("start", 2), ("scale", 1))}
    arrays = {name: array for name, array in arrays.items() if name != "scale" or where == "scale"}
    sent = kept(arrays.pop("update"), bounds, rotation, form=form, **arrays)
    assert sent.is_finite
    assert sent.values.any()
    update = np.ones(5000, "f4")
    if where == "difference":
        update[:], arrays["start"][:] = 3e38, -3e38  # whose difference overflows
    else:
        (arrays | {"update": update})[where][4321] = bad
    sent = kept(update, bounds, rotation, form=form, **arrays)
    assert not sent.is_finite
    assert not sent.values.any()


@pytest.mark.parametrize("size", [1, 700, 1024, 1025, 40_000])
def test_what_was_sent_is_subtracted_and_a_scale_applied_before_anything_else(size, form):
    """On the host bit for bit, whatever arrays are given: read-only ones, or views with a stride."""
    rng, rotation, bounds = np.random.default_rng(0), rotated(size), Bounds(0.5, 0.2)
    trained, start, scale = rng.normal(size=(3, 2 * size)).astype("f4")[:, ::2]
    start.setflags(write=False)
    before, tolerance = trained.copy(), 2e-6 if form in ("cpu", "cuda") else 0
    for more, by_hand in (({}, trained - start), ({"scale": scale}, (trained - start) * scale)):
        found = send(trained, bounds, rotation, 0.5, form, start=start, **more)
        np.testing.assert_allclose(found, send(by_hand, bounds, rotation, 0.5, form), rtol=0, atol=tolerance)
    unbounded = send(trained, Bounds(None, None), rotation, form=form, start=start)
    length = np.linalg.norm((trained - start).astype("f8"))
    np.testing.assert_allclose(np.linalg.norm(unbounded), length, rtol=1e-5)
    np.testing.assert_array_equal(trained, before)


@pytest.mark.parametrize(("size", "length", "share"), [(50, 0.5, 0.15), (50, 7.0, 0.15), (3000, 9.0, 0.04)])
def test_client_clips_rotates_and_clips_in_this_order(size, length, share, form):
    """A slow twin in dense float64. At length 7 both clips bite; every other order, and leaving one out, differs."""
    rotation = rotated(size)
    for seed in range(3):
        update = random_vector(size, length, seed)
        padded = np.zeros(rotation.padded)
        padded[:size] = update * min(1, (1 - 2.0**-14) / length)
        padded *= SEED.signs(rotation.padded, "rotation")
        slow = np.clip(dense_hadamard(rotation.padded) @ padded / rotation.padded**0.5, -share, share)
        np.testing.assert_allclose(send(update, Bounds(1.0, share), rotation, form=form), slow, atol=2e-6)


@given(
    hnp.arrays(np.float32, st.integers(1, 3000), elements=st.floats(width=32)),
    st.sampled_from(["float32", "int8"]),
)
@settings(max_examples=150)
def test_client_itself_bounds_the_whole_vector_whatever_training_returned(update, value_type):
    bounds, rotation = Bounds(1.0, 0.3, value_type), rotated(update.size)
    found = {form: send(update, bounds, rotation, form=form) for form in ("host", "cpu")}
    for sent in found.values():
        assert_within(dequantize(sent, 0.3) if value_type == "int8" else sent, bounds)
    np.testing.assert_allclose(found["cpu"], found["host"], atol=2.0**-17)


def int8_bounds():
    """Bounds over all sizes that are allowed, decimal ones and float32 ones, and the numbers next to those."""
    rng = np.random.default_rng(5)
    drawn = 10.0 ** rng.uniform(-19.9, 19.6, 400)
    rounded = [float(np.float32(bound)) for bound in drawn[:100]]
    near = [math.nextafter(bound, to) for bound in rounded for to in (0, math.inf)]
    decimal = [count / 1000 for count in range(1, 400)]
    lower = [
        182.10418701171875,
        220.46231079101562,
    ]  # the float32 next to their 127th is below the largest step
    return [*lower, 1e-20, 5e19, 0.3, 0.06, 1.0, *decimal, *drawn.tolist(), *rounded, *near]


def test_int8_levels_are_within_both_bounds_in_exact_arithmetic():
    """Level 127 is what a client sends that is at the bound; its step is the largest of which no level exceeds the bound."""
    identity, levels = rotated(3, "identity"), np.arange(-127, 128, dtype=np.int8)
    for linf in int8_bounds():
        bounds = Bounds(2 * linf, linf, "int8")
        sent = send(np.full(3, min(linf * 9, 3e38)), bounds, identity)
        assert sent.min() == 127
        assert_within(dequantize(sent, linf), bounds)
        assert_within(dequantize(-sent, linf), bounds)
        np.testing.assert_array_equal(wire.decode(sent.tobytes(), bounds, kept=3), dequantize(sent, linf))
        values = dequantize(levels, linf)
        assert max(Fraction(float(value)) for value in np.abs(values)) <= Fraction(linf)
        larger = np.nextafter(level_step(linf), np.float32(np.inf))
        assert Fraction(float(np.float32(127) * larger)) > Fraction(linf)
        assert Fraction(float(values[-1])) > Fraction(linf) * Fraction(1 - 2.0**-22)


def test_an_int8_draw_whose_computed_norm_is_the_radius_is_not_taken_as_norms_round():
    """Of levels whose exact norm is just above the radius, and the computed one the radius itself."""
    rng, found = np.random.default_rng(2), 0
    for _ in range(300):
        values = dequantize(rng.integers(90, 127, 3).astype(np.int8), 1.0)
        l2_norm = vectors.l2_norm(values) / (1 + TAU)
        bounds = Bounds(l2_norm, 1.0, "int8")
        found += square(values) > Fraction(bounds.radius) ** 2 and vectors.l2_norm(values) <= bounds.radius
        levels = round_to_levels(values * np.float32(1 - 1e-4), l2_bound=l2_norm, linf_bound=1.0, key=KEY)
        assert square(dequantize(levels, 1.0)) <= Fraction(bounds.radius) ** 2
    assert found > 30  # so that without a margin some of them would be taken


def masked(plan, update, key=KEY):
    return privatize(update, plan.client_plan, key).values


def receive(plan, values, key=KEY):
    """The server's side: the masked rotated vector, (D,)."""
    coordinates = wire.coordinates(key, plan.rotation.padded, plan.compression.keep_probability)
    total = np.zeros(plan.rotation.padded, np.float32)
    total[coordinates] = wire.decode(wire.to_bytes(values), plan.bounds, kept=len(coordinates))
    return total


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_decode_is_unbiased_over_masks(value_type):
    """Trap: gamma used twice or never. The mean of sum / gamma over masks is the bounded update."""
    plan = small_plan(dimension=64, keep_probability=0.25, linf_norm=1.0, value_type=value_type)
    update = random_vector(64, 0.9)
    keys = [KEY.mask_key("0", step) for step in range(4000)]
    mean = np.mean([receive(plan, masked(plan, update, key), key) for key in keys], axis=0) / 0.25
    turned = plan.rotation.turn(update).values
    standard_error = np.abs(turned) * np.sqrt(0.75 / 0.25 / 4000) + 1 / 127 / np.sqrt(0.25 * 4000)
    assert (np.abs(mean - turned) < 5 * standard_error).all()
    assert not (np.abs(mean * 0.25 - turned) < 5 * standard_error).all()


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_kept_values_are_those_of_the_whole_vector(value_type):
    """So the bounds, and the rounding, are of the whole vector: the server could not enforce them."""
    everything, part = (small_plan(keep_probability=gamma, value_type=value_type) for gamma in (1.0, 0.3))
    update = random_vector(50, 2.0)
    np.testing.assert_array_equal(
        masked(part, update), masked(everything, update)[wire.coordinates(KEY, 64, 0.3)]
    )


def test_rounding_does_not_depend_on_the_mask():
    """What a coordinate is rounded to must not follow from whether it is kept."""
    plan = small_plan(dimension=64, keep_probability=1.0, value_type="int8", linf_norm=0.5)
    update = random_vector(64, 0.9)
    keys = [KEY.mask_key("r", step) for step in range(600)]
    rounded_up = np.array([masked(plan, update, key) for key in keys], float)
    in_mask = np.zeros_like(rounded_up)
    for row, key in zip(in_mask, keys, strict=True):
        row[wire.coordinates(key, 64, 0.5)] = 1
    rounded_up -= rounded_up.mean(axis=0)
    varies = rounded_up.std(axis=0) > 0.1
    correlation = (rounded_up * (in_mask - 0.5))[:, varies].mean() / (rounded_up[:, varies].std() * 0.5)
    assert abs(correlation) < 5 / np.sqrt(600 * varies.sum())


@DEVICE
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e30, 1.2e37, 3e37])
@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_values_of_a_device_agree_with_those_of_the_host_to_rounding(value_type, scale, form):
    """Shorter than the ball, beyond it, so long that a float32 norm overflows, and that the clip's factor is denormal."""
    bounds, rotation = Bounds(1e-4 if scale > 1e31 else 1.0, 0.06, value_type), rotated(700)
    ours, theirs = (
        kept(normals(scale=scale), bounds, rotation, 0.25, place).values for place in ("host", form)
    )
    assert theirs.dtype == ours.dtype
    if value_type == "int8":
        np.testing.assert_array_equal(theirs, ours)
    else:  # ten stages of the rotation and two products, 2^-24 each
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=2e-6 * float(np.abs(ours).max()))
        assert np.abs(ours).max() > 0


@pytest.mark.parametrize("wrong", [1.001, 1e30, np.nan, np.inf])
def test_bounds_hold_whatever_the_rotation_of_a_device_gives(wrong, monkeypatch):
    """A thousandth is what products in a reduced precision would make of it: the clips after it do not trust it."""

    def rotate(vector):
        turned = hadamard(vector)
        turned[: 1 if wrong > 2 or np.isnan(wrong) else None] *= wrong
        return turned

    monkeypatch.setattr("client.privatize.hadamard", rotate)
    assert 0.99**2 < square(send(normals(scale=9.0), Bounds(1.0, 1.0), rotated(700), form="cpu")) <= 1


def test_a_dimension_beyond_the_proof_is_an_error():
    with pytest.raises(SettingError, match="proved up to 4294967296"):
        Rotation("hadamard", (1 << 32) + 1, PublicSeed(0))


SHORT = ((1, 1, True), (1 + 1e-6, 1, False), (2, 0.5, True), (1, 1.1, False), (0, 9, True), (np.nan, 1, False), (3e38, 10, False))  # fmt: skip


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_a_clients_bit_is_of_its_scaled_update_before_any_clip(form, value_type):
    for size, scale, is_short in SHORT:
        update, by = np.float32(size) * np.eye(1, 50, dtype="f4")[0], np.array([scale], "f4")
        sent = kept(update, Bounds(1.0, 1.0, value_type), Rotation("hadamard", 50, SEED), form=form, scale=by)
        assert sent.is_short is is_short
