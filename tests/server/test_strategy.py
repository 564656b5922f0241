import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict

from experiments.engines.grid import LocalGrid
from fedmf.errors import PrivacyBudgetExhausted, ReleaseOrderError, RunStoppedError, SettingError
from fedmf.mechanisms import design, prefix_sum, restarted
from fedmf.mechanisms.noise import next_noise
from fedmf.normals import STEP
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from plans import KEY, random_vector, small_plan
from server.cohort import ReplyPolicy, SimulatedPopulation, cohort_indices
from server.messages import model_record
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from workers import PLAN, UPDATE, Answering, honest, replying, run, strategy_with, tagged


def test_every_client_gets_its_own_key_and_its_own_task():
    _, player = run(honest, rounds=8)
    assert len(player.seen) == 24
    assert len({bytes(fields[wire.MASK_KEY]) for fields in player.seen}) == 24
    assert [int(fields[wire.EPOCH]) for fields in player.seen] == [0] * 12 + [1] * 12
    for epoch in (0, 1):
        clients = [fields[wire.CLIENT] for fields in player.seen if fields[wire.EPOCH] == epoch]
        assert sorted(clients, key=int) == [str(k) for k in range(12)]


def test_model_does_not_depend_on_the_order_of_replies():
    plan = small_plan(noise_multiplier=1.0)
    models = [
        run(lambda f, m: honest(f, m, random_vector(50, 1.0, int(f[wire.CLIENT]))), plan, 8, order)[0]
        for order in (1, -1)
    ]
    np.testing.assert_array_equal(models[0].state.model, models[1].state.model)


