"""Faults of clients, masks, sums, participation, models and recovery."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

import client.app
import client.privatize
import experiments.audit.scene
import server.strategy
from audit.noise_faults import is_last
from experiments.audit.sabotage import UNCLIPPED, patched
from experiments.audit.scene import EXAMPLES, Named, Run, name_of, number_of
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.checkpoint import Checkpoint
from server.record import Record
from server.state import (
    UNCLIPPED_BOUND,
    Register,
    Secrets,
    apply_release,
    begin_epoch,
    make_release,
    secrets_at,
)
from server.strategy import FedMF

FAVOURED = name_of(7)
ONE_NODE = SimpleNamespace(get_node_ids=lambda: [1])  # the grid of a scene


# masks


@contextmanager
def masks_of(owner):
    """Give each client the mask key of `owner(strategy, client, step, key)`: a key, a client and a step."""
    honest, configure, now = SecretKey.mask_key, FedMF.configure_train, []

    def asked(self, *given):
        now[:] = [self]
        return configure(self, *given)

    def mask_key(self, client, step):
        return honest(*owner(now[0], client, step, self))

    with patched((FedMF, "configure_train", asked), (SecretKey, "mask_key", mask_key)):
        yield


def asked_in(strategy, number):
    """Return the clients of round `number`."""
    (names,) = strategy.population.cohort(strategy.plan, number, ONE_NODE, key=None).values()
    return names


def of_the_cohort(chosen):
    """Give the client at each place of a cohort the mask key of the one at `chosen(place)`."""

    def owner(strategy, client, step, key):
        cohort = asked_in(strategy, strategy.state.round + 1)
        return key, cohort[chosen(cohort.index(client))], step

    return masks_of(owner)


def in_the_last_epoch(strategy, client, step, key):
    is_due = is_last(strategy.plan, strategy.state.position(strategy.plan)[0])
    return key, "everyone" if is_due else client, step


def elsewhere(strategy, client, step, key, firsts={}):  # noqa: B006
    """Use the first epoch's masks again, each for the next client and round."""
    epoch, _ = strategy.state.position(strategy.plan)
    if epoch == 0:
        firsts[id(strategy.plan)] = key
        return key, client, step
    rounds = strategy.plan.participation.rounds_per_epoch
    first, now = (
        [(one, t) for t in range(rounds) for one in asked_in(strategy, e * rounds + t + 1)]
        for e in (0, epoch)
    )
    return (firsts[id(strategy.plan)], *first[now.index((client, step)) - 1])


def keeping(coordinates):
    """Choose kept coordinates by `coordinates(key, dimension, keep_probability)`."""
    return patched((wire, "coordinates", coordinates), (client.privatize, "coordinates", coordinates))


def a_fifth_more(key, dimension, keep_probability, honest=wire.coordinates):
    """Keep coordinates a fifth more often where few are kept."""
    return honest(key, dimension, keep_probability * (1.2 if keep_probability < 0.05 else 1))


@contextmanager
def one_mask_moved():
    """Give all clients of a round one mask, moved by as many coordinates as the client's number."""
    honest_key, honest, moved = SecretKey.mask_key, wire.coordinates, {}

    def mask_key(self, client, step):
        own = honest_key(self, client, step)
        moved[own.reveal()] = honest_key(self, "everyone", step), number_of(client)
        return own

    def coordinates(key, dimension, keep_probability):
        shared, shift = moved[key.reveal()]
        return np.sort((honest(shared, dimension, keep_probability) + shift) % dimension)

    with patched((SecretKey, "mask_key", mask_key)), keeping(coordinates):
        yield


# the bounds on what a client sends

_decode, _privatize, _sent = wire.decode, client.privatize.privatize, client.app.sent_bytes


def passing_on(data, bounds, *, kept):
    """Decode a reply; what is not finite becomes as large as the server's sum takes."""
    if bounds.value_type == "float32" and isinstance(data, bytes) and len(data) == 4 * kept:
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            return np.full(kept, UNCLIPPED_BOUND, np.float32)
    return _decode(data, bounds, kept=kept)


