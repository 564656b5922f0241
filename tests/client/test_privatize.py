import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from scipy.linalg import hadamard

from client.privatize import privatize
from fedmf.randomness import PublicSeed
from fedmf.updates import wire
from fedmf.updates.rotation import Rotation
from fedmf.updates.vectors import TAU, dequantize
from plans import KEY, random_vector, small_plan


def send(plan, update, key=KEY):
    return privatize(
        update,
        bounds=plan.bounds,
        rotation=plan.rotation,
        keep_probability=plan.compression.keep_probability,
        mask_key=key,
    )


def receive(plan, values, key=KEY):
    """The server's side: the masked rotated vector, (D,)."""
    kept = wire.coordinates(key, plan.rotation.padded, plan.compression.keep_probability)
    total = np.zeros(plan.rotation.padded, np.float32)
    total[kept] = wire.decode(wire.to_bytes(values), plan.bounds, kept=len(kept))
    return total


def whole(plan, update):
    """The whole vector that a client holds to its bounds, as the client made it: the server has no hand in it."""
    assert plan.compression.keep_probability == 1
    sent = send(plan, update)
    return dequantize(sent, plan.bounds.linf_norm) if plan.bounds.value_type == "int8" else sent


def slow_whole(plan, update):
    """Clip, with the margin for rounding, rotate, clip, in dense float64, one step after another."""
    limit = plan.bounds.l2_norm * (1 - 2.0**-14)
    update = update.astype("f8") * min(1, limit / max(np.linalg.norm(update.astype("f8")), 1e-300))
    padded = np.zeros(plan.rotation.padded)
    padded[: plan.dimension] = update * plan.seed.signs(plan.rotation.padded, "rotation")[: plan.dimension]
    rotated = hadamard(plan.rotation.padded) @ padded / np.sqrt(plan.rotation.padded)
    return np.clip(rotated, -plan.bounds.linf_norm, plan.bounds.linf_norm)


@given(hnp.arrays(np.float32, 50, elements=st.floats(width=32)), st.sampled_from(["float32", "int8"]))
@settings(max_examples=200, deadline=None)
def test_client_itself_bounds_the_whole_vector_whatever_training_returned(update, value_type):
    plan = small_plan(keep_probability=1.0, value_type=value_type, linf_norm=0.3)
    sent = whole(plan, update)
    assert np.isfinite(sent).all()
    assert np.linalg.norm(sent.astype("f8")) <= plan.bounds.radius
    assert np.abs(sent).max() <= np.float32(0.3)


@pytest.mark.parametrize("length", [0.5, 1.0, 7.0])
def test_client_clips_rotates_and_clips_in_this_order(length):
    """At length 7 both clips bite; every other order, and leaving one out, gives another vector."""
    plan = small_plan(keep_probability=1.0, linf_norm=0.15)
    for seed in range(5):
        update = random_vector(50, length, seed)
        np.testing.assert_allclose(whole(plan, update), slow_whole(plan, update), atol=2e-6)


ADVERSARIAL = {
    "one coordinate": np.eye(50)[7] * 1e6,
    "constant": np.full(50, 3.0),
    "along a row of the rotation": None,
    "nan": np.full(50, np.nan),
    "zero": np.zeros(50),
    "huge": np.full(50, 1e30),
}


@pytest.mark.parametrize("value_type", ["float32", "int8"])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_vectors_are_bounded_after_the_rotation(name, value_type):
    plan = small_plan(keep_probability=1.0, linf_norm=0.2, value_type=value_type)
    update = ADVERSARIAL[name]
    if update is None:  # rotates onto one coordinate: the L-infinity clip must come after the rotation
        update = plan.rotation.unrotate(np.eye(64, dtype="f4")[3]) * 5
    sent = whole(plan, np.asarray(update, "f4"))
    assert np.linalg.norm(sent) <= plan.bounds.radius
    assert np.abs(sent).max() <= np.float32(0.2)


def test_clipping_before_the_rotation_would_break_the_bound():
    """docs/theory.md, section 3: the L-infinity clip before the rotation is invalid."""
    rotation = Rotation("hadamard", 64, PublicSeed(5))
    update = np.sign(rotation.unrotate(np.eye(64, dtype="f4")[3])) * np.float32(0.125)
    assert np.abs(update).max() <= 0.2
    assert np.abs(rotation.turn(update).values).max() > 0.2


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_decode_is_unbiased_over_masks(value_type):
    """Trap: gamma used twice or never. The mean of sum / gamma over masks is the bounded update."""
    plan = small_plan(dimension=64, keep_probability=0.25, linf_norm=1.0, value_type=value_type)
    update = random_vector(64, 0.9)
    keys = [KEY.mask_key("0", step) for step in range(4000)]
    mean = np.mean([receive(plan, send(plan, update, key), key) for key in keys], axis=0) / 0.25
    rotated = plan.rotation.turn(update).values
    standard_error = np.abs(rotated) * np.sqrt(0.75 / 0.25 / 4000) + 1 / 127 / np.sqrt(0.25 * 4000)
    assert (np.abs(mean - rotated) < 5 * standard_error).all()
    assert not (np.abs(mean * 0.25 - rotated) < 5 * standard_error).all()


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_kept_values_are_those_of_the_whole_vector(value_type):
    """So the bounds, and the rounding, are of the whole vector: the server could not enforce them."""
    everything, part = (small_plan(keep_probability=gamma, value_type=value_type) for gamma in (1.0, 0.3))
    update = random_vector(50, 2.0)
    kept = wire.coordinates(KEY, 64, 0.3)
    np.testing.assert_array_equal(send(part, update), send(everything, update)[kept])


def test_rounding_does_not_depend_on_the_mask():
    """What a coordinate is rounded to must not follow from whether it is kept."""
    plan = small_plan(dimension=64, keep_probability=1.0, value_type="int8", linf_norm=0.5)
    update = random_vector(64, 0.9)
    keys = [KEY.mask_key("r", step) for step in range(600)]
    rounded_up = np.array([send(plan, update, key) for key in keys], float)
    kept = np.zeros_like(rounded_up)
    for row, key in zip(kept, keys, strict=True):
        row[wire.coordinates(key, 64, 0.5)] = 1
    rounded_up -= rounded_up.mean(axis=0)
    varies = rounded_up.std(axis=0) > 0.1
    correlation = (rounded_up * (kept - 0.5))[:, varies].mean() / (rounded_up[:, varies].std() * 0.5)
    assert abs(correlation) < 5 / np.sqrt(600 * varies.sum())


def test_anothers_mask_scrambles_but_stays_bounded():
    plan, update = small_plan(keep_probability=0.5), random_vector(50, 1.0)
    received = receive(plan, send(plan, update, KEY), KEY.mask_key("other", 0))
    assert np.linalg.norm(received) <= 1.0


def test_int8_is_accounted_at_a_longer_radius():
    plain, rounded = (
        small_plan(epsilon=4.0, noise_multiplier=None),
        small_plan(epsilon=4.0, noise_multiplier=None, value_type="int8"),
    )
    assert rounded.bounds.radius == pytest.approx((1 + TAU) * plain.bounds.radius)
    assert rounded.sigma > plain.sigma
    assert rounded.value_bytes == plain.value_bytes / 4
