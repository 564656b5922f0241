"""A release: its noise row and key, the state after it, the clients that it spends, and its memory."""

import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedmf import compiling
from fedmf.errors import ParticipationError, ReleaseOrderError, SettingError
from fedmf.mechanisms import RunFactorization, design, momentum, restarted
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from plans import KEY, random_vector, small_plan, spent_in
from server.optimizer import Sgd
from server.state import Register, Secrets, apply_release, begin_epoch, first_state, make_release, secrets_at

SGD = Sgd(1.0)


def start(plan, key=KEY):
    return begin_epoch(plan, first_state(plan, np.zeros(plan.dimension, np.float32), key))


def release(plan, optimizer, state, rotated_sum, answered):
    """Both steps of a release."""
    made, secrets = make_release(plan, state, rotated_sum, answered)
    return apply_release(plan, optimizer, state, made, secrets)


def run(plan, rounds, key=KEY, optimizer=SGD):
    """Release `rounds` rounds in which no client answers; returns all models."""
    state = first_state(plan, np.zeros(plan.dimension, np.float32), key)
    models = [state.model]
    for _ in range(rounds):
        state = release(plan, optimizer, begin_epoch(plan, state), np.zeros(plan.rotation.padded, "f4"), [])
        models.append(state.model)
    return np.array(models), state


@pytest.mark.parametrize(("epoch", "step"), [(0, 2), (1, 0)])
def test_secrets_ahead_of_the_released_rounds_are_an_error(epoch, step):
    """By a round of the epoch, or by an epoch."""
    ahead = Secrets(epoch, KEY, StreamState(step, np.zeros((1, 50))))
    with pytest.raises(ReleaseOrderError, match="ahead of the 1 released"):
        secrets_at(small_plan(), ahead, 1)


def test_a_model_of_another_length_than_the_plans_is_refused():
    with pytest.raises(SettingError, match="49 parameters; this plan is for 50"):
        first_state(small_plan(dimension=50), np.zeros(49, np.float32), KEY)


@pytest.mark.parametrize("family", ["independent", "sqrt_toeplitz", "optimal"])
def test_noise_in_the_model_is_sigma_times_the_row_of_b_over_gamma_n(family):
    """With zero data the final model of an epoch is (B Z)_T / (gamma n); halved noise must be caught."""
    plan = small_plan(dimension=40_000, family=family, keep_probability=0.2, epochs=1)
    decoder, encoder = plan.factorization.epochs[0].materialize()
    assert plan.factorization.sensitivity == pytest.approx(np.linalg.norm(encoder, axis=0).max(), rel=1e-6)
    models, _ = run(plan, 4)
    for t in range(1, 5):
        expected = plan.sigma * np.linalg.norm(decoder[t - 1]) / (0.2 * 3)
        observed = models[t].std()
        assert observed == pytest.approx(expected, rel=5 / np.sqrt(2 * 40_000))  # 5 standard errors
        assert observed / 2 != pytest.approx(expected, rel=5 / np.sqrt(2 * 40_000))


def test_noise_in_the_model_over_a_run_is_its_factorizations_error_by_round():
    """Momentum, schedule and the noise of earlier epochs all live on: with zero data the model is nothing else."""
    plan = small_plan(dimension=40_000, epochs=3, momentum=0.6, schedule="cooldown", keep_probability=0.2)
    models, _ = run(plan, 12, optimizer=Sgd(0.5, 0.6, "cooldown"))
    expected = plan.noise_multiplier * plan.factorization.per_round_error * 0.5 / (0.2 * 3)
    observed = np.array([model.std() for model in models[1:]])
    np.testing.assert_allclose(observed, expected, rtol=5 / np.sqrt(2 * 40_000))
    epochs_apart = restarted(design("optimal", momentum(4, 0.6)), 3)
    assert np.abs(epochs_apart.per_round_error / plan.factorization.per_round_error - 1).max() > 0.05


def test_every_epoch_has_the_noise_of_its_own_factorization():
    """The stream of the first epoch in all of them would pass for private, and would not be what was designed."""
    plan = small_plan(dimension=30_000, epochs=2, family="blt", momentum=0.5)
    models, _ = run(plan, 8)
    rows = np.diff(np.array(models), axis=0) * plan.denominator
    for epoch, used in enumerate(plan.factorization.epochs):
        noising = plan.sigma_in(epoch) * used.stream.materialize_noising()
        own = rows[4 * epoch : 4 * epoch + 4]
        np.testing.assert_allclose(own @ own.T / 30_000, noising @ noising.T, atol=0.06)
        np.testing.assert_allclose(np.linalg.solve(noising, own).std(axis=1), 1, rtol=5 / np.sqrt(2 * 30_000))


