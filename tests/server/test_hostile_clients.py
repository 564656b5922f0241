"""No bytes from a client move the sum beyond its bound, crash a round, or stop its release; a reply counts for its own task alone."""

import logging
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings, strategies as st

from experiments.engines.grid import LocalGrid
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import with_tag
from nodes import KEYS, deployed
from plans import (
    KEY,
    PLAN,
    UPDATE,
    Answering,
    fields_of,
    honest,
    kept_by,
    random_vector,
    replying,
    run,
    small_plan,
    spent_in,
    strategy_with,
    tagged,
    turn_in,
)
from poison import values_in
from server.cohort import ReplyPolicy, cohort_indices

PLANS = {
    value_type: small_plan(noise_multiplier=0, linf_norm=0.25, value_type=value_type)
    for value_type in ("float32", "int8")
}
FIRST, SECOND = map(str, cohort_indices(PLAN, 1)[:2])
SPECIAL = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.25, 0.2500001, -1.0, 0.0]


def payloads(kept):
    """Bytes of every sort: random, of the right length, of special values, of another's length."""

    def special(count):
        values = st.lists(st.sampled_from(SPECIAL), min_size=count, max_size=count)
        return values.map(lambda drawn: np.array(drawn, "<f4").tobytes())

    exact = [st.binary(min_size=size, max_size=size) for size in (kept, 4 * kept)]
    return st.one_of(
        st.binary(max_size=300), *exact, *(special(kept + more) for more in (-2, -1, 0, 0, 1, 2))
    )


def values(found):
    return RecordDict({wire.UPDATE: ConfigRecord({wire.VALUES: found})})


def array_of(dtype):
    return lambda data: RecordDict(
        {wire.UPDATE: ArrayRecord({wire.VALUES: Array(dtype, (2**40,), wire.STYPE, data)})}
    )


NO_FORM = [
    lambda data: Error(2, "x"),
    lambda data: RecordDict(),
    lambda data: RecordDict({"else": values([data])[wire.UPDATE]}),
    lambda data: RecordDict({wire.UPDATE: MetricRecord({wire.VALUES: 1.0})}),
    *map(array_of, ["float32", "object", ""]),
    *(
        lambda data, found=found: values(found(data))
        for found in (len, bytes, lambda data: [data] * 2, list, str)
    ),
]


@st.composite
def contents(draw, kept, tag):
    """The content of a reply: mostly of the right form around hostile bytes, sometimes of no form at all."""
    data = draw(payloads(kept))
    if draw(st.integers(0, 3)):  # a hostile client holds its own key
        data = tag(data)
    return draw(st.sampled_from([lambda data: values([data])] * len(NO_FORM) + NO_FORM))(data)


def check_one(data, value_type):
    plan = PLANS[value_type]

    def answer(fields, message):
        if fields[wire.CLIENT] != SECOND:
            return honest(fields, message, random_vector(50, 1.0, int(fields[wire.CLIENT])), plan)
        found = data.draw(contents(kept_by(fields), partial(tagged, fields, message)))
        return Message(found, reply_to=message)

    def without(fields, message):
        vector = random_vector(50, 1.0, int(fields[wire.CLIENT])) * (fields[wire.CLIENT] != SECOND)
        return honest(fields, message, vector, plan)

    state, zeroed = run(answer, plan)[0].state, run(without, plan)[0].state
    assert state.round == 1
    assert len(spent_in(state.register)) == 3
    moved = (state.model - zeroed.model).astype("f8") * plan.denominator
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved) <= plan.bounds.radius * (1 + 1e-5)


@given(st.data(), st.sampled_from(["float32", "int8"]))
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
def test_no_message_moves_the_sum_beyond_its_bound(data, value_type):
    check_one(data, value_type)


@pytest.mark.slow
@given(st.data(), st.sampled_from(["float32", "int8"]))
@settings(max_examples=10_000, suppress_health_check=list(HealthCheck))
def test_ten_thousand_messages_do_not_move_the_sum_beyond_its_bound(data, value_type):
    check_one(data, value_type)


def test_without_the_servers_bounds_a_message_would(monkeypatch):
    """The control: a decoder that only unpacks lets the sum move by as much as a client likes."""

    def unpack(data, bounds, *, kept):
        return np.frombuffer(data, "<f4") if len(data) == 4 * kept else np.zeros(kept, "f4")

    monkeypatch.setattr(wire, "decode", unpack)
    plan = PLANS["float32"]
    wild = lambda f, m: honest(f, m, random_vector(50, 1.0, 1), plan)  # noqa: E731

    def answer(fields, message):
        if fields[wire.CLIENT] != SECOND:
            return wild(fields, message)
        return replying(message, tagged(fields, message, np.ones(kept_by(fields), "<f4").tobytes()))

    moved = np.linalg.norm(run(answer, plan)[0].state.model - run(wild, plan)[0].state.model)
    assert moved * plan.denominator > plan.bounds.radius


def test_values_at_the_bound_of_each_coordinate_are_held_to_the_bound_of_all_of_them():
    plan = PLANS["float32"]

    def sum_of(level):
        def answer(fields, message):
            if fields[wire.CLIENT] != SECOND:
                return honest(fields, message, random_vector(50, 1.0, 1), plan)
            return replying(
                message, tagged(fields, message, np.full(kept_by(fields), level, "<f4").tobytes())
            )

        return run(answer, plan)[0].state.model.astype("f8") * plan.denominator

    assert 0.25 * np.sqrt(0.5 * 64) > plan.bounds.radius
    assert np.linalg.norm(sum_of(0.25) - sum_of(0)) <= plan.bounds.radius * (1 + 1e-5)


