"""Server optimizers against their equations in double precision and torch; what clients scale by, and that no client gains by it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from client.app import unpack
from client.privatize import privatize
from experiments.engines.grid import LocalGrid
from fedmf.errors import SettingError
from fedmf.mechanisms import momentum, workload as workloads
from fedmf.mechanisms.schedules import rates, share
from fedmf.randomness import SecretKey
from fedmf.setting import SCHEDULES
from fedmf.updates import wire
from plans import KEY, Answering, random_vector, replying, small_plan, strategy_with, tagged
from server.cohort import SimulatedPopulation, cohort_indices
from server.optimizer import LARGEST, LARGEST_TAU, LEAST_TAU, Adagrad, Adam, Sgd, Yogi, preconditioner
from server.state import first_state
from server.strategy import FedMF

ROUNDS, D = 12, 7
MEANS = np.random.default_rng(3).normal(size=(ROUNDS, D)).astype("f4") * 0.05
START = np.random.default_rng(4).normal(size=D).astype("f4")


def run(optimizer, means=MEANS, start=START):
    """Every model of a run, (rounds, d), and the last state."""
    model, slots, models = start, optimizer.init(start), []
    for done, mean in enumerate(means):
        model, slots = optimizer.update(mean, slots, model, done / len(means))
        models.append(model)
    return np.array(models), slots


def slow(name, *, rate, beta1, beta2, tau, decay=0.0, schedule="constant", means=MEANS, start=START):
    """Algorithm 2 of Reddi et al. 2021, a coordinate and a round at a time."""
    models = np.zeros((len(means), len(start)))
    for i in range(len(start)):
        x, m, v = float(start[i]), 0.0, tau**2
        for t in range(len(means)):
            delta = float(means[t, i])
            m = beta1 * m + (1 - beta1) * delta
            if name == "adagrad":
                v = v + delta**2
            elif name == "adam":
                v = beta2 * v + (1 - beta2) * delta**2
            elif v > delta**2:
                v = v - (1 - beta2) * delta**2
            elif v < delta**2:
                v = v + (1 - beta2) * delta**2
            eta = rate * share(schedule, t / len(means))
            x = x - eta * decay * x + eta * m / (math.sqrt(v) + tau)
            models[t, i] = x
    return models


CASES = [
    ("adam", Adam(0.1, 0.9, tau=0.01, beta2=0.8)),
    ("adam", Adam(0.1, 0.0, "cooldown", tau=1e-3, weight_decay=0.5)),
    ("yogi", Yogi(0.1, 0.9, tau=0.03, beta2=0.7)),
    ("yogi", Yogi(0.1, 0.5, "decay", tau=0.06, weight_decay=0.1)),
    ("adagrad", Adagrad(0.1, 0.0, tau=0.01)),
    ("adagrad", Adagrad(0.1, 0.6, "cosine", tau=0.5, weight_decay=0.2)),
]


@pytest.mark.parametrize(("name", "optimizer"), CASES)
def test_an_adaptive_optimizer_is_algorithm_2(name, optimizer):
    models, slots = run(optimizer)
    twin = slow(
        name, rate=0.1, beta1=optimizer.momentum, beta2=getattr(optimizer, "beta2", 0.0), tau=optimizer.tau,
        decay=optimizer.weight_decay, schedule=optimizer.schedule,
    )  # fmt: skip
    np.testing.assert_allclose(models, twin, rtol=2e-5, atol=1e-6)  # float32 against float64
    assert models.dtype == np.float32
    assert {name: (array.dtype, array.shape) for name, array in slots.items()} == {
        "m": (np.float32, (D,)), "v": (np.float32, (D,)),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (Sgd(0.1, 0.8), torch.optim.SGD, {"momentum": 0.8}),
        (Sgd(0.1, 0.8, nesterov=True), torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
        (Adagrad(0.1, tau=0.01), torch.optim.Adagrad, {"initial_accumulator_value": 0.01**2, "eps": 0.01}),
    ],
)
def test_sgd_and_adagrad_are_those_of_torch_on_the_negative_mean(ours, theirs, settings):
    weights = torch.nn.Parameter(torch.from_numpy(START.copy()))
    reference = theirs([weights], lr=0.1, **settings)
    for mean, model in zip(MEANS, run(ours)[0], strict=True):
        weights.grad = -torch.from_numpy(mean)
        reference.step()
        np.testing.assert_allclose(model, weights.detach().numpy(), rtol=2e-5, atol=1e-6)


def test_weight_decay_shrinks_the_model_and_never_enters_the_momentum():
    """torch's AdamW decays so, too: a share of the rate, whatever the momentum."""
    models, slots = run(Sgd(0.5, 0.9, "decay", weight_decay=0.1), np.zeros((ROUNDS, D), "f4"))
    shares = np.cumprod([1 - 0.5 * share("decay", t / ROUNDS) * 0.1 for t in range(ROUNDS)])
    np.testing.assert_allclose(models, shares[:, None] * START, rtol=1e-5)
    assert not slots["velocity"].any()


