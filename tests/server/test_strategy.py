"""The strategy: each client has its own key and task, replies are summed whatever they hold, a release is committed before it is shown."""

import logging
from functools import partial

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from client.app import Task, pack, sent_bytes
from experiments.engines.grid import LocalGrid, set_identity
from fedmf.errors import PrivacyBudgetExhausted, ReleaseOrderError, RunStoppedError, SettingError
from fedmf.mechanisms.noise import next_noise
from fedmf.normals import STEP
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import Turn
from plans import (
    KEY,
    PLAN,
    Answering,
    honest,
    random_vector,
    replying,
    run,
    small_plan,
    spent_in,
    strategy_with,
    tagged,
)
from poison import joint
from server.cohort import ReplyPolicy, cohort_indices
from server.exchange import model_record, payloads

NOISY = small_plan(noise_multiplier=1.0)
FIRST = str(cohort_indices(PLAN, 1)[0])


# tasks


def test_every_client_gets_its_own_key_and_its_own_task_and_no_key_is_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        _, worker = run(honest, rounds=8)
    assert len({bytes(fields[wire.MASK_KEY]) for fields in worker.seen}) == len(worker.seen) == 24
    assert [int(fields[wire.EPOCH]) for fields in worker.seen] == [0] * 12 + [1] * 12
    for epoch in (0, 1):
        clients = [fields[wire.CLIENT] for fields in worker.seen if fields[wire.EPOCH] == epoch]
        assert sorted(clients, key=int) == [str(k) for k in range(12)]
    for fields in worker.seen:
        key = (KEY, KEY.ratchet())[fields[wire.EPOCH]].mask_key(fields[wire.CLIENT], fields[wire.STEP])
        assert bytes(fields[wire.MASK_KEY]) == key.reveal()
        assert key.reveal().hex() not in caplog.text
        assert repr(key.reveal()) not in caplog.text


def test_rounds_are_asked_for_in_order():
    strategy, worker = run(honest)
    with pytest.raises(ReleaseOrderError, match="the next one is 2"):
        strategy.configure_train(5, model_record(strategy.state.model), None, LocalGrid(worker))


# sums


def test_the_model_does_not_depend_on_the_order_of_replies():
    models = [
        run(lambda f, m: honest(f, m, random_vector(50, 1.0, int(f[wire.CLIENT]))), NOISY, 8, order)[0]
        for order in (1, -1)
    ]
    np.testing.assert_array_equal(models[0].state.model, models[1].state.model)


def test_silence_leaves_a_client_unspent_and_the_round_is_released():
    releases = []
    strategy, _ = run(
        lambda f, m: None if f[wire.CLIENT] == FIRST else honest(f, m),
        on_release=[lambda state, release: releases.append(release)],
    )
    assert FIRST not in spent_in(strategy.state.register)
    assert len(spent_in(strategy.state.register)) == len(releases[0].answered) == 2


def test_duplicates_and_replies_to_other_questions_are_dropped_also_where_they_are_passed_in_by_hand():
    once, _ = run(honest)

    def twice(fields, message):
        stray = honest(fields, message)
        stray.metadata.__dict__["_reply_to_message_id"] = "of another round"
        return [stray, honest(fields, message), honest(fields, message)]

    np.testing.assert_array_equal(run(twice)[0].state.model, once.state.model)
    strategy, grid = strategy_with(), LocalGrid(Answering(honest))
    messages = strategy.configure_train(1, model_record(strategy.state.model), None, grid)
    strategy.aggregate_train(1, list(grid.send_and_receive(messages)) * 2)
    np.testing.assert_array_equal(strategy.state.model, once.state.model)


def test_replies_are_added_in_float64_until_the_noise_is_on():
    """What is released is the exact sum of the replies and the noise, rounded once."""
    plan = small_plan(dimension=4096, keep_probability=1, rotation="identity", noise_multiplier=0.02)
    updates = {str(k): random_vector(4096, 0.99, k) for k in range(12)}
    _, worker = run(
        lambda f, m: honest(f, m, updates[str(f[wire.CLIENT])], plan), plan, commit=(released := []).append
    )
    exact = sum(updates[str(fields[wire.CLIENT])].astype("f8") for fields in worker.seen)
    stream = plan.factorization.epochs[0].stream
    row = next_noise(stream, stream.init(4096), KEY, dimension=4096)[0]
    noise = plan.sigma_in(0) * STEP * (row.mean + row.own * row.fresh)
    once, twice = (exact + noise).astype("f4"), exact.astype("f4") + noise.astype("f4")
    assert len(worker.seen) == 3
    assert np.mean(released[0].noisy_sum == once) > 0.999
    assert np.mean(released[0].noisy_sum == twice) < 0.95


