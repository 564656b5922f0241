"""What docs/theory.md, section 3, proves of the vector that a client sends a part of, on vectors made to break it.

Norms are taken without rounding: the square of a float32 is exact in float64, and `math.fsum` adds exactly.
"""

import itertools
import math
from contextlib import nullcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from client.privatize import privatize
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.updates import vectors, wire
from fedmf.updates.rotation import Rotation, hadamard
from fedmf.updates.vectors import TAU, dequantize, level_step, round_to_levels
from fedmf.updates.wire import Bounds
from plans import KEY
from without_numba import both_forms, needs_numba, without_numba

KINDS = pytest.mark.parametrize("kind", ["numpy", pytest.param("compiled", marks=needs_numba)], indirect=True)
PROVED = {"numpy": 521 * 2.0**-24, "compiled": 35 * 2.0**-24}  # by how much a rotation may lengthen
SIZES = [1, 2, 3, 50, 64, 1000, 1024, 5000, 40_000, (1 << 17) + 3]


@pytest.fixture
def kind(request):
    with without_numba() if request.param == "numpy" else nullcontext():
        yield request.param


def square(vector):
    """The squared Euclidean norm, exact."""
    wide = np.asarray(vector, np.float64)
    return Fraction(math.fsum(wide * wide)) if wide.size < 1 << 22 else None


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
        "of all sizes": rng.normal(size=size) * 10.0 ** rng.uniform(-30, 0, size),
        "denormal": rng.integers(-9, 9, size) * 2.0**-149,
        "denormal and one": np.where(np.arange(size) == size // 2, 1, 2.0**-140),
    }
    if size > 1 << 17:  # exact sums take their time
        found = {name: found[name] for name in ("there, with low bits set", "of all sizes")}
    return {name: np.asarray(vector, np.float32) for name, vector in found.items()}


def send(update, bounds, rotation, keep_probability=1.0, **more):
    return privatize(
        np.asarray(update, np.float32),
        bounds=bounds,
        rotation=rotation,
        keep_probability=keep_probability,
        mask_key=KEY,
        **more,
    )


def assert_within(sent, bounds):
    """The whole vector, as it is kept with probability 1, is within both bounds in exact arithmetic."""
    assert np.isfinite(sent).all()
    assert square(sent) <= Fraction(bounds.radius) ** 2
    assert Fraction(float(np.abs(sent).max())) <= Fraction(bounds.linf_norm)


@KINDS
@pytest.mark.parametrize(
    ("size", "rotated"),
    [
        *itertools.product(SIZES, ["hadamard", "identity"]),
        pytest.param(
            1 << 20, "hadamard", marks=pytest.mark.long
        ),  # 131075 values are padded to a quarter of it
        pytest.param(1 << 20, "identity", marks=pytest.mark.slow),  # nothing is rotated: 131075 tells as much
    ],
)
def test_whole_vector_and_kept_values_are_within_the_bounds_in_exact_arithmetic(size, rotated, kind):
    rotation = Rotation(rotated, size, PublicSeed(size))
    for name, vector in adversaries(size, rotation).items():
        for l2_norm, share, longer in ((1.0, 1.0, 3.0), (0.1, 0.02, 0.9999), (7e-12, 1.0, 1e9)):
            bounds = Bounds(l2_norm, l2_norm * share)
            length = math.sqrt(square(vector)) or 1.0
            update = (vector.astype("f8") * (longer * l2_norm / length)).astype("f4")
            whole = send(update, bounds, rotation)
            assert_within(whole, bounds)
            part = send(update, bounds, rotation, 0.3)
            kept = wire.coordinates(KEY, rotation.padded, 0.3)
            np.testing.assert_array_equal(part, whole[kept], err_msg=name)
            if share == 1 and longer > 1 and length > 1e-30:  # nothing is lost but the margin
                assert square(whole) > Fraction(l2_norm * (1 - 2.0**-13)) ** 2