@pytest.mark.parametrize("optimizer", [Sgd(0.1, 0.9, nesterov=True), *(case[1] for case in CASES)])
def test_a_step_changes_nothing_that_it_was_given(optimizer):
    model, mean = START.copy(), MEANS[0].copy()
    slots = {name: array.copy() for name, array in optimizer.init(model).items()}
    for array in (model, mean, *slots.values()):
        array.flags.writeable = False
    once, twice = (optimizer.update(mean, slots, model) for _ in range(2))
    np.testing.assert_array_equal(once[0], twice[0])
    for name in slots:
        np.testing.assert_array_equal(once[1][name], twice[1][name])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_workload_of_the_same_schedule_is_what_sgd_does(schedule):
    """Models of a run are learning rate times A x, A the workload with the schedule's rates."""
    models, _ = run(Sgd(0.1, 0.5, schedule), start=np.zeros(D, "f4"))
    workload = momentum(ROUNDS, 0.5, rates(schedule, ROUNDS))
    np.testing.assert_allclose(
        models, 0.1 * workloads.apply(workload, MEANS.astype("f8")), rtol=1e-4, atol=1e-7
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Sgd(0.0), "learning_rate is 0.0; it must be a finite number above 0"),
        (lambda: Sgd(0.1, 1.0), r"momentum is 1.0; it must lie in \[0, 1\)"),
        (lambda: Sgd(0.1, nesterov=True), "nesterov is True, but momentum is 0"),
        (lambda: Sgd(0.5, weight_decay=2.0), "weight_decay is 2.0; with learning_rate=0.5 it must be below 2"),
        (lambda: Sgd(0.5, weight_decay=float("nan")), "weight_decay is nan"),
        (lambda: Sgd(0.1, 0.5, "linear"), "constant, decay, cosine, cooldown, step"),
        (lambda: Yogi(0.1, beta2=1.0), r"beta2 is 1.0; it must lie in \[0, 1\)"),
        (lambda: Yogi(0.1, tau=float("nan")), "tau is nan"),
        (lambda: Adam(0.1, tau=1e-19), r"tau is 1e-19; .* must lie in \[1.1e-19, 1.8e\+19\]"),
        (lambda: Adagrad(0.1, tau=1.9e19), "tau is 1.9e\\+19"),
        (lambda: Adagrad(-1.0), "learning_rate is -1.0"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_an_error_at_once(make, said):
    with pytest.raises(SettingError, match=said):
        make()


@pytest.mark.parametrize("tau", [LEAST_TAU, LARGEST_TAU])
def test_a_tau_at_its_bounds_has_a_normal_square_and_takes_a_coordinate_without_updates_nowhere(tau):
    optimizer = Adam(0.1, tau=tau)
    start = np.ones(3, "f4")
    slots = optimizer.init(start)
    assert np.finfo("f4").tiny <= slots["v"][0] <= np.finfo("f4").max
    model, slots = optimizer.update(np.zeros(3, "f4"), slots, start)
    np.testing.assert_array_equal(model, start)


# scale, then privatize


SCALED = small_plan(epochs=3, noise_multiplier=1.0)
PRECONDITIONED = Adam(0.1, 0.5, tau=1e-3, beta2=0.5, precondition=True)


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
    return (random_vector(50, 1.0, int(client)) * np.where(np.arange(50) < 5, 3.0, 0.05)).astype("f4")


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

    strategy = FedMF(plan, optimizer, SimulatedPopulation(), first_state(plan, np.zeros(50, "f4"), KEY))
    for part in (5, rounds - 5):  # as a run that is resumed in mid-epoch
        strategy.start(LocalGrid(Answering(answer)), num_rounds=part, timeout=600)
    return strategy, scales


def test_all_clients_of_an_epoch_get_one_scale_and_those_of_the_first_none():
    _, scales = strategy_and_scales(SCALED, PRECONDITIONED, 12)
    assert sorted(scales) == list(range(1, 13))
    by_epoch = [{told for r in range(4 * e + 1, 4 * e + 5) for told in scales[r]} for e in range(3)]
    assert [len(told) for told in by_epoch] == [1, 1, 1]
    assert all(len(scales[r]) == 3 for r in scales)
    assert by_epoch[0] == {None}
    assert by_epoch[1] != by_epoch[2]
    assert len(np.frombuffer(next(iter(by_epoch[1])), "<f4")) == 50


def test_an_optimizer_that_does_not_precondition_sends_no_scale():
    for optimizer in (replace(PRECONDITIONED, precondition=False), Sgd(0.1, 0.9)):
        _, scales = strategy_and_scales(SCALED, optimizer, 6)
        assert {told for asked in scales.values() for told in asked} == {None}


def test_the_server_divides_by_what_the_clients_scaled_by():
    """Slow twin of a preconditioned run without noise, masks or rotation, in float64 from the equations alone."""
    plan = small_plan(
        epochs=3, noise_multiplier=0, keep_probability=1.0, rotation="identity", linf_norm=1.0, family="independent"
    )  # fmt: skip
    strategy, _ = strategy_and_scales(plan, PRECONDITIONED, 12)
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
    for optimizer in (PRECONDITIONED, replace(PRECONDITIONED, precondition=False)):
        strategy = strategy_with(SCALED, commit=lambda release: sums.append(release.noisy_sum))
        strategy.optimizer = optimizer
        strategy.start(LocalGrid(Answering(lambda fields, message: replying(message, b""))), num_rounds=8)
    np.testing.assert_array_equal(sums[:8], sums[8:])
