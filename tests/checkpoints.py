"""Checkpoints for tests: of small plans, round by round."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np

from plans import KEY, random_vector
from server.checkpoint import Checkpoint
from server.copies import SECRETS
from server.optimizer import Sgd
from server.record import FILE
from server.state import apply_release, begin_epoch, first_state, make_release

SGD = Sgd(0.5, 0.9)
SETTINGS = {"seed": 1, "privacy.epsilon": 8.0}


def advance(plan, state, checkpoint=None, names=None, optimizer=SGD):
    """Release one round, as the strategy and its callbacks do."""
    state = begin_epoch(plan, state)
    names = [f"{state.position(plan)[1]}-{k}" for k in range(3)] if names is None else names
    vector = random_vector(plan.rotation.padded, 1.0, state.round)
    made, secrets = make_release(plan, state, vector, names)
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
    assert (one.round, one.ledger, one.register.spent) == (other.round, other.ledger, other.register.spent)
