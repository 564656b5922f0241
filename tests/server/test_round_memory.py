"""What a round costs in memory beyond its state and its sum: vectors of the model's size are counted."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from fedmf import compiling
from plans import KEY, random_vector, small_plan
from server.optimizer import Sgd
from server.state import apply_release, begin_epoch, first_state, make_release

DIMENSION = 1 << 19  # blocks of scratch are small beside a vector of so many


@contextmanager
def counted() -> Iterator[SimpleNamespace]:
    """Count the largest number of float32 vectors of the model's size that are made and alive at once."""
    peak = SimpleNamespace(vectors=0.0)
    tracemalloc.start()
    try:
        yield peak
        peak.vectors = tracemalloc.get_traced_memory()[1] / (4 * DIMENSION)
    finally:
        tracemalloc.stop()


def second_round(rotation):
    """A plan, the state after its first round with a donated stream, and another sum."""
    plan = small_plan(dimension=DIMENSION, rotation=rotation)
    state = begin_epoch(plan, first_state(plan, np.zeros(DIMENSION, "f4"), KEY))
    total = random_vector(DIMENSION, 1.0).astype(np.float64)
    made, secrets = make_release(plan, state, total.copy(), ["0"], donate=True)
    return plan, apply_release(plan, Sgd(1.0, 0.9), state, made, secrets), total


# Compiled, the transform of a sum that may be overwritten stays in its place.
ROTATED = 5 if compiling.available() else 7


@pytest.mark.parametrize(("rotation", "limit"), [("hadamard", ROTATED), ("identity", 5)])
def test_a_donated_release_takes_its_sum_its_noise_and_what_the_inverse_rotation_writes(rotation, limit):
    """The noisy sum; mean and fresh row of the noise, both float64; and in numpy a float64 output of the Hadamard transform.

    Noise and sum are mixed in blocks.
    """
    plan, state, total = second_round(rotation)
    plan.rotation.unrotate(total)  # the signs are made once
    with counted() as peak:
        make_release(plan, state, total, ["1"], donate=True)
    assert limit - 0.1 < peak.vectors < limit + 0.3


def test_a_release_is_the_same_donated_or_not_and_keeps_what_was_not():
    for rotation in ("hadamard", "identity"):
        plan, state, total = second_round(rotation)
        before = total.copy()
        kept, _ = make_release(plan, state, total, ["1"])
        np.testing.assert_array_equal(total, before)
        donated, _ = make_release(plan, state, total, ["1"], donate=True)
        np.testing.assert_array_equal(donated.noisy_sum, kept.noisy_sum)


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_makes_the_new_model_and_velocity_and_nothing_else(nesterov):
    rng = np.random.default_rng(0)
    model, velocity, mean = rng.standard_normal((3, DIMENSION + 1), dtype=np.float32)
    sgd = Sgd(0.3, 0.9, nesterov=nesterov, weight_decay=0.01)
    with counted() as peak:
        moved, slots = sgd.update(mean, {"velocity": velocity}, model)
    assert peak.vectors < 2.3
    whole = 0.9 * velocity + mean
    np.testing.assert_array_equal(slots["velocity"], whole)
    direction = mean + 0.9 * whole if nesterov else whole
    np.testing.assert_array_equal(moved, model - 0.3 * 0.01 * model + 0.3 * direction)
    assert moved.dtype == slots["velocity"].dtype == np.float32