class Sensitive(ToeplitzStream):
    """Independent noise that claims a larger sensitivity."""

    sensitivity = 3.0


def test_noise_of_an_epoch_is_scaled_by_the_sensitivity_of_that_epoch():
    """With sensitivities far apart: that of the first epoch, or the largest, would be seen."""
    plan = small_plan(dimension=20_000, epochs=2, family="independent")
    first, second = plan.factorization.epochs
    claimed = replace(first, stream=Sensitive(first.rounds, first.stream.tables))
    models, _ = run(replace(plan, factorization=RunFactorization((claimed, second))), 8)
    spread = np.diff(np.array(models), axis=0).std(axis=1) * plan.denominator
    radius = plan.noise_multiplier * plan.bounds.radius
    np.testing.assert_allclose(spread, [3 * radius] * 4 + [radius] * 4, rtol=5 / np.sqrt(2 * 20_000))


def test_noise_covers_coordinates_that_nobody_kept():
    plan = small_plan(dimension=5000, keep_probability=1e-5)
    models, _ = run(plan, 1)
    assert np.count_nonzero(models[1]) == 5000


def test_noise_does_not_depend_on_who_answers_or_on_the_data():
    plan, state = small_plan(), start(small_plan())
    silent = release(plan, SGD, state, np.zeros(64, "f4"), [])
    update = random_vector(64, 1.0)
    answered = release(plan, SGD, state, update, ["0", "1"])
    np.testing.assert_allclose(
        answered.model - silent.model, plan.rotation.unrotate(update) / plan.denominator, atol=1e-5
    )


def test_denominator_is_the_planned_cohort():
    """A known trap of docs/privacy.md: drop one client and only SUM changes."""
    plan = small_plan(noise_multiplier=0)
    update = random_vector(64, 1.0)
    models = [release(plan, SGD, start(plan), update, names).model for names in (["0"], ["0", "1", "2"])]
    np.testing.assert_array_equal(*models)
    np.testing.assert_allclose(models[0], plan.rotation.unrotate(update) / (0.5 * 3), rtol=1e-6)


def test_epsilon_does_not_depend_on_the_cohort_and_noise_is_on_the_sum():
    """Trap: noise on the mean. Equal epsilon, and a mean with noise that falls as 1/n."""
    few, many = (small_plan(clients=400, cohort_size=n, linf_norm=0.3, dimension=20_000) for n in (2, 100))
    # But for what the rounding of larger sums adds.
    assert few.spent().epsilon == pytest.approx(many.spent().epsilon, rel=1e-6)
    assert (run(few, 1)[0][1].std() / run(many, 1)[0][1].std()) == pytest.approx(50, rel=0.05)


def test_each_epoch_draws_new_noise_under_a_new_key():
    plan = small_plan(dimension=20_000)
    models, _ = run(plan, 8)
    steps = np.diff(models, axis=0)
    first, second = steps[0], steps[4]  # the first rounds of two epochs
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(20_000)
    again, _ = run(plan, 8)
    np.testing.assert_array_equal(models, again)  # the control: the same key gives the same noise


def test_keys_are_ratcheted_and_none_is_left_at_the_end():
    plan = small_plan()
    _, after_one = run(plan, 4)
    assert after_one.secrets == Secrets(1, KEY.ratchet(), None)
    assert repr(after_one.secrets) == "Secrets(epoch=1, key=SecretKey(hidden))"
    assert "secrets" not in repr(after_one)
    _, over = run(plan, 8)
    assert over.secrets is None
    with pytest.raises(ReleaseOrderError, match="all 8 rounds of this run are released: there is no noise"):
        make_release(plan, over, np.zeros(plan.rotation.padded), [])
    with pytest.raises(AssertionError, match="a noise row would be released twice"):
        make_release(plan, replace(after_one, secrets=Secrets(0, KEY, None)), np.zeros(64), [])


