"""Plans and keys of small runs, workers whose replies a function makes, and checkpoints of them."""

import json
import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from client.app import unpack
from client.privatize import privatize
from experiments.engines.grid import LocalGrid
from fedmf.accounting import EpochEvent, Ledger
from fedmf.clip_norm import AdaptiveClipping
from fedmf.mechanisms import design_run, of_run
from fedmf.mechanisms.schedules import rates
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.statement import Conduct, Statement, write_statement
from fedmf.updates import wire
from fedmf.updates.wire import Turn, with_tag
from server.checkpoint import Checkpoint
from server.cohort import SimulatedPopulation
from server.copies import SECRETS
from server.optimizer import Sgd
from server.record import FILE
from server.state import apply_release, begin_epoch, first_state, make_release
from server.strategy import FedMF

KEY = SecretKey.reproducible(11)


def small_plan(
    *,
    dimension: int = 50,
    clients: int = 12,
    cohort_size: int = 3,
    rounds_per_epoch: int = 4,
    epochs: int = 2,
    keep_probability: float = 0.5,
    rotation: str = "hadamard",
    value_type: str = "float32",
    noise_multiplier: float | None = 1.0,
    epsilon: float | None = None,
    delta: float = 1e-5,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
    max_epsilon: float | None = None,
    geometry: str = "l2",
    l2_norm: float | None = 1.0,
    linf_norm: float | None = None,
    family: str = "optimal",
    momentum: float = 0.0,
    schedule: str = "constant",
    clipping: AdaptiveClipping | None = None,
) -> Plan:
    """Return a plan; everything has a default."""
    compression = Compression(keep_probability, rotation, value_type)
    return make_plan(
        dimension=dimension,
        participation=Participation(clients, cohort_size, rounds_per_epoch, epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=l2_norm,
            linf_norm=linf_norm,
            dimension=dimension,
            cohort_size=cohort_size,
            compression=compression,
        ),
        privacy=PrivacyTarget(
            delta=delta,
            noise_multiplier=noise_multiplier,
            epsilon=epsilon,
            adjacency=adjacency,
            accountant=accountant,
            max_epsilon=max_epsilon,
            geometry=geometry,
        ),
        factorization=design_run(
            family, of_run(rounds_per_epoch, epochs, momentum, rates(schedule, rounds_per_epoch * epochs))
        ),
        seed=PublicSeed(5),
        clipping=clipping,
    )


def stated(plan: Plan, epochs: int = 2, **conduct: object) -> Statement:
    """Return the statement of a run that started `epochs` epochs of the plan, with secret keys."""
    return write_statement(
        plan, Ledger((plan.epoch_event,) * epochs), Conduct(**{"reproducible": False, **conduct})
    )


def random_vector(dimension: int, norm: float, seed: int = 0) -> np.ndarray:
    """Return a random float32 vector of Euclidean length `norm`."""
    vector = np.random.default_rng(seed).normal(size=dimension)
    return (vector * norm / np.linalg.norm(vector)).astype(np.float32)


def linf_event(*, noise_over_linf: float, keep_probability: float, coordinates: int) -> EpochEvent:
    """Return one epoch of L_inf-CSGM: all D `coordinates` at the bound, noise of sigma = `noise_over_linf` kappa_inf."""
    root = math.sqrt(coordinates)
    return EpochEvent(noise_over_linf / root, keep_probability, 1 / root)


PLAN = small_plan(noise_multiplier=0, keep_probability=0.5)
UPDATE = random_vector(50, 0.5)


class Answering:
    """A worker of one client a message; `answer(task fields, message)` makes each reply, or None for silence."""

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
    """Return the task of each client of a message."""
    task = dict(message.content.config_records[wire.TASK])
    asked = zip(task.pop(wire.CLIENT), task.pop(wire.MASK_KEY), strict=True)
    return [{**task, wire.CLIENT: client, wire.MASK_KEY: key} for client, key in asked]


def kept_by(fields):
    """Return how many coordinates a client of `PLAN` sends."""
    return len(wire.coordinates(SecretKey(bytes(fields[wire.MASK_KEY])), 64, 0.5))