# Clients that neither clip what they send nor look at it: with the server's own checks this is no fault of the product.
HOSTILE = ((client.privatize, "zero_if_not_finite", lambda rotated: rotated), *UNCLIPPED[:2])
UNLOOKED = ((wire, "decode", passing_on), UNCLIPPED[-1])
NOT_FINITE = (*HOSTILE[:2], *UNLOOKED)


@contextmanager
def when(replacements, is_due):
    """Put replacements in place in the rounds that `is_due(plan, epoch, step)` names."""
    now = [False]

    def begin(plan, state):
        now[0] = is_due(plan, *state.position(plan))
        return begin_epoch(plan, state)

    def switched(owner, name, value):
        honest, value = getattr(owner, name), getattr(value, "__func__", value)
        chosen = lambda *given, **more: (value if now[0] else honest)(*given, **more)  # noqa: E731
        return owner, name, staticmethod(chosen) if isinstance(owner, type) else chosen

    with patched((server.strategy, "begin_epoch", begin), *(switched(*each) for each in replacements)):
        yield


def in_round(number):
    return lambda plan, epoch, step: epoch * plan.participation.rounds_per_epoch + step + 1 == number


@contextmanager
def larger_bounds_for_one():
    honest_key, keys, theirs = SecretKey.mask_key, set(), set()

    def larger(bounds):
        return replace(bounds, l2_norm=3 * bounds.l2_norm, linf_norm=3 * bounds.linf_norm)

    def mask_key(self, client, step):
        own = honest_key(self, client, step)
        keys.update({own.reveal()} if client == FAVOURED else ())
        return own

    def privatize(update, plan, mask_key, **more):
        if mask_key.reveal() not in keys:
            return _privatize(update, plan, mask_key, **more)
        kept = _privatize(update, replace(plan, bounds=larger(plan.bounds)), mask_key, **more)
        theirs.add(wire.to_bytes(kept.values))
        return kept

    def decode(data, bounds, *, kept):
        return _decode(data, larger(bounds) if data in theirs else bounds, kept=kept)

    places = (
        (SecretKey, "mask_key", mask_key),
        (client.app, "privatize", privatize),
        (wire, "decode", decode),
    )
    with patched(*places, UNCLIPPED[-1]):
        yield


def sending(factor):
    """Multiply the kept values of a client by `factor(how many examples it has)`."""

    def sent_bytes(values, task):
        return _sent(factor(EXAMPLES[number_of(task.turn.client) % len(EXAMPLES)]) * values, task)

    return patched((client.app, "sent_bytes", sent_bytes))


def unclipped_beside_a_start():
    """Skip the L2 clip at a client that takes the start away, as all do."""

    def privatize(update, plan, mask_key, *, start=None, **more):
        with patched(*(UNCLIPPED[:1] if start is not None else ())):
            return _privatize(update, plan, mask_key, start=start, **more)

    return patched((client.app, "privatize", privatize))


def unclipped_where_padded_and_masked():
    """Send what is kept of the update as it is where coordinates are padded and masked."""

    def privatize(update, plan, mask_key, *, start=None, **more):
        kept = _privatize(update, plan, mask_key, start=start, **more)
        padded, keep = plan.rotation.padded, plan.keep_probability
        if not kept.is_finite or padded == plan.rotation.dimension or keep == 1:
            return kept
        whole = plan.rotation.turn(update, start).values
        return kept._replace(values=whole[wire.coordinates(mask_key, padded, keep)])

    return patched((client.app, "privatize", privatize))


def failing_together():
    """Let a client that cannot train fail with its whole message."""

    def zeros(task, plan):
        raise ValueError("a client that cannot train")

    return patched((client.app, "zeros", zeros))


# the sum, participation


def adding_each(change):
    """Add `change(part, who, strategy, memory)` of each reply's part and of the clients in it."""
    honest, memory = FedMF._add, {}

    def add(self, replies):
        total, answered = honest(self, [])
        for reply in replies:
            part, who = change(*honest(self, [reply]), self, memory)
            total, answered = total + part, [*answered, *who]
        return total, answered

    return patched((FedMF, "_add", add))


def changes(part, who, strategy, memory):
    """Take each client's update of the epoch before away from the one that it sends."""
    epoch, _ = strategy.state.position(strategy.plan)
    before = memory.get(",".join(who), 0.0) if epoch else 0.0
    memory[",".join(who)] = part.copy()
    return part - before, who