@KINDS
@pytest.mark.parametrize("size", [2, 4, 8, 64, 1024, 1 << 13, 1 << 17, 1 << 20])
def test_no_vector_is_lengthened_by_more_than_is_proved(size, kind):
    rotation = Rotation("hadamard", size, PublicSeed(3))
    for seed in range(2 if size > 1 << 14 else 20):
        for name, vector in adversaries(size, rotation, seed).items():
            if "denormal" not in name:
                turned = rotation.turn(vector)
                ratio = float(square(turned.values) / square(vector)) ** 0.5
                assert ratio <= 1 + PROVED[kind], name
                assert ratio >= 1 - PROVED[kind], name
                assert turned.norm == pytest.approx(float(square(vector)) ** 0.5, rel=2.0**-25)


@KINDS
def test_without_the_margin_the_bound_would_be_exceeded(kind, monkeypatch):
    """So the margin is needed: half of all vectors end up longer than the bound by a few roundings."""
    bounds, rotation = Bounds(1.0, 1.0), Rotation("hadamard", 4096, PublicSeed(1))
    updates = [vector * 2 for seed in range(5) for vector in adversaries(4096, rotation, seed).values()]
    assert all(square(send(update, bounds, rotation)) <= 1 for update in updates)
    monkeypatch.setattr(vectors, "ROTATION_MARGIN", 0.0)
    assert any(square(send(update, bounds, rotation)) > 1 for update in updates)


@KINDS
@pytest.mark.parametrize("largest", [3.4e38, 2e37, 1e31, 1e30, 1e20, 1e-30, 1e-44])
@pytest.mark.parametrize("l2_norm", [1e-20, 1e-6, 1.0, 1e20])
def test_huge_and_tiny_updates_end_within_the_bounds(l2_norm, largest, kind):
    rotation = Rotation("hadamard", 5000, PublicSeed(1))
    for scale in (np.ones(5000), np.random.default_rng(0).uniform(-1, 1, 5000)):
        bounds = Bounds(l2_norm, max(l2_norm / 8, 1e-20))
        update = (largest * scale).astype("f4")
        sent = send(update, bounds, rotation)
        assert_within(sent, bounds)
        if largest > l2_norm:
            assert sent.any()
            spread = send(update, Bounds(l2_norm, l2_norm), rotation)
            assert square(spread) > Fraction(l2_norm * (1 - 2.0**-13)) ** 2