def test_a_listener_to_replies_hears_each_client_with_what_it_sent():
    heard = {}
    run(lambda f, m: replying(m, tagged(f, m, str(f[wire.CLIENT]).encode())), on_reply=heard.__setitem__)
    assert heard == {str(client): str(client).encode() for client in cohort_indices(PLAN, 1)}


MALFORMED = [[b"one"], [b"one", b"two", b"three"], b"onetwo", [], ["one", "two"], [1, 2], 1.0]


@pytest.mark.parametrize("values", MALFORMED, ids=repr)
def test_values_that_are_not_one_for_each_client_count_for_none_and_a_missing_one_for_itself(values):
    set_identity()
    reply = Message(RecordDict({wire.UPDATE: ConfigRecord({wire.VALUES: values})}), reply_to=joint("a", "b"))
    assert [sent for sent in payloads(reply, 2) if isinstance(sent, bytes)] == []
    packed = pack([b"one", wire.NO_VALUES, b"three"], joint("a", "b", "c"))
    assert payloads(packed, 3) == [b"one", None, b"three"]


@pytest.mark.parametrize(("dtype", "kept"), [("float32", 100), ("float32", 10_486), ("int8", 10_486)])
def test_the_envelope_is_what_flower_serialises_beside_the_values(dtype, kept):
    set_identity()
    question = Message(RecordDict(), 1, MessageType.TRAIN)
    question.metadata.__dict__["_message_id"] = "a" * 64
    values = np.zeros(kept, dtype)
    task = Task(Turn(question.metadata.run_id, 0, 0, "0"), SecretKey.reproducible(0))
    reply = pack([sent_bytes(values, task)], question)
    serialised = sum(len(part.deflate()) for part in get_all_nested_objects(reply).values())
    assert serialised - values.nbytes == pytest.approx(wire.ENVELOPE_BYTES, abs=20)


# enough replies


def test_a_round_with_too_few_replies_is_asked_for_again_with_the_same_masks():
    attempts = []

    def silent_at_first(fields, message):
        attempts.append((fields[wire.CLIENT], bytes(fields[wire.MASK_KEY])))
        return None if len(attempts) <= 2 else honest(fields, message)

    strategy, _ = run(silent_at_first, NOISY, replies=ReplyPolicy(min_replies=2))
    assert sorted(attempts[:3]) == sorted(attempts[3:])
    np.testing.assert_array_equal(strategy.state.model, run(honest, NOISY)[0].state.model)
    assert len(spent_in(strategy.state.register)) == 3


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_run_stops_after_so_many_attempts_with_nothing_released_or_spent(attempts):
    releases, asked = [], []
    policy = ReplyPolicy(min_replies=1, max_attempts=attempts)
    with pytest.raises(RunStoppedError, match=f"in {attempts} attempts"):
        run(
            lambda f, m: asked.append(f[wire.CLIENT]),
            replies=policy,
            on_release=[lambda state, release: releases.append(release)],
        )
    assert releases == []
    assert sorted(asked) == sorted([str(client) for client in cohort_indices(PLAN, 1)] * attempts)


def test_a_policy_that_no_cohort_meets_is_refused_before_any_client_is_asked():
    with pytest.raises(
        SettingError, match="min_replies is 4, but a cohort has 3 clients; it can be at most 3"
    ):
        run(honest, replies=ReplyPolicy(min_replies=4))
    for name, value in ("max_attempts", 0), ("min_replies", -1):
        with pytest.raises(SettingError, match=f"^{name} is {value}"):
            ReplyPolicy(**{name: value})


