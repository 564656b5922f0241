"""Players for tests: clients whose replies a function makes."""

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from client.privatize import privatize
from experiments.engines.grid import LocalGrid
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from fedmf.updates.wire import Turn, with_tag
from plans import KEY, random_vector, small_plan
from server.cohort import SimulatedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF

PLAN = small_plan(noise_multiplier=0, keep_probability=0.5)
UPDATE = random_vector(50, 0.5)


class Answering:
    """A player of one client a message whose `answer(task fields, message)` makes each reply, or None for silence."""

    def __init__(self, answer, order=1):
        self._answer, self._order, self.seen = answer, order, []

    def submit(self, messages):
        self.messages = list(messages)[:: self._order]

    def collect(self, message_ids):
        while self.messages:
            message = self.messages.pop(0)
            (fields,) = fields_of(message)
            self.seen.append(fields)
            reply = self._answer(fields, message)
            if reply is not None:
                return reply if isinstance(reply, list) else [reply]
        return []


def fields_of(message):
    """What each client of a message is told, on its own."""
    task = dict(message.content.config_records[wire.TASK])
    asked = zip(task.pop(wire.CLIENT), task.pop(wire.MASK_KEY), strict=True)
    return [{**task, wire.CLIENT: client, wire.MASK_KEY: key} for client, key in asked]


def kept_by(fields):
    """How many coordinates a client of `PLAN` sends."""
    return len(wire.coordinates(SecretKey(bytes(fields[wire.MASK_KEY])), 64, 0.5))


def honest(fields, message, update=UPDATE, plan=PLAN):
    kept = privatize(update, plan.client_plan, SecretKey(bytes(fields[wire.MASK_KEY])))
    return replying(message, tagged(fields, message, wire.to_bytes(kept.values)))


def replying(message, *data):
    """Return the reply of the message's clients with `data` as it is."""
    return Message(RecordDict({wire.UPDATE: ConfigRecord({wire.VALUES: list(data)})}), reply_to=message)


def turn_in(message, fields):
    """Return what a reply to one client's task in a message answers."""
    return Turn(message.metadata.run_id, fields[wire.EPOCH], fields[wire.STEP], fields[wire.CLIENT])


def tagged(fields, message, data):
    """Return `data`, which may be any bytes, with the tag of one client's task in a message."""
    return with_tag(data, SecretKey(bytes(fields[wire.MASK_KEY])), turn_in(message, fields))


def run(answer, plan=PLAN, rounds=1, order=1, **options):
    """Play rounds with clients who `answer`; return the strategy and the worker, which has `seen` their tasks."""
    worker, strategy = Answering(answer, order), strategy_with(plan, **options)
    strategy.start(LocalGrid(worker), num_rounds=rounds, timeout=30)
    return strategy, worker


def strategy_with(plan=PLAN, state=None, **options):
    state = state or first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    return FedMF(plan, Sgd(1.0), SimulatedPopulation(), state, **options)
