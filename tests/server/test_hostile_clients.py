"""No bytes from a client move the sum beyond its bound, crash a round, or stop its release (property-based)."""

from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings, strategies as st

from experiments.engines.grid import LocalGrid
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import TAG_BYTES
from plans import KEY, random_vector, small_plan
from server.cohort import SimulatedPopulation, cohort_indices
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from workers import Answering, honest, tagged

PLANS = {
    value_type: small_plan(noise_multiplier=0, linf_norm=0.25, value_type=value_type)
    for value_type in ("float32", "int8")
}
HOSTILE = {kind: str(cohort_indices(plan, 1)[1]) for kind, plan in PLANS.items()}
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


def released(plan, answer):
    state = first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    strategy = FedMF(plan, Sgd(1.0), SimulatedPopulation(), state)
    strategy.start(LocalGrid(Answering(answer)), num_rounds=1)
    return strategy.state


def check_one(data, value_type):
    plan, hostile = PLANS[value_type], HOSTILE[value_type]

    def answer(fields, message):
        if fields[wire.CLIENT] != hostile:
            return honest(fields, message, random_vector(50, 1.0, int(fields[wire.CLIENT])), plan)
        key = SecretKey(bytes(fields[wire.MASK_KEY]))
        kept = len(wire.coordinates(key, plan.rotation.padded, plan.compression.keep_probability))
        return Message(data.draw(contents(kept, partial(tagged, fields, message))), reply_to=message)

    def without(fields, message):
        vector = random_vector(50, 1.0, int(fields[wire.CLIENT])) * (fields[wire.CLIENT] != hostile)
        return honest(fields, message, vector, plan)

    state, zeroed = released(plan, answer), released(plan, without)
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
    plan, hostile = PLANS["float32"], HOSTILE["float32"]
    wild = lambda f, m: honest(f, m, random_vector(50, 1.0, 1), plan)  # noqa: E731

    def answer(fields, message):
        reply = wild(fields, message)
        if fields[wire.CLIENT] == hostile:
            record = reply.content.config_records[wire.UPDATE]
            (sent,) = record[wire.VALUES]
            wild_values = np.full((len(sent) - TAG_BYTES) // 4, 1.0, "<f4").tobytes()
            record[wire.VALUES] = [tagged(fields, message, wild_values)]
        return reply

    moved = np.linalg.norm(released(plan, answer).model - released(plan, wild).model) * plan.denominator
    assert moved > plan.bounds.radius