def test_what_is_heard_of_a_round_may_keep_it_from_being_released():
    """The hook is told before anything is committed, and what it raises leaves the round to be asked again."""
    heard, committed = [], []

    def on_heard(number, asked, answered):
        heard.append((number, len(asked), len(answered), len(committed)))
        if len(heard) == 2:
            raise RunStoppedError("stop")

    def answer(fields, message):
        return None if fields[wire.CLIENT] == FIRST else honest(fields, message)

    strategy = strategy_with(NOISY, on_heard=on_heard, commit=committed.append)
    grid = LocalGrid(Answering(answer))
    with pytest.raises(RunStoppedError, match="stop"):
        strategy.start(grid, timeout=60)
    strategy.start(grid, num_rounds=1, timeout=60)
    assert heard == [(1, 3, 2, 0), (2, 3, 3, 1), (2, 3, 3, 1)]
    np.testing.assert_array_equal(strategy.state.model, run(answer, NOISY, 2)[0].state.model)


# releases


def test_a_release_is_committed_before_anything_shows_it():
    seen = []
    strategy = strategy_with(
        commit=lambda release: seen.append(("commit", release.round, strategy.state.round)),
        on_release=[lambda state, release: seen.append(("shown", state.round, strategy.state.round))],
    )
    strategy.start(LocalGrid(Answering(honest)), num_rounds=2)
    assert seen == [("commit", 1, 0), ("shown", 1, 1), ("commit", 2, 1), ("shown", 2, 2)]


def test_after_a_commit_that_fails_the_round_is_run_again_with_the_same_noise():
    """The noise stream moves on in place: its rows must be drawn again, not taken from what was overwritten."""
    failures, sums = [3], []

    def commit(release):
        sums.append(release.noisy_sum)
        if release.round in failures:
            failures.remove(release.round)
            raise OSError("No space left on device")

    strategy, grid = strategy_with(NOISY, commit=commit), LocalGrid(Answering(honest))
    with pytest.raises(OSError, match="No space"):
        strategy.start(grid)
    assert strategy.state.round == 2
    assert len(spent_in(strategy.state.register)) == 6
    strategy.start(grid, num_rounds=2)
    np.testing.assert_array_equal(sums[2], sums[3])
    np.testing.assert_array_equal(strategy.state.model, run(honest, NOISY, 4)[0].state.model)


def test_after_an_interrupt_of_the_commit_nothing_more_is_asked_or_released():
    """The round may be on disk: run again with other data, its noise row would be used twice."""
    committed = []

    def commit(release):
        committed.append(release.round)
        if release.round == 2:
            raise KeyboardInterrupt

    strategy, worker = strategy_with(commit=commit), Answering(honest)
    with pytest.raises(KeyboardInterrupt):
        strategy.start(LocalGrid(worker))
    for again in (lambda: strategy.start(LocalGrid(worker)), lambda: strategy.aggregate_train(2, [])):
        with pytest.raises(ReleaseOrderError, match="no round can follow round 1 in this process"):
            again()
    assert (committed, len(worker.seen)) == ([1, 2], 6)


def test_a_failing_view_does_not_take_a_release_back():
    def fail(state, release):
        raise OSError("no terminal")

    strategy = strategy_with(on_release=[fail])
    with pytest.raises(OSError, match="no terminal"):
        strategy.start(LocalGrid(Answering(honest)))
    assert strategy.state.round == 1  # continuing would not run round 1 again


# the budget


def test_a_run_ends_where_its_budget_does_and_leaves_no_key_behind(caplog):
    plan = small_plan(max_epsilon=small_plan().spent(1).epsilon * 1.01)
    strategy = strategy_with(plan)
    result = strategy.start(
        LocalGrid(Answering(partial(honest, plan=plan))),
        evaluate_fn=lambda number, arrays: MetricRecord({"round": number, "arrays": len(arrays)}),
    )
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert all(dict(metrics) == {"replies": 3} for metrics in result.train_metrics_clientapp.values())
    assert dict(result.evaluate_metrics_serverapp[2]) == {"round": 2, "arrays": 1}
    np.testing.assert_array_equal(wire.to_vector(result.arrays[wire.VECTOR].data), strategy.state.model)
    assert (strategy.state.round, strategy.state.secrets) == (4, None)
    assert (
        "max_epsilon ends this run after 1 of its 2 epochs, and the noise is designed for all" in caplog.text
    )


def test_a_budget_below_the_first_epoch_is_refused_and_no_client_is_asked():
    strategy = strategy_with(small_plan(max_epsilon=small_plan().spent(1).epsilon * 0.99))
    worker = Answering(honest)
    with pytest.raises(PrivacyBudgetExhausted, match="not started"):
        strategy.start(LocalGrid(worker))
    assert not worker.seen
    assert strategy.state.round == 0
