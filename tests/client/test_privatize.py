import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from client.privatize import privatize
from fedmf.randomness import PublicSeed
from fedmf.updates import wire
from fedmf.updates.rotation import Rotation
from fedmf.updates.rounding import TAU
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


@given(hnp.arrays(np.float32, 50, elements=st.floats(width=32)), st.sampled_from(["float32", "int8"]))
@settings(max_examples=200, deadline=None)
def test_whole_vector_is_bounded_whatever_training_returned(update, value_type):
    plan = small_plan(keep_probability=1.0, value_type=value_type, linf_norm=0.3)
    sent = receive(plan, send(plan, update))
    assert np.isfinite(sent).all()
    assert np.linalg.norm(sent.astype("f8")) <= plan.bounds.radius
    assert np.abs(sent).max() <= np.float32(0.3)


ADVERSARIAL = {
    "one coordinate": np.eye(50)[7] * 1e6,
    "constant": np.full(50, 3.0),
    "along a row of the rotation": None,
    "nan": np.full(50, np.nan),
    "zero": np.zeros(50),
    "huge": np.full(50, 1e30),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_vectors_are_bounded_after_the_rotation(name):
    plan = small_plan(keep_probability=1.0, linf_norm=0.2)
    update = ADVERSARIAL[name]
    if update is None:  # rotates onto one coordinate: the L-infinity clip must come after the rotation
        update = plan.rotation.unrotate(np.eye(64, dtype="f4")[3]) * 5
    sent = receive(plan, send(plan, np.asarray(update, "f4")))
    assert np.linalg.norm(sent) <= 1.0
    assert np.abs(sent).max() <= np.float32(0.2)


def test_clipping_before_the_rotation_would_break_the_bound():
    """PRIVACY.md section 3: the L-infinity clip before the rotation is invalid."""
    rotation = Rotation("hadamard", 64, PublicSeed(5))
    update = np.sign(rotation.unrotate(np.eye(64, dtype="f4")[3])) * np.float32(0.125)
    assert np.abs(update).max() <= 0.2
    assert np.abs(rotation.rotate(update)).max() > 0.2


@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_decode_is_unbiased_over_masks(value_type):
    """Trap: gamma used twice or never. The mean of sum / gamma over masks is the bounded update."""
    plan = small_plan(dimension=64, keep_probability=0.25, linf_norm=1.0, value_type=value_type)
    update = random_vector(64, 0.9)
    keys = [KEY.mask_key("0", step) for step in range(4000)]
    mean = np.mean([receive(plan, send(plan, update, key), key) for key in keys], axis=0) / 0.25
    rotated = plan.rotation.rotate(update)
    standard_error = np.abs(rotated) * np.sqrt(0.75 / 0.25 / 4000) + 1 / 127 / np.sqrt(0.25 * 4000)
    assert (np.abs(mean - rotated) < 5 * standard_error).all()
    assert not (np.abs(mean * 0.25 - rotated) < 5 * standard_error).all()


def test_kept_values_are_those_of_the_whole_vector():
    whole, part = small_plan(keep_probability=1.0), small_plan(keep_probability=0.3)
    update = random_vector(50, 2.0)
    kept = wire.coordinates(KEY, 64, 0.3)
    np.testing.assert_array_equal(send(part, update), send(whole, update)[kept])


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