def honest(fields, message, update=UPDATE, plan=PLAN):
    key, scale = SecretKey(bytes(fields[wire.MASK_KEY])), unpack(message)[1].scale
    kept = privatize(update, plan.client_plan, key, scale=scale)
    bit = bytes([kept.is_short] if plan.clipping else [])
    return replying(message, tagged(fields, message, wire.to_bytes(kept.values) + bit))


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
    """Run rounds with clients that `answer`; return the strategy and the worker, which has `seen` their tasks."""
    worker, strategy = Answering(answer, order), strategy_with(plan, **options)
    strategy.start(LocalGrid(worker), num_rounds=rounds, timeout=600)  # kernels may be compiled first
    return strategy, worker


def strategy_with(plan=PLAN, state=None, **options):
    state = state or first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    return FedMF(plan, Sgd(1.0), SimulatedPopulation(), state, **options)


SGD = Sgd(0.5, 0.9)
SETTINGS = {"seed": 1, "privacy.epsilon": 8.0}


def advance(plan, state, checkpoint=None, names=None, optimizer=SGD, short=0):
    """Release one round, in which `short` bits came, as the strategy and its callbacks do."""
    state = begin_epoch(plan, state)
    names = [f"{state.position(plan)[1]}-{k}" for k in range(3)] if names is None else names
    vector = random_vector(plan.rotation.padded, 1.0, state.round)
    made, secrets = make_release(plan, state, vector, names, short=short)
    after = apply_release(plan, optimizer, state, made, secrets)
    if checkpoint is not None:
        checkpoint.commit(made)
        checkpoint.settle(plan, after)
    return after


def played(plan, state, checkpoint=None, until=8):
    """Release the rounds up to `until`; return the last state."""
    while state.round < until:
        state = advance(plan, state, checkpoint)
    return state


def begun(plan, folder, every=3, rounds=0):
    """Return a checkpoint in `folder` after `rounds` rounds, and its state."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(folder, SETTINGS, plan.factorization.epochs, every)
    state = first_state(plan, np.zeros(plan.dimension, "f4"), KEY)
    checkpoint.begin(state)
    return checkpoint, played(plan, state, checkpoint, rounds)


def killed(checkpoint, folder):
    """Return the checkpoint as a process finds it that comes after a kill: its files, without those that live in memory."""
    shutil.copytree(checkpoint.folder, folder, ignore=shutil.ignore_patterns("*-shm"))
    return replace(checkpoint, folder=folder)


def change_secrets(checkpoint, arrays=(), origin=(), **about):
    """Change what the secret file has of itself and of the run's origin, or other arrays of it; None takes one out."""
    path = checkpoint.folder / SECRETS
    with np.load(path) as stored:
        kept = dict(stored)
    said = json.loads(str(kept["about"])) | about
    said["origin"] |= dict(origin)
    kept |= {"about": np.array(json.dumps(said)), **dict(arrays)}
    np.savez(path, **{name: array for name, array in kept.items() if array is not None})


def changed(folder, *statements):
    """Change the database of a checkpoint that nothing writes."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def kept_releases(record):
    """Return the releases whose noisy sums are still in a database."""
    with record._reading() as connection:
        (first,) = connection.execute("SELECT min(round) FROM blob WHERE owner = 'sum'").fetchone()
    return record.releases(first - 1) if first else []


def forget_round(folder, number):
    """Take a round from the record, as an older state has it."""
    changed(
        folder,
        f"DELETE FROM release WHERE round = {number}",
        f"DELETE FROM heard WHERE round = {number}",
        f"DELETE FROM blob WHERE owner = 'sum' AND round = {number}",
    )


def same(one, other):
    np.testing.assert_array_equal(one.model, other.model)
    assert sorted(one.slots) == sorted(other.slots)
    for name in one.slots:
        np.testing.assert_array_equal(one.slots[name], other.slots[name], strict=True)
    np.testing.assert_array_equal(one.scale, other.scale)
    assert (one.round, one.ledger, spent_in(one.register)) == (
        other.round,
        other.ledger,
        spent_in(other.register),
    )


def spent_in(register):
    """Return the clients that a `server.state.Register` holds."""
    return frozenset().union(*register.heard)