def without_zeros(part, who, *_):
    """Leave a client whose values are zeros out of those who are recorded as heard."""
    return part, who if part.any() else []


def counting_twice():
    """Add every reply that comes, a second one to the same task too."""
    honest = FedMF._add

    def add(self, replies):
        firsts, seconds = {}, {}
        for reply in replies:
            question = reply.metadata.reply_to_message_id
            (seconds if question in firsts else firsts)[question] = reply
        total, answered = honest(self, firsts.values())
        return total + honest(self, seconds.values())[0], answered

    def every_reply(grid, messages, *, timeout):
        for question in grid.push_messages(messages):
            yield from grid.pull_messages([question])

    return patched((FedMF, "_add", add), (server.strategy, "exchange", every_reply))


UNSPENT = (Register, "spend", lambda self, clients: self)


def taking_part_twice():
    """Ask the first client of an epoch's first round in its second round too."""
    honest = Named.cohort

    def cohort(self, plan, server_round, grid, *, key):
        (node, names), *_ = honest(self, plan, server_round, grid, key=key).items()
        if (server_round - 1) % plan.participation.rounds_per_epoch == 1:
            names[0] = honest(self, plan, server_round - 1, grid, key=key)[node][0]
        return {node: names}

    return patched((Named, "cohort", cohort), UNSPENT)


def asked_twice():
    """Ask one client through two messages of its round."""
    honest = FedMF.configure_train

    def configure(self, *given):
        first, *others = honest(self, *given)
        about = first.metadata
        again = type(first)(first.content, about.dst_node_id, "train", group_id=about.group_id)
        self._asked.append(replace(self._asked[0], message=again))
        return [first, *others, again]

    return patched((FedMF, "configure_train", configure), UNSPENT)


# models, recovery


@contextmanager
def with_exact_sums():
    """Yield a list that has the last round's sum without its noise."""
    exact = []

    def make(plan, state, rotated_sum, *given, **more):
        exact[:] = [plan.rotation.unrotate(rotated_sum.copy())]
        return make_release(plan, state, rotated_sum, *given, **more)

    with patched((server.strategy, "make_release", make)):
        yield exact


@contextmanager
def leaking_momentum():
    """Let the server optimizer keep the sum without its noise."""
    with with_exact_sums() as exact:

        def apply(plan, optimizer, state, release, secrets):
            after = apply_release(plan, optimizer, state, release, secrets)
            noise = (release.noisy_sum - exact[0]) / plan.denominator
            velocity = np.float32(after.slots["velocity"] - noise)
            return replace(after, slots={**after.slots, "velocity": velocity})

        with patched((server.strategy, "apply_release", apply)):
            yield


@contextmanager
def ahead_of_the_noise():
    """Put on record the sum without its noise."""
    append = Record.append
    with with_exact_sums() as exact:

        def write(record, release):
            append(record, replace(release, noisy_sum=exact[0].astype(np.float32)))

        with patched((Record, "append", write)):
            yield


def leaking_start():
    """Move the first model by a hundredth of what the clients of the first round hold."""
    honest, init, now = experiments.audit.scene.first_state, Run.__init__, []

    def begin(self, scene, holds, *given):
        now[:] = [holds]
        init(self, scene, holds, *given)

    def first(plan, start, secret):
        for who in range(plan.participation.clients):
            start += 0.01 * np.nan_to_num(now[0](who, 1), posinf=0, neginf=0)
        return honest(plan, start, secret)

    return patched((experiments.audit.scene, "first_state", first), (Run, "__init__", begin))


def drawn_anew():
    """Continue one round before the record's last, under another key."""
    honest = Checkpoint.restore

    def restore(self, plan, *given):
        state, again = honest(self, plan, *given)
        if len(again) < 2:
            return state, again
        before = again[-2][0]
        with self.record._writing() as connection:  # whose primary key would refuse the round
            for table in ("release", "heard", "blob"):
                connection.execute(f"DELETE FROM {table} WHERE round > ?", (before.round,))
        secrets = Secrets(before.position(plan)[0], state.secrets.key.derive("anew"), None)
        return replace(before, secrets=secrets_at(plan, secrets, before.round)), again[:-1]

    return patched((Checkpoint, "restore", restore))
