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
from listed_nodes import KEYS, deployed
from plans import KEY, random_vector, small_plan
from server.cohort import cohort_indices
from tasks import values_in
from workers import (
    PLAN,
    UPDATE,
    Answering,
    fields_of,
    honest,
    kept_by,
    replying,
    run,
    strategy_with,
    tagged,
    turn_in,
)

PLANS = {
    value_type: small_plan(noise_multiplier=0, linf_norm=0.25, value_type=value_type)
    for value_type in ("float32", "int8")
}
FIRST, SECOND = map(str, cohort_indices(PLAN, 1)[:2])
SPECIAL = [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.25, 0.2500001, -1.0, 0.0]


@st.composite
def payloads(draw, kept):
    """Bytes of every sort: random, of the right length, of special values, of another's length."""
    how = draw(st.sampled_from(["random", "right length", "special", "near", "levels"]))
    if how == "random":
        return draw(st.binary(max_size=300))
    if how == "right length":
        return draw(st.binary(min_size=4 * kept, max_size=4 * kept))
    if how == "levels":
        return draw(st.binary(min_size=kept, max_size=kept))
    count = kept if how == "special" else kept + draw(st.integers(-2, 2))
    values = draw(st.lists(st.sampled_from(SPECIAL), min_size=count, max_size=count))
    return np.array(values, "<f4").tobytes()


@st.composite
def contents(draw, kept, tag):
    """The content of a reply: mostly of the right form around hostile bytes, sometimes of no form at all."""
    data = draw(payloads(kept))
    if draw(st.sampled_from([True, True, True, False])):  # a hostile client holds its own key
        data = tag(data)
    form = draw(
        st.sampled_from(
            ["right"] * 6
            + ["error", "empty", "other name", "metrics", "array", "number", "bare", "two", "none", "texts"]
        )
    )
    if form == "error":
        return Error(draw(st.integers(0, 9)), "x")
    if form == "empty":
        return RecordDict()
    if form == "metrics":
        return RecordDict({wire.UPDATE: MetricRecord({wire.VALUES: 1.0})})
    if form == "array":
        dtype = draw(st.sampled_from(["float32", "int8", "object", "float64", ""]))
        array = Array(dtype, (draw(st.integers(0, 2**40)),), wire.STYPE, data)
        return RecordDict({wire.UPDATE: ArrayRecord({wire.VALUES: array})})
    others = {"number": len(data), "bare": data, "two": [data, data], "none": [], "texts": [str(data)]}
    value = others.get(form, [data])
    return RecordDict({wire.UPDATE if form != "other name" else "else": ConfigRecord({wire.VALUES: value})})


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
    assert len(state.register.spent) == 3
    moved = (state.model - zeroed.model).astype("f8") * plan.denominator
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved) <= plan.bounds.radius * (1 + 1e-5)


@given(st.data(), st.sampled_from(["float32", "int8"]))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_message_moves_the_sum_beyond_its_bound(data, value_type):
    check_one(data, value_type)


@pytest.mark.slow
@given(st.data(), st.sampled_from(["float32", "int8"]))
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
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


# tags


def values_of(fields):
    return np.full(kept_by(fields), 0.1, "<f4").tobytes()


def under(fields, message, key=None, **changed):
    """The reply of a client that knows all but the mask key, or answers another task under it."""
    key = key or SecretKey(bytes(fields[wire.MASK_KEY]))
    return replying(message, with_tag(values_of(fields), key, turn_in(message, fields)._replace(**changed)))


FORGED = {
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
def test_a_reply_that_is_not_of_its_task_is_the_zero_vector(forged, zeroed, caplog):
    """Bit for bit, its client spent and counted, and nothing logged."""
    with caplog.at_level(logging.DEBUG):
        state = run(first_only(FORGED[forged]))[0].state
    np.testing.assert_array_equal(state.model, zeroed.model)
    assert state.register.spent == zeroed.register.spent
    assert FIRST in state.register.spent
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

    def values(fields, message, update):
        return [values_in(honest(f, message, update(f)))[0] for f in fields]

    def swapped(fields, message):
        sent = values(fields, message, lambda f: UPDATE)
        return replying(message, sent[1], sent[0], sent[2])

    def two_zeros(fields, message):
        third = fields[2][wire.CLIENT]
        return replying(message, *values(fields, message, lambda f: UPDATE * (f[wire.CLIENT] == third)))

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
