"""A reply counts only as the answer to its own task: whoever lacks the mask key sends the zero vector."""

import logging

import numpy as np
import pytest
from flwr.app import ConfigRecord

from experiments.engines.grid import LocalGrid
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import with_tag
from nodes import Nodes, holding, key_of
from plans import KEY
from server.cohort import SimulatedPopulation, cohort_indices
from server.members import Attendance, DeployedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF
from workers import PLAN, UPDATE, Answering, fields_of, honest, replying, run, tagged, turn_in

FIRST = str(cohort_indices(PLAN, 1)[0])
OTHER = SecretKey.reproducible(9)


def values_of(fields):
    key = SecretKey(bytes(fields[wire.MASK_KEY]))
    kept = len(wire.coordinates(key, PLAN.rotation.padded, PLAN.compression.keep_probability))
    return np.full(kept, 0.1, "<f4").tobytes()


def under(fields, message, key=None, **changed):
    """The reply of who knows all but the mask key, or answers another task under it."""
    key = key or SecretKey(bytes(fields[wire.MASK_KEY]))
    return replying(message, with_tag(values_of(fields), key, turn_in(message, fields)._replace(**changed)))


FORGED = {
    "no tag": lambda f, m: replying(m, values_of(f)),
    "a made-up tag": lambda f, m: replying(m, values_of(f) + bytes(16)),
    "another key": lambda f, m: under(f, m, OTHER),
    "another run": lambda f, m: under(f, m, run=m.metadata.run_id + 1),
    "another epoch": lambda f, m: under(f, m, epoch=1),
    "another round": lambda f, m: under(f, m, step=1),
    "another client": lambda f, m: under(f, m, client="11"),
    "another client's key": lambda f, m: under(f, m, KEY.mask_key("11", f[wire.STEP])),
}


def first_only(answer, otherwise=honest):
    return lambda f, m: answer(f, m) if f[wire.CLIENT] == FIRST else otherwise(f, m)


@pytest.fixture(scope="module")
def zeroed():
    """The state after a round in which the first client sends the zero vector itself."""
    return run(first_only(lambda f, m: honest(f, m, 0 * UPDATE)))[0].state


@pytest.mark.parametrize("forged", FORGED)
def test_a_reply_that_is_not_of_its_task_is_the_zero_vector(forged, zeroed, caplog):
    """Bit for bit, its client spent and counted, and nobody told."""
    with caplog.at_level(logging.DEBUG):
        state = run(first_only(FORGED[forged]))[0].state
    np.testing.assert_array_equal(state.model, zeroed.model)
    assert state.register == zeroed.register
    assert FIRST in state.register.spent
    assert {record.levelname for record in caplog.records} <= {"INFO", "DEBUG"}


def test_the_same_reply_with_its_own_tag_counts(zeroed):
    """The control of the test above."""
    state = run(first_only(lambda f, m: under(f, m)))[0].state
    assert not np.array_equal(state.model, zeroed.model)


def test_a_reply_that_was_taken_from_another_round_is_the_zero_vector():
    """The bytes of a client's first reply, sent again in the next epoch as an answer to its new task."""
    kept, models = {}, []
    for is_hostile in (True, False):

        def answer(fields, message, is_hostile=is_hostile):
            if fields[wire.EPOCH] == 0:
                reply = honest(fields, message)
                kept[fields[wire.CLIENT]] = reply.content.config_records[wire.UPDATE][wire.VALUES]
                return reply
            return (
                replying(message, *kept[fields[wire.CLIENT]])
                if is_hostile
                else honest(fields, message, 0 * UPDATE)
            )

        models.append(run(answer, rounds=8)[0].state.model)
    np.testing.assert_array_equal(*models)


def test_of_a_message_of_several_clients_only_those_with_a_tag_of_their_own_count():
    """A node that swaps the values of two clients of one message sends two zero vectors, and the third counts."""

    class Joint(Answering):
        def collect(self, message_ids):
            return [self._answer(fields_of(m), m) for m in [self.messages.pop()]] if self.messages else []

    def played(answer):
        state = first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY)
        strategy = FedMF(PLAN, Sgd(1.0), SimulatedPopulation(), state, tasks_per_message=3)
        strategy.start(LocalGrid(Joint(answer)), num_rounds=1)
        return strategy.state.model

    def values(fields, message, update):
        return [
            honest(f, message, update(f)).content.config_records[wire.UPDATE][wire.VALUES][0] for f in fields
        ]

    def swapped(fields, message):
        sent = values(fields, message, lambda f: UPDATE)
        return replying(message, sent[1], sent[0], sent[2])

    def two_zeros(fields, message):
        third = fields[2][wire.CLIENT]
        return replying(message, *values(fields, message, lambda f: UPDATE * (f[wire.CLIENT] == third)))

    np.testing.assert_array_equal(played(swapped), played(two_zeros))
    assert played(swapped).any()


def test_who_forges_a_reply_cannot_accuse_the_node_that_it_answers_for(tmp_path):
    """Another digest in a reply takes a node out of the epoch; in a forged one it is not even looked at."""

    def forged(message):
        reply = replying(message, *(values_of(fields) + bytes(16) for fields in fields_of(message)))
        reply.content[wire.HELD] = ConfigRecord({wire.DIGEST: "0" * 64})
        return reply

    def hostile(message):
        reply = replying(message, *(tagged(f, message, values_of(f)) for f in fields_of(message)))
        reply.content[wire.HELD] = ConfigRecord({wire.DIGEST: "0" * 64})
        return reply

    for answer, changed in ((forged, ()), (hostile, (key_of("a"),))):
        folder = tmp_path / answer.__name__
        folder.mkdir()
        population = DeployedPopulation(Attendance(12, timeout=0.05, query_timeout=1.0), folder)
        state = first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY)
        strategy = FedMF(PLAN, Sgd(1.0), population, state, tasks_per_message=4)
        strategy.start(Nodes({"a": holding(12)}, {"a": answer}), num_rounds=1)
        assert not strategy.state.model.any()
        assert population._roster.changed == changed


def test_the_run_of_a_reply_is_that_of_its_task_whatever_the_reply_says():

    def says_another_run(fields, message):
        reply = honest(fields, message)
        reply.metadata.__dict__["_run_id"] = message.metadata.run_id + 1
        return reply

    np.testing.assert_array_equal(run(says_another_run)[0].state.model, run(honest)[0].state.model)