def test_the_sum_has_room_for_a_whole_cohort_at_the_bound():
    plan = small_plan(
        noise_multiplier=0, linf_norm=0.25, dimension=4, keep_probability=1, rotation="identity",
        clients=128, cohort_size=64, rounds_per_epoch=2,
    )  # fmt: skip
    vector = np.array([0.25, -0.25, 0, 0], np.float32)
    model = run(lambda fields, message: honest(fields, message, vector, plan), plan)[0].state.model
    np.testing.assert_allclose(np.abs(model) * plan.denominator, [16, 16, 0, 0], rtol=1e-4)


# tags


def values_of(fields):
    return np.full(kept_by(fields), 0.1, "<f4").tobytes()


def under(fields, message, key=None, **changed):
    """The reply of a client that knows all but the mask key, or answers another task under it."""
    key = key or SecretKey(bytes(fields[wire.MASK_KEY]))
    return replying(message, with_tag(values_of(fields), key, turn_in(message, fields)._replace(**changed)))


FORGED = {
    "error": lambda f, m: Message(Error(2, "training failed"), reply_to=m),
    "lost node": lambda f, m: Message(Error(5, "node unavailable"), reply_to=m),
    "empty": lambda f, m: Message(RecordDict(), reply_to=m),
    "wrong length": lambda f, m: replying(m, tagged(f, m, b"1234")),
    "nan": lambda f, m: replying(m, tagged(f, m, np.full(kept_by(f), np.nan, "f4").tobytes())),
    "other record": lambda f, m: Message(RecordDict({"else": ArrayRecord()}), reply_to=m),
    "no tag": lambda f, m: replying(m, values_of(f)),
    "a made-up tag": lambda f, m: replying(m, values_of(f) + bytes(16)),
    "another key": lambda f, m: under(f, m, SecretKey.reproducible(9)),
    "another run": lambda f, m: under(f, m, run=m.metadata.run_id + 1),
    "another epoch": lambda f, m: under(f, m, epoch=1),
    "another round": lambda f, m: under(f, m, step=1),
    "another client": lambda f, m: under(f, m, client="11"),
    "another client's key": lambda f, m: under(f, m, KEY.mask_key("11", f[wire.STEP])),
}


def first_only(answer):
    return lambda f, m: answer(f, m) if f[wire.CLIENT] == FIRST else honest(f, m)


@pytest.fixture(scope="module")
def zeroed():
    """The state after a round in which the first client sends the zero vector itself."""
    return run(first_only(lambda f, m: honest(f, m, 0 * UPDATE)))[0].state


@pytest.mark.parametrize("forged", FORGED)
def test_errors_and_malformed_replies_count_as_zero_vectors(forged, zeroed, caplog):
    """Bit for bit, its client spent and counted, and nothing logged: silence is what a policy counts, an error may depend on data."""
    policy = ReplyPolicy(min_replies=3, max_attempts=1)
    with caplog.at_level(logging.DEBUG):
        state = run(first_only(FORGED[forged]), replies=policy)[0].state
    np.testing.assert_array_equal(state.model, zeroed.model)
    assert spent_in(state.register) == spent_in(zeroed.register)
    assert FIRST in spent_in(state.register)
    assert {record.levelname for record in caplog.records} <= {"INFO", "DEBUG"}


def test_the_same_reply_with_its_own_tag_counts_whatever_run_it_says(zeroed):
    """The control of the test above; the run of a reply is that of its task."""

    def says_another_run(fields, message):
        reply = honest(fields, message)
        reply.metadata.__dict__["_run_id"] = message.metadata.run_id + 1
        return reply

    assert not np.array_equal(run(first_only(under))[0].state.model, zeroed.model)
    np.testing.assert_array_equal(run(says_another_run)[0].state.model, run(honest)[0].state.model)


def test_of_a_message_of_several_clients_only_those_with_a_tag_of_their_own_count():
    """A node that swaps the values of two clients of one message sends two zero vectors, and the third counts."""

    class Joint(Answering):
        def collect(self, message_ids):
            return [self._answer(fields_of(m), m) for m in [self.messages.pop()]] if self.messages else []

    def played(answer):
        strategy = strategy_with(tasks_per_message=3)
        strategy.start(LocalGrid(Joint(answer)), num_rounds=1)
        return strategy.state.model

    def sent(fields, message, factors):
        pairs = zip(fields, factors, strict=True)
        return [values_in(honest(f, message, factor * UPDATE))[0] for f, factor in pairs]

    def swapped(fields, message):
        first, second, third = sent(fields, message, (1, 1, 1))
        return replying(message, second, first, third)

    def two_zeros(fields, message):
        return replying(message, *sent(fields, message, (0, 0, 1)))

    np.testing.assert_array_equal(played(swapped), played(two_zeros))
    assert played(swapped).any()


@pytest.mark.parametrize("is_forged", [True, False])
def test_a_forged_reply_cannot_accuse_the_node_that_it_answers_for(tmp_path, is_forged):
    """Another digest in a reply takes a node out of the epoch; in a forged one it is not even looked at."""

    def answer(message):
        tag = (
            (lambda f: values_of(f) + bytes(16)) if is_forged else lambda f: tagged(f, message, values_of(f))
        )
        reply = replying(message, *map(tag, fields_of(message)))
        reply.content[wire.HELD] = ConfigRecord({wire.DIGEST: "0" * 64})
        return reply

    strategy, grid, _ = deployed(tmp_path, {"a": 12}, train=answer)
    strategy.start(grid, num_rounds=1)
    assert not strategy.state.model.any()
    assert strategy.population._roster.changed == (() if is_forged else (KEYS["a"],))