@KINDS
@pytest.mark.parametrize("value_type", ["float32", "int8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("given", ["update", "start", "scale"])
def test_what_is_not_finite_becomes_the_zero_vector_and_is_said(given, bad, value_type, kind):
    rotation, told = Rotation("hadamard", 5000, PublicSeed(1)), []
    bounds = Bounds(1.0, 0.1, value_type)
    arrays = {name: np.ones(5000, np.float32) for name in ("update", "start", "scale")}
    arrays["start"][:] = 2
    more = {"start": arrays["start"], "on_not_finite": lambda: told.append(given)}
    if given == "scale":
        more["scale"] = arrays["scale"]
    assert send(arrays["update"], bounds, rotation, **more).any()
    assert told == []
    arrays[given][4321] = bad
    assert not send(arrays["update"], bounds, rotation, **more).any()
    assert told == [given]


@KINDS
def test_a_difference_that_overflows_is_not_finite(kind):
    rotation, told = Rotation("hadamard", 3000, PublicSeed(1)), []
    update, start = (np.full(3000, sign * 3e38, np.float32) for sign in (1, -1))
    more = {"start": start, "on_not_finite": lambda: told.append(1)}
    assert not send(update, Bounds(1.0, 0.1), rotation, **more).any()
    assert told == [1]


@KINDS
@pytest.mark.parametrize("size", [1, 700, 1024, 1025, 40_000])
def test_a_difference_taken_on_the_way_is_the_difference(size, kind):
    """Bit for bit, whatever arrays are given: read-only ones, or views with a stride."""
    rng, rotation = np.random.default_rng(0), Rotation("hadamard", size, PublicSeed(1))
    trained, start = rng.normal(size=(2, 2 * size)).astype("f4")[:, ::2]
    start.setflags(write=False)
    bounds = Bounds(0.5, 0.2)
    expected = send(trained - start, bounds, rotation, 0.5)
    np.testing.assert_array_equal(send(trained, bounds, rotation, 0.5, start=start), expected)
    unbounded = send(trained, Bounds(None, None), rotation, start=start)
    np.testing.assert_allclose(
        np.linalg.norm(unbounded), np.linalg.norm((trained - start).astype("f8")), rtol=1e-5
    )


def int8_bounds():
    """Bounds over all sizes that are allowed, decimal ones and float32 ones, and the numbers beside those."""
    rng = np.random.default_rng(5)
    drawn = 10.0 ** rng.uniform(-19.9, 19.6, 400)
    rounded = [float(np.float32(bound)) for bound in drawn[:100]]
    beside = [math.nextafter(bound, to) for bound in rounded for to in (0, math.inf)]
    decimal = [count / 1000 for count in range(1, 400)]
    lower = [
        182.10418701171875,
        220.46231079101562,
    ]  # the float32 next to their 127th is below the largest step
    return [*lower, 1e-20, 5e19, 0.3, 0.06, 1.0, *decimal, *drawn.tolist(), *rounded, *beside]


def test_int8_levels_are_within_both_bounds_in_exact_arithmetic():
    """Level 127 is what a client sends that is at the bound, of one coordinate and where all are at it."""
    identity = Rotation("identity", 3, PublicSeed(0))
    for linf in int8_bounds():
        bounds = Bounds(2 * linf, linf, "int8")
        sent = send(np.full(3, min(linf * 9, 3e38)), bounds, identity)
        assert sent.min() == 127
        assert_within(dequantize(sent, linf), bounds)
        assert_within(dequantize(-sent, linf), bounds)
        np.testing.assert_array_equal(wire.decode(sent.tobytes(), bounds, kept=3), dequantize(sent, linf))


def test_the_step_of_int8_is_the_largest_of_which_no_level_exceeds_the_bound():
    levels = np.arange(-127, 128, dtype=np.int8)
    for linf in int8_bounds():
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


@needs_numba
@given(
    hnp.arrays(np.float32, st.integers(1, 3000), elements=st.floats(-1e6, 1e6, width=32)),
    st.sampled_from(["float32", "int8"]),
)
@settings(max_examples=60, deadline=None)
def test_compiled_and_numpy_give_the_same_values_to_rounding(update, value_type):
    rotation = Rotation("hadamard", update.size, PublicSeed(0))
    bounds = Bounds(1.0, 0.3, value_type)
    sent = both_forms(lambda: send(update, bounds, rotation, 0.5).astype("f8"))
    one_level = value_type == "int8"  # a value at the edge of two levels may fall to either side
    np.testing.assert_allclose(sent[1], sent[0], atol=1 if one_level else 2.0**-18)


def test_slow_twin_in_float64_agrees():
    """Butterflies as a dense product, the clips one after another on the whole vector."""
    rng = np.random.default_rng(0)
    for size, length in ((3000, 0.5), (3000, 9.0), (70_000, 9.0)):
        rotation = Rotation("hadamard", size, PublicSeed(4))
        update = rng.normal(size=size)
        update = (update * (length / np.linalg.norm(update))).astype("f4")
        padded = np.zeros(rotation.padded)
        padded[:size] = update * PublicSeed(4).signs(rotation.padded, "rotation")[:size].astype("f8")
        padded *= min(1.0, (1 - 2.0**-14) / np.linalg.norm(padded))
        bound = 2.5 / rotation.padded**0.5
        with without_numba():  # the twin stays numpy's own
            slow = np.clip(hadamard(padded), -bound, bound)
        found = send(update, Bounds(1.0, bound), rotation)
        np.testing.assert_allclose(found, slow, atol=2.0**-20)


def test_a_dimension_beyond_the_proof_is_refused():
    with pytest.raises(SettingError, match="proved up to 4294967296"):
        Rotation("hadamard", (1 << 32) + 1, PublicSeed(0))
