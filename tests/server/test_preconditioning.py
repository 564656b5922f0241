"""Scale, then privatize: what clients scale by, when it changes, and that no client gains by it."""

from dataclasses import replace

import numpy as np
import pytest

from client.app import unpack
from client.privatize import privatize
from experiments.engines.grid import LocalGrid
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from plans import KEY, Answering, random_vector, replying, small_plan, strategy_with, tagged
from server.cohort import SimulatedPopulation, cohort_indices
from server.optimizer import LARGEST, Adam, Sgd, preconditioner
from server.state import first_state
from server.strategy import FedMF

PLAN = small_plan(epochs=3, noise_multiplier=1.0)
ADAM = Adam(0.1, 0.5, tau=1e-3, beta2=0.5, precondition=True)


def slow_preconditioner(v, tau):
    inverse = [1 / (np.sqrt(float(value)) + tau) for value in v]
    expected = sum(float(value) for value in v)
    scaled = sum(s * s * float(value) for s, value in zip(inverse, v, strict=True))
    c = np.sqrt(expected / scaled)
    return [min(max(c * s, 0.1), 10.0) for s in inverse]


@pytest.mark.parametrize("tau", [1e-4, 0.1, 10.0])
def test_the_scale_is_that_of_its_equations(tau):
    v = np.random.default_rng(0).lognormal(sigma=3, size=40).astype("f4")
    scale = preconditioner(v, tau)
    np.testing.assert_allclose(scale, slow_preconditioner(v, tau), rtol=1e-5)
    assert scale.dtype == np.float32


@pytest.mark.parametrize(
    "v", [np.zeros(4), np.full(4, np.inf), np.array([np.nan, 1, 1, 1]), np.full(4, 1e-30)]
)
def test_the_scale_is_finite_and_bounded_whatever_v_is(v):
    scale = preconditioner(v.astype("f4"), 1e-3)
    assert ((scale >= np.float32(1 / LARGEST)) & (scale <= LARGEST)).all()


@pytest.mark.parametrize("value", [10.0, np.nan, np.inf, -np.inf, 3e38, 0.0])
def test_the_client_scales_and_then_clips(value):
    """A client that clipped first would send more than its bound: at a scale of 10, ten times as much."""
    plan, update = small_plan(keep_probability=1.0), random_vector(50, 5.0)
    scale = np.where(np.arange(50) % 2, value, 0.1).astype("f4")
    sent = privatize(update, plan.client_plan, KEY, scale=scale).values
    with np.errstate(over="ignore"):
        by_hand = privatize(update * scale, plan.client_plan, KEY).values
    np.testing.assert_array_equal(sent, by_hand)
    assert np.linalg.norm(sent.astype("f8")) <= plan.bounds.radius
    assert np.abs(sent).max() <= plan.bounds.linf_norm


def updates_of(client):
    """A client's update: large in some coordinates, small in others, longer than the clip norm."""
    shape = np.where(np.arange(50) < 5, 3.0, 0.05)
    return (random_vector(50, 1.0, int(client)) * shape).astype("f4")


def strategy_and_scales(plan, optimizer, rounds):
    """A strategy after `rounds` rounds of real clients, and what each message told them to scale by, by round."""
    scales = {}

    def answer(fields, message):
        scale = unpack(message)[1].scale
        told = scales.setdefault(int(message.metadata.group_id), [])
        told.append(None if scale is None else scale.tobytes())
        key = SecretKey(bytes(fields[wire.MASK_KEY]))
        kept = privatize(updates_of(fields[wire.CLIENT]), plan.client_plan, key, scale=scale)
        return replying(message, tagged(fields, message, wire.to_bytes(kept.values)))

    state = first_state(plan, np.zeros(50, "f4"), KEY)
    strategy = FedMF(plan, optimizer, SimulatedPopulation(), state)
    strategy.start(LocalGrid(Answering(answer)), num_rounds=rounds, timeout=5)
    return strategy, scales


def test_all_clients_of_an_epoch_get_one_scale_and_those_of_the_first_none():
    _, scales = strategy_and_scales(PLAN, ADAM, 12)
    assert sorted(scales) == list(range(1, 13))
    by_epoch = [{told for r in range(4 * e + 1, 4 * e + 5) for told in scales[r]} for e in range(3)]
    assert [len(told) for told in by_epoch] == [1, 1, 1]
    assert all(len(scales[r]) == 3 for r in scales)
    assert by_epoch[0] == {None}
    assert by_epoch[1] != by_epoch[2]
    assert len(np.frombuffer(next(iter(by_epoch[1])), "<f4")) == 50


def test_an_optimizer_that_does_not_precondition_sends_no_scale():
    for optimizer in (replace(ADAM, precondition=False), Sgd(0.1, 0.9)):
        _, scales = strategy_and_scales(PLAN, optimizer, 6)
        assert {told for asked in scales.values() for told in asked} == {None}


def test_the_server_divides_by_what_the_clients_scaled_by():
    """Slow twin of a preconditioned run without noise, masks or rotation, in float64 from the equations alone."""
    plan = small_plan(
        epochs=3, noise_multiplier=0, keep_probability=1.0, rotation="identity", linf_norm=1.0, family="independent"
    )  # fmt: skip
    strategy, _ = strategy_and_scales(plan, ADAM, 12)
    model, m, v, scale = np.zeros(50), np.zeros(50), np.full(50, 1e-6), np.ones(50)
    for number in range(1, 13):
        total = np.zeros(50)
        for client in map(str, cohort_indices(plan, number)):
            update = updates_of(client).astype("f8") * scale
            total += update * min(1.0, 1.0 / np.linalg.norm(update))
        mean = total / 3 / scale
        m, v = 0.5 * m + 0.5 * mean, 0.5 * v + 0.5 * mean**2
        model = model + 0.1 * m / (np.sqrt(v) + 1e-3)
        if number % 4 == 0:
            scale = np.array(slow_preconditioner(v, 1e-3))
    np.testing.assert_allclose(
        strategy.state.model, model, rtol=1e-3, atol=1e-5
    )  # float32, and a fixed-point sum


def test_the_noise_of_the_sum_is_the_same_with_and_without_a_scale():
    """Noise is added to the scaled sum, whose sensitivity is that of the clip: no scale may change its size."""
    sums = []
    for optimizer in (ADAM, replace(ADAM, precondition=False)):
        strategy = strategy_with(PLAN, commit=lambda release: sums.append(release.noisy_sum))
        strategy.optimizer = optimizer
        strategy.start(LocalGrid(Answering(lambda fields, message: replying(message, b""))), num_rounds=8)
    np.testing.assert_array_equal(sums[:8], sums[8:])