@pytest.mark.parametrize(("ahead", "together"), [(1, 1), (63, 1), (64, 2), (100, 3), (1 << 16, 5)])
def test_masks_are_those_of_their_keys_and_few_are_drawn_ahead(ahead, together, monkeypatch):
    """A mask keeps 32 of 64 coordinates. Drawn all at once, those of a cohort would be as large as many models."""
    keys, drawn = [KEY.mask_key(str(client), 0) for client in range(5)], []
    expected = [wire.coordinates(key, 64, 0.5) for key in keys]
    monkeypatch.setattr("server.strategy._DRAWN_AHEAD", ahead)
    draw = wire.coordinates
    monkeypatch.setattr(wire, "coordinates", lambda *given: drawn.append(given) or draw(*given))
    strategy = FedMF(PLAN, Sgd(1.0), SimulatedPopulation(), first_state(PLAN, np.zeros(50, "f4"), KEY))
    for number, mask in enumerate(strategy._masks(keys)):
        np.testing.assert_array_equal(mask, expected[number])
        assert len(drawn) == min(5, (number // together + 1) * together)
    assert number == 4


WORTHLESS = {
    "error": lambda f, m: Message(Error(2, "training failed"), reply_to=m),
    "lost node": lambda f, m: Message(Error(5, "node unavailable"), reply_to=m),
    "empty": lambda f, m: Message(RecordDict(), reply_to=m),
    "wrong length": lambda f, m: replying(m, tagged(f, m, b"1234")),
    "random bytes": lambda f, m: replying(m, b"\x01\x02\x03"),
    "nan": lambda f, m: replying(
        m,
        tagged(
            f,
            m,
            np.full(
                len(wire.coordinates(SecretKey(bytes(f[wire.MASK_KEY])), 64, 0.5)), np.nan, "f4"
            ).tobytes(),
        ),
    ),
    "other record": lambda f, m: Message(RecordDict({"else": ArrayRecord()}), reply_to=m),
}


@pytest.mark.parametrize("name", WORTHLESS)
def test_errors_and_malformed_replies_count_as_zero_vectors(name):
    """docs/reliability.md: such a client is spent and counted, and the sum does not change."""
    reports = []
    strategy, _ = run(WORTHLESS[name], on_release=[lambda state, report: reports.append(report)])
    assert not strategy.state.model.any()
    assert len(reports[0].answered) == 3
    assert len(strategy.state.register.spent) == 3


def test_a_crashing_client_changes_nothing_but_its_own_zero():
    """A known trap of docs/privacy.md: a reply's values decide a release."""

    def crash_first(fields, message):
        first = str(cohort_indices(PLAN, 1)[0])
        return (
            WORTHLESS["error"](fields, message) if fields[wire.CLIENT] == first else honest(fields, message)
        )

    def zero_first(fields, message):
        first = str(cohort_indices(PLAN, 1)[0])
        return honest(fields, message, UPDATE * (fields[wire.CLIENT] != first))

    crashed, zeroed = run(crash_first)[0].state, run(zero_first)[0].state
    np.testing.assert_array_equal(crashed.model, zeroed.model)
    assert crashed.register == zeroed.register
    assert crashed.round == zeroed.round == 1


def test_silence_leaves_a_client_unspent_and_the_round_is_released():
    silent = str(cohort_indices(PLAN, 1)[1])
    reports = []
    strategy, _ = run(
        lambda f, m: None if f[wire.CLIENT] == silent else honest(f, m),
        on_release=[lambda state, report: reports.append(report)],
    )
    assert silent not in strategy.state.register.spent
    assert len(strategy.state.register.spent) == 2
    assert (reports[0].cohort_size, len(reports[0].answered)) == (3, 2)


def test_duplicates_and_replies_to_other_questions_are_dropped():
    once, _ = run(honest)

    def twice(fields, message):
        stray = honest(fields, message)
        stray.metadata.__dict__["_reply_to_message_id"] = "of another round"
        return [stray, honest(fields, message), honest(fields, message)]

    np.testing.assert_array_equal(run(twice)[0].state.model, once.state.model)


def test_a_reply_counts_once_also_for_who_passes_replies_in_by_hand():
    state = first_state(PLAN, np.zeros(50, "f4"), KEY)
    models = []
    for times in (1, 2):
        strategy = FedMF(PLAN, Sgd(1.0), SimulatedPopulation(), state)
        grid = LocalGrid(Answering(honest))
        messages = strategy.configure_train(1, model_record(state.model), None, grid)
        replies = list(grid.send_and_receive(messages))
        strategy.aggregate_train(1, replies * times)
        models.append(strategy.state.model)
    np.testing.assert_array_equal(*models)


def test_hostile_values_move_the_sum_by_no_more_than_the_bound():
    def hostile(fields, message):
        kept = len(wire.coordinates(SecretKey(bytes(fields[wire.MASK_KEY])), 64, 0.5))
        return replying(message, tagged(fields, message, np.full(kept, 3e38, "<f4").tobytes()))

    moved = np.linalg.norm(run(hostile)[0].state.model) * PLAN.denominator
    assert moved <= 3 * PLAN.bounds.radius * (1 + 1e-5)


def test_without_a_node_nothing_is_asked_and_no_epoch_begins():
    class Empty(LocalGrid):
        def get_node_ids(self):
            return []

    strategy = strategy_with()
    with pytest.raises(RunStoppedError, match="no node is connected for round 1"):
        strategy.start(Empty(Answering(honest)))
    assert strategy.state.ledger.entries == ()


def test_a_budget_leaves_no_key_behind():
    plan = small_plan()
    plan = replace(plan, privacy=replace(plan.privacy, max_epsilon=plan.spent(1).epsilon * 1.01))
    strategy, _ = run(lambda f, m: honest(f, m, plan=plan), plan, rounds=8)
    assert strategy.state.round == 4
    assert strategy.state.secrets is None


def test_a_run_that_its_budget_will_end_early_says_once_that_its_noise_is_designed_for_all(caplog):
    plan = small_plan(epochs=3)
    limited = replace(plan.privacy, max_epsilon=plan.spent(2).epsilon)
    same_in_all = design("independent", prefix_sum(4))
    for told, changes in (
        (True, {"privacy": limited}),
        (False, {}),
        (False, {"privacy": limited, "factorization": restarted(same_in_all, 3)}),
    ):
        caplog.clear()
        short = replace(plan, **changes)
        run(lambda f, m, plan=short: honest(f, m, plan=plan), short, rounds=12)
        said = [record.getMessage() for record in caplog.records if "designed for all" in record.getMessage()]
        assert len(said) == told
        assert not told or "after 2 of its 3 epochs" in said[0]


def test_rounds_are_asked_for_in_order():
    strategy, player = run(honest)
    with pytest.raises(ReleaseOrderError, match="the next one is 2"):
        strategy.configure_train(5, model_record(strategy.state.model), None, LocalGrid(player))


def test_result_holds_the_last_model_and_the_scores_of_evaluate_fn():
    player = Answering(honest)
    strategy = FedMF(PLAN, Sgd(1.0), SimulatedPopulation(), first_state(PLAN, np.zeros(50, "f4"), KEY))
    from flwr.app import MetricRecord

    result = strategy.start(
        LocalGrid(player),
        num_rounds=2,
        timeout=0.05,
        evaluate_fn=lambda number, arrays: MetricRecord({"round": number, "arrays": len(arrays)}),
    )
    np.testing.assert_array_equal(wire.to_vector(result.arrays[wire.VECTOR].data), strategy.state.model)
    assert dict(result.evaluate_metrics_serverapp[2]) == {"round": 2, "arrays": 1}


def test_no_mask_key_is_logged(caplog):
    with caplog.at_level(logging.DEBUG):
        _, player = run(honest, rounds=8)
    for fields in player.seen:
        assert bytes(fields[wire.MASK_KEY]).hex() not in caplog.text
        assert repr(bytes(fields[wire.MASK_KEY])) not in caplog.text


def test_a_round_with_too_few_replies_is_asked_for_again_with_the_same_masks():
    attempts = []

    def silent_at_first(fields, message):
        attempts.append((fields[wire.CLIENT], bytes(fields[wire.MASK_KEY])))
        return None if len(attempts) <= 2 else honest(fields, message)

    plan = small_plan(noise_multiplier=1.0)
    strategy, _ = run(silent_at_first, plan, replies=ReplyPolicy(min_replies=2))
    assert sorted(attempts[:3]) == sorted(attempts[3:])
    straight, _ = run(honest, plan)
    np.testing.assert_array_equal(strategy.state.model, straight.state.model)
    assert len(strategy.state.register.spent) == 3


def test_a_run_stops_after_so_many_attempts_with_nothing_released_or_spent():
    reports, asked = [], []
    policy = ReplyPolicy(min_replies=1, max_attempts=2)
    with pytest.raises(RunStoppedError, match="in 2 attempts"):
        run(
            lambda f, m: asked.append(f[wire.CLIENT]),
            replies=policy,
            on_release=[lambda state, release: reports.append(release)],
        )
    assert reports == []
    assert sorted(asked) == sorted([str(client) for client in cohort_indices(PLAN, 1)] * 2)


def test_one_attempt_is_enough_for_who_wants_no_more():
    asked = []
    with pytest.raises(RunStoppedError, match="in 1 attempts"):
        run(lambda f, m: asked.append(f[wire.CLIENT]), replies=ReplyPolicy(min_replies=1, max_attempts=1))
    assert len(asked) == 3
    with pytest.raises(SettingError, match="max_attempts is 0"):
        ReplyPolicy(max_attempts=0)


def test_errors_count_as_replies_for_the_policy():
    """Silence is what the policy may count; an error may depend on data."""
    strategy, _ = run(WORTHLESS["error"], replies=ReplyPolicy(min_replies=3))
    assert strategy.state.round == 1


def test_more_replies_than_a_cohort_has_clients_are_refused_before_anyone_is_asked():
    with pytest.raises(
        SettingError, match="min_replies is 4, but a cohort has 3 clients; it can be at most 3"
    ):
        run(honest, replies=ReplyPolicy(min_replies=4))


def test_replies_are_added_in_float64_until_the_noise_is_on():
    """What is released is the exact sum of the replies and the noise, rounded once."""
    plan = small_plan(dimension=4096, keep_probability=1, rotation="identity", noise_multiplier=0.02)
    updates = {str(k): random_vector(4096, 0.99, k) for k in range(12)}
    _, player = run(
        lambda f, m: honest(f, m, updates[str(f[wire.CLIENT])], plan), plan, commit=(released := []).append
    )
    clients = [str(fields[wire.CLIENT]) for fields in player.seen]
    exact = sum(updates[client].astype("f8") for client in clients)
    stream = plan.factorization.epochs[0].stream
    row = next_noise(stream, stream.init(4096), KEY, dimension=4096)[0]
    noise = plan.sigma_in(0) * STEP * (row.mean + row.own * row.fresh)
    once, twice = (exact + noise).astype("f4"), exact.astype("f4") + noise.astype("f4")
    assert len(clients) == 3
    assert np.mean(released[0].noisy_sum == once) > 0.999
    assert np.mean(released[0].noisy_sum == twice) < 0.95


def test_what_start_returns_is_numbered_by_round_and_ends_where_the_budget_does():
    plan = small_plan(max_epsilon=small_plan().spent(1).epsilon * 1.01)
    strategy = FedMF(plan, Sgd(1.0), SimulatedPopulation(), first_state(plan, np.zeros(50, "f4"), KEY))
    result = strategy.start(LocalGrid(Answering(partial(honest, plan=plan))))
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4]
    assert all(dict(metrics) == {"replies": 3} for metrics in result.train_metrics_clientapp.values())
    assert strategy.state.round == 4
    sent = result.arrays[wire.VECTOR].data
    np.testing.assert_array_equal(np.frombuffer(sent, "<f4"), strategy.state.model)


def test_a_budget_below_the_first_epoch_is_refused_and_nobody_is_asked():
    plan = small_plan(max_epsilon=small_plan().spent(1).epsilon * 0.99)
    strategy = FedMF(plan, Sgd(1.0), SimulatedPopulation(), first_state(plan, np.zeros(50, "f4"), KEY))
    player = Answering(honest)
    with pytest.raises(PrivacyBudgetExhausted, match="not started"):
        strategy.start(LocalGrid(player))
    assert not player.seen
    assert strategy.state.round == 0


def test_values_at_the_smallest_bounds_are_not_lost_in_the_sum():
    plan = small_plan(
        noise_multiplier=0, keep_probability=1, rotation="identity", l2_norm=1e-18, linf_norm=1e-18
    )
    update = random_vector(50, 1e-18 * (1 - 1e-4))
    strategy, _ = run(lambda f, m: honest(f, m, update, plan), plan)
    np.testing.assert_allclose(strategy.state.model, update, rtol=1e-6, atol=1e-28)


def test_who_listens_to_replies_hears_each_client_with_what_it_sent():
    heard = {}
    run(lambda f, m: replying(m, tagged(f, m, str(f[wire.CLIENT]).encode())), on_reply=heard.__setitem__)
    assert heard == {str(client): str(client).encode() for client in cohort_indices(PLAN, 1)}