def test_old_noise_on_new_data_is_never_released():
    """Trap: the difference of two releases with one noise row is a client's update, to the last digit."""
    plan = small_plan(family="independent", dimension=20_000)
    state, update = start(plan), random_vector(plan.rotation.padded, 1.0)
    first, secrets = make_release(plan, state, update, ["a"])
    second, _ = make_release(plan, state, np.zeros_like(update), ["a"])
    again, _ = make_release(plan, state, update, ["a"])  # an unreleased round runs again with the same row
    np.testing.assert_array_equal(first.noisy_sum, again.noisy_sum)
    assert np.corrcoef(first.noisy_sum - second.noisy_sum, plan.rotation.unrotate(update))[0, 1] > 0.9999
    after = apply_release(plan, SGD, state, first, secrets)
    replayed = apply_release(plan, SGD, replace(state, secrets=None), first, None)
    np.testing.assert_array_equal(after.model, replayed.model)
    assert spent_in(replayed.register) == spent_in(after.register)
    with pytest.raises(ReleaseOrderError, match="round 1 cannot follow round 1"):
        apply_release(plan, SGD, after, second, secrets)
    third, _ = make_release(plan, after, np.zeros_like(update), [])
    assert abs(np.corrcoef(third.noisy_sum, second.noisy_sum)[0, 1]) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("family", ["optimal", "honaker_full", "optimal_dense"])
@pytest.mark.parametrize("released", [0, 1, 3, 4, 6, 7])
def test_secrets_are_found_again_from_an_older_copy(released, family):
    """Whatever copy a crash left, the next round meets the noise and the masks that it would have met."""
    plan = small_plan(family=family)
    _, state = run(plan, released)
    for older in (0, max(0, released - 1)):
        _, old = run(plan, older)
        found = secrets_at(plan, old.secrets, released)
        assert (found.epoch, found.key) == (state.secrets.epoch, state.secrets.key)
        again = make_release(plan, begin_epoch(plan, replace(state, secrets=found)), np.zeros(64, "f4"), [])[
            0
        ]
        straight = make_release(plan, begin_epoch(plan, state), np.zeros(64, "f4"), [])[0]
        np.testing.assert_array_equal(again.noisy_sum, straight.noisy_sum)


def test_an_epoch_begins_once_however_often_it_is_asked_to():
    """A first round that is asked for again must not count a second epoch, nor a run that is over another one.

    An epoch that has begun counts whole, and frees the clients of the one before.
    """
    plan = small_plan()
    state = first_state(plan, np.zeros(50, np.float32), KEY)
    for number in range(8):
        state = begin_epoch(plan, state)
        assert begin_epoch(plan, state) is state
        assert len(state.ledger.entries) == number // 4 + 1
        assert plan.spent_on(state.ledger) == plan.spent(number // 4 + 1)
        state = release(plan, SGD, state, np.zeros(plan.rotation.padded, "f4"), [str(number % 4)])
    assert begin_epoch(plan, state) is state


def test_secrets_are_advanced_in_memory_of_their_own():
    """Rows drawn again after a crash need no buffers of their own each."""
    dimension = 200_000
    plan = small_plan(dimension=dimension, rotation="identity")
    given = secrets_at(plan, Secrets(0, KEY, None), 1)
    with counted(dimension) as peak:
        found = [secrets_at(plan, given, 3) for _ in range(2)]
    np.testing.assert_array_equal(*(secrets.stream.buffers for secrets in found))
    # Both results, and a row or two under way, in float64.
    assert peak.vectors < 2 * (2 * (len(given.stream.buffers) + 1) + 3)


# the register of spent clients


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=4), max_size=8))
def test_a_client_is_spent_once_whatever_the_history(history):
    register, seen, values = Register(), [], []
    for cohort in history:
        if len(set(cohort)) < len(cohort) or set(cohort) & set(seen):
            with pytest.raises(ParticipationError):
                register.spend(cohort)
        else:
            register = register.spend(cohort)
            seen += cohort
        values.append((register, frozenset(seen)))
    for value, spent in values:  # a refusal leaves the register as it was, and an older value stays valid
        assert spent_in(value) == spent


def test_a_round_copies_few_of_those_who_were_heard_before():
    register, copied, kept = Register(), 0, set()
    for number in range(1024):
        register = register.spend(str(10 * number + client) for client in range(10))
        new = [each for each in register.heard if id(each) not in kept]
        copied += sum(map(len, new))
        kept = {id(each) for each in register.heard}
        assert len(register.heard) <= number.bit_length() + 1
    assert len(spent_in(register)) == 10_240
    assert copied <= 10_240 * 11


# memory of a round beyond its state and its sum


DIMENSION = 1 << 19  # blocks of scratch are small compared with a vector of so many


@contextmanager
def counted(dimension=DIMENSION):
    """Count the largest number of float32 vectors (d,) that are made and alive at once."""
    peak = SimpleNamespace(vectors=0.0)
    tracemalloc.start()
    try:
        yield peak
        peak.vectors = tracemalloc.get_traced_memory()[1] / (4 * dimension)
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
ROTATED = 5 if compiling.loops() else 7


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
