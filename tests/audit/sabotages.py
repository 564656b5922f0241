"""Faults put into the pipeline on purpose, beyond the five controls of the command, and the tests that must catch each.

In every one functions of the product are replaced while a scene is run. `CAUGHT` has those that the audit must catch,
`ESCAPES` those that it cannot, `BY_CHANCE` those that it catches in some runs.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import client.app
import client.privatize
import experiments.audit.scene
import server.state
import server.strategy
from experiments.audit.sabotage import UNCLIPPED, VARIANCE, Sabotage, drawn_by, patched, scaled_noise
from fedmf.mechanisms.noise import NoiseRow, next_noise
from fedmf.normals import STEP
from fedmf.plan import Plan
from fedmf.randomness import PublicSeed, SecretKey, gaussian_row
from fedmf.register import Register
from fedmf.updates import wire
from fedmf.updates.clipping import clip_l2, l2_norm
from server import journal
from server.aggregation import UNCLIPPED_BOUND, FixedPoint
from server.checkpoint import Checkpoint
from server.state import Secrets, apply_release, begin_epoch, make_release
from server.strategy import FedMF

SENSITIVITY, OWN_ROUND, JOURNAL = ("coupled sensitivity",), ("coupled own round",), ("coupled journal",)
CORRELATION, DIRECTIONS, REPEATED = (
    ("residual correlation",),
    ("residual directions",),
    ("residual repeated rows",),
)
MASKS = ("mask correlation",)
TILE, PAIR = 20_000, (5, 42)
FAVOURED = "1002"
INT8, PADDED = lambda scene: scene.value_type == "int8", lambda scene: scene.dimension in (200, 255)
RESUMED = lambda scene: scene.resume_after is not None  # noqa: E731
MASKED = lambda scene: scene.keep_probability < 1  # noqa: E731


# how much noise


def of_plan(change):
    """Let the server release under another plan."""
    return patched(
        (
            server.strategy,
            "make_release",
            lambda plan, state, *given, **more: make_release(change(plan), state, *given, **more),
        )
    )


def by_row_norms(plan):
    """Take the smallest row norm of C for its sensitivity."""
    first = plan.factorization.epochs[0]
    wrong = np.linalg.norm(first.stream.materialize_strategy(), axis=1).min()
    return plan.with_noise_multiplier(plan.noise_multiplier * wrong / first.sensitivity)


def is_last(plan, epoch):
    return epoch == plan.participation.epochs - 1


def unpadded_or_unmasked(plan, epoch, step):
    return float(plan.rotation.padded == plan.dimension or plan.compression.keep_probability == 1)


def after_release(change):
    """Change what is released, given the plan, the state, the rotated sum and the release."""

    def make(plan, state, rotated_sum, answered, **more):
        given = rotated_sum.copy()
        release, secrets = make_release(plan, state, rotated_sum, answered, **more)
        return replace(release, noisy_sum=change(plan, state, given, release)), secrets

    return patched((server.strategy, "make_release", make))


def only_where_sent(plan, state, rotated_sum, release):
    return np.where(plan.rotation.unrotate(rotated_sum) == 0, 0, release.noisy_sum).astype(np.float32)


@contextmanager
def none_where_clipped():
    """Leave a round without noise if an update is more than 1.5 times as long as its bound."""
    is_over = [False]

    def clip(update, bound, *, norm=None):
        is_over[0] |= (l2_norm(update) if norm is None else norm) > 1.5 * bound
        return clip_l2(update, bound, norm=norm)

    def make(plan, state, *given, **more):
        over, is_over[0] = is_over[0], False
        return make_release(plan.with_noise_multiplier(0.0) if over else plan, state, *given, **more)

    with patched((client.privatize, "clip_l2", clip), (server.strategy, "make_release", make)):
        yield


@contextmanager
def divided_by_who_spoke():
    spoke, decode = [], wire.decode

    def look(data, bounds, *, kept):
        values = decode(data, bounds, kept=kept)
        spoke.append(bool(values.any()))
        return values

    def scale(plan, state, rotated_sum, release):
        factor = plan.participation.cohort_size / max(1, sum(spoke))
        spoke.clear()
        return (release.noisy_sum * factor).astype(np.float32)

    with patched((wire, "decode", look)), after_release(scale):
        yield


@contextmanager
def scaled_by_replies():
    """Scale the noise by how many answered over how many were asked."""

    def make(plan, state, rotated_sum, answered, **more):
        share = len(answered) / plan.participation.cohort_size
        return make_release(
            plan.with_noise_multiplier(plan.noise_multiplier * share), state, rotated_sum, answered, **more
        )

    with patched((server.strategy, "make_release", make)):
        yield


# fresh rows, and what is made of them


def third_from_first(change):
    """Draw the third row of an epoch as `change(its own, the first one)`."""

    def draw(key, row, dimension):
        drawn = gaussian_row(key, row, dimension)
        return change(drawn, gaussian_row(key, 0, dimension)) if row == 2 else drawn

    return lambda: drawn_by(draw)


def changed(change):
    """Draw rows as `change` of those that are due."""
    return lambda: drawn_by(lambda key, row, dimension: change(gaussian_row(key, row, dimension)))


def generator(key, row):
    return np.random.default_rng(int.from_bytes(key.derive("noise row", row).reveal(), "little"))


def of_one_coordinate(own, first):
    return np.concatenate([first[:1], own[1:]])


def permuted(own, first):
    return first[PublicSeed(0).generator("sabotage", len(first)).permutation(len(first))]


def without_a_direction(drawn):
    lost = PublicSeed(0).generator("sabotage direction").standard_normal(len(drawn))
    return drawn - lost * (lost @ drawn) / (lost @ lost)


def smaller_and_larger(drawn):
    return drawn * np.resize([0.95, (2 - 0.95**2) ** 0.5], len(drawn))


def two_correlated(drawn):
    one, other = (place % len(drawn) for place in PAIR)
    if len(drawn) > max(PAIR):
        drawn[other] = 0.3 * drawn[one] + (1 - 0.3**2) ** 0.5 * drawn[other]
    return drawn


def of_float32(key, row, dimension):
    """Draw by Box and Muller's transform in float32, from angles of 24 bits."""
    rng, pairs = generator(key, row), -(-dimension // 2)
    radius = np.sqrt(-2 * np.log((rng.integers(2**53, size=pairs) + 0.5) / 2**53)).astype(np.float32)
    angle = 2 * np.pi * (rng.integers(2**24, size=pairs) + 0.5) / 2**24
    planar = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32) * radius
    return planar.ravel()[:dimension].astype(np.float64) / STEP


def short(key, row, dimension):
    number = int.from_bytes(key.derive("noise row", row).reveal()[:4], "little")
    return gaussian_row(SecretKey.reproducible(number), row, dimension)


def correlated(change):
    """Replace each noise row by `change` of it."""

    def draw(*given, **more):
        row, after = next_noise(*given, **more)
        return change(row), after

    return lambda: patched((server.state, "next_noise", draw))


def of_float16(row):
    values = (STEP * (row.mean + row.own * row.fresh)).astype(np.float16).astype(np.float64)
    return NoiseRow(np.zeros_like(row.mean), 1.0, values / STEP)


def public_from_the_third_epoch():
    """Draw the noise of the third epoch and of all later ones by a key that anyone can compute."""

    def make(plan, state, *given, **more):
        epoch, own = state.position(plan)[0], state.secrets
        public = own if epoch < 2 else replace(own, key=SecretKey.reproducible(epoch))
        release, secrets = make_release(plan, replace(state, secrets=public), *given, **more)
        return release, replace(secrets, key=own.key)

    return patched((server.strategy, "make_release", make))


def with_key(change):
    """Derive keys by `change(first key of the run, key, purpose, position)`; None: as is due."""
    honest, ratchet, firsts = SecretKey.derive, SecretKey.ratchet, {}

    def following(self):
        after = ratchet(self)
        firsts[after.reveal()] = firsts.get(self.reveal(), self)
        return after

    def derive(self, purpose, *position):
        found = change(firsts.get(self.reveal(), self), purpose, position)
        return honest(self, purpose, *position) if found is None else honest(*found)

    return patched((SecretKey, "derive", derive), (SecretKey, "ratchet", following))


def same_noise():
    return with_key(
        lambda first, purpose, position: (first, purpose, *position) if purpose == "noise row" else None
    )


def same_masks():
    return with_key(
        lambda first, purpose, position: (first, purpose, position[0], 0) if purpose == "mask" else None
    )


# masks


def masks_of(owner):
    """Give each client the mask key of `owner(client, step)`, of the same epoch."""
    honest = SecretKey.mask_key
    return patched((SecretKey, "mask_key", lambda self, client, step: honest(self, *owner(client, step))))


@contextmanager
def of_strategy(owner):
    """Give each client the mask key of `owner(strategy, client, step, key)`."""
    honest, configure, now = SecretKey.mask_key, FedMF.configure_train, []

    def asked(self, *given):
        now[:] = [self]
        return configure(self, *given)

    def mask_key(self, client, step):
        return honest(*owner(now[0], client, step, self))

    with patched((FedMF, "configure_train", asked), (SecretKey, "mask_key", mask_key)):
        yield


def by_pairs(strategy, client, step, key):
    cohort = strategy.population.cohort(strategy.plan, strategy.state.round + 1)
    place = cohort.index(client)
    return key, cohort[place - place % 2], step


def in_the_last_epoch(strategy, client, step, key):
    return (
        key,
        "everyone" if is_last(strategy.plan, strategy.state.position(strategy.plan)[0]) else client,
        step,
    )


def elsewhere(strategy, client, step, key, firsts={}):  # noqa: B006
    """Use the first epoch's masks again, each for the next client and round."""
    epoch, _ = strategy.state.position(strategy.plan)
    if epoch == 0:
        firsts[id(strategy.plan)] = key
        return key, client, step
    rounds = strategy.plan.participation.rounds_per_epoch
    places = [
        [
            (one, t)
            for t in range(rounds)
            for one in strategy.population.cohort(strategy.plan, e * rounds + t + 1)
        ]
        for e in (0, epoch)
    ]
    place = places[1].index((client, step))
    return (firsts[id(strategy.plan)], *places[0][place - 1])


@contextmanager
def one_mask_moved():
    """Give all clients of a round one mask, moved by as many coordinates as the client's number."""
    honest_key, honest, moved = SecretKey.mask_key, wire.coordinates, {}

    def mask_key(self, client, step):
        own = honest_key(self, client, step)
        moved[own.reveal()] = honest_key(self, "everyone", step), int(client)
        return own

    def coordinates(key, dimension, keep_probability):
        shared, shift = moved[key.reveal()]
        return np.sort((honest(shared, dimension, keep_probability) + shift) % dimension)

    places = ((SecretKey, "mask_key", mask_key), (wire, "coordinates", coordinates))
    with patched(*places, (client.privatize, "coordinates", coordinates)):
        yield


# the bounds on what a client sends


_fit, _decode, _mask = FixedPoint.fit, wire.decode, client.app.mask


def passing_on(data, bounds, *, kept):
    """Decode a reply; what is not finite becomes as large as the server's sum takes."""
    if bounds.value_type == "float32" and isinstance(data, bytes) and len(data) == 4 * kept:
        values = np.frombuffer(data, "<f4")
        if not np.isfinite(values).all():
            return np.full(kept, UNCLIPPED_BOUND, np.float32)
    return _decode(data, bounds, kept=kept)


UNLOOKED = ((wire, "decode", passing_on), UNCLIPPED[-1])
NOT_FINITE = ((client.privatize, "zero_if_not_finite", lambda rotated: rotated), UNCLIPPED[0], *UNLOOKED)


@contextmanager
def when(replacements, is_due):
    """Put replacements in place in the rounds that `is_due(plan, epoch, step)` names."""
    now = [False]

    def begin(plan, state):
        now[0] = is_due(plan, *state.position(plan))
        return begin_epoch(plan, state)

    def switched(owner, name, value):
        honest = getattr(owner, name)
        value = getattr(value, "__func__", value)
        chosen = lambda *given, **more: (value if now[0] else honest)(*given, **more)  # noqa: E731
        return owner, name, staticmethod(chosen) if isinstance(owner, type) else chosen

    with patched((server.strategy, "begin_epoch", begin), *(switched(*each) for each in replacements)):
        yield


def in_round(number):
    return lambda plan, epoch, step: epoch * plan.participation.rounds_per_epoch + step + 1 == number


@contextmanager
def larger_bounds_for_one():
    theirs = set()

    def larger(bounds):
        return replace(bounds, l2_norm=3 * bounds.l2_norm, linf_norm=3 * bounds.linf_norm)

    def mask(update, task, plan, **more):
        if task.client != FAVOURED:
            return _mask(update, task, plan, **more)
        values = _mask(update, task, replace(plan, bounds=larger(plan.bounds)), **more)
        theirs.add(wire.to_bytes(values))
        return values

    def decode(data, bounds, *, kept):
        return _decode(data, larger(bounds) if data in theirs else bounds, kept=kept)

    with patched((client.app, "mask", mask), (wire, "decode", decode), UNCLIPPED[-1]):
        yield


def times_examples():
    """Multiply the kept values by the client's number of examples."""
    honest = client.app.mask
    counts = lambda client: 1 + int(client) % 5  # noqa: E731
    return patched(
        (
            client.app,
            "mask",
            lambda update, task, plan, **more: counts(task.client) * honest(update, task, plan, **more),
        )
    )


def unclipped_beside_a_start():
    """Skip the L2 clip at a client that takes the start away, as all do."""
    honest = client.privatize.privatize

    def privatize(update, *, start=None, **more):
        if start is None:
            return honest(update, start=start, **more)
        with patched(UNCLIPPED[0]):
            return honest(update, start=start, **more)

    return patched((client.app, "privatize", privatize))


# the sum, participation, models, recovery


def adding(add):
    """Sum replies as `add(honest, strategy, replies, memory)` does."""
    honest, memory = FedMF._add, {}
    return patched((FedMF, "_add", lambda self, replies: add(honest, self, replies, memory)))


def changes(honest, strategy, replies, memory):
    """Take each client's update of the epoch before away from the one that it sends."""
    memory = memory if strategy.state.round else memory.clear() or memory
    total, answered = honest(strategy, [])
    for reply in replies:
        part, who = honest(strategy, [reply])
        name = ",".join(who)
        total, answered = total + part - memory.get(name, 0.0), [*answered, *who]
        memory[name] = part.copy()
    return total, answered


@contextmanager
def counting_twice():
    """Add every reply that comes, a second one to the same task too."""

    def add(honest, strategy, replies, memory):
        firsts, seconds = {}, {}
        for reply in replies:
            question = reply.metadata.reply_to_message_id
            (seconds if question in firsts else firsts)[question] = reply
        total, answered = honest(strategy, firsts.values())
        return total + honest(strategy, seconds.values())[0], answered

    def every_reply(grid, messages, *, timeout):
        for question in grid.push_messages(messages):
            yield from grid.pull_messages([question])

    with adding(add), patched((server.strategy, "exchange", every_reply)):
        yield


@contextmanager
def taking_part_twice():
    """Ask the first client of an epoch's first round in its second round too."""
    honest = experiments.audit.scene.Named.cohort

    def cohort(self, plan, server_round):
        names = honest(self, plan, server_round)
        if (server_round - 1) % plan.participation.rounds_per_epoch == 1:
            names[0] = honest(self, plan, server_round - 1)[0]
        return names

    with patched(
        (experiments.audit.scene.Named, "cohort", cohort), (Register, "spend", lambda self, clients: self)
    ):
        yield


@contextmanager
def asked_twice():
    """Ask one client through two messages of its round."""
    honest = FedMF.configure_train

    def configure(self, *given):
        messages = list(honest(self, *given))
        again = type(messages[0])(
            messages[0].content,
            messages[0].metadata.dst_node_id,
            "train",
            group_id=messages[0].metadata.group_id,
        )
        self._asked.append(replace(self._asked[0], message=again))
        return [*messages, again]

    with patched((FedMF, "configure_train", configure), (Register, "spend", lambda self, clients: self)):
        yield


@contextmanager
def leaking_momentum():
    """Let the server optimizer keep the sum without its noise."""
    exact = []

    def make(plan, state, rotated_sum, *given, **more):
        exact[:] = [plan.rotation.unrotate(rotated_sum.copy())]
        return make_release(plan, state, rotated_sum, *given, **more)

    def apply(plan, optimizer, state, release, secrets):
        after = apply_release(plan, optimizer, state, release, secrets)
        noise = (release.noisy_sum - exact[0]) / plan.denominator
        return replace(after, slots={**after.slots, "velocity": np.float32(after.slots["velocity"] - noise)})

    with patched((server.strategy, "make_release", make), (server.strategy, "apply_release", apply)):
        yield


@contextmanager
def leaking_start():
    """Move the first model by a hundredth of what the clients of the first round hold."""
    honest, init, now = experiments.audit.scene.first_state, experiments.audit.scene.Run.__init__, []

    def begin(self, scene, holds, *given, **more):
        now[:] = [holds]
        init(self, scene, holds, *given, **more)

    def first(plan, start, secret):
        for who in range(plan.participation.clients):
            start += 0.01 * np.nan_to_num(now[0](who, 1), posinf=0, neginf=0)
        return honest(plan, start, secret)

    run = experiments.audit.scene.Run
    with patched((experiments.audit.scene, "first_state", first), (run, "__init__", begin)):
        yield


def drawn_anew():
    """Go on one round before the journal's last, under another key."""
    honest = Checkpoint.restore

    def restore(self, plan, *given):
        state, again = honest(self, plan, *given)
        if len(again) < 2:
            return state, again
        before = again[-2][0]
        secrets = Secrets(before.position(plan)[0], state.secrets.key.derive("anew"), None)
        return replace(before, secrets=secrets), again[:-1]

    return patched((Checkpoint, "restore", restore))


@contextmanager
def ahead_of_the_noise():
    """Write to the journal the sum without its noise."""
    exact, append = [], journal.append

    def make(plan, state, rotated_sum, *given, **more):
        exact[:] = [plan.rotation.unrotate(rotated_sum.copy()).astype(np.float32)]
        return make_release(plan, state, rotated_sum, *given, **more)

    def write(path, release):
        append(path, replace(release, noisy_sum=exact[0]))

    with patched((server.strategy, "make_release", make), (journal, "append", write)):
        yield


def rarely_none():
    def make(plan, state, *given, **more):
        rare = (
            state.secrets is not None
            and int.from_bytes(state.secrets.key.derive("rare").reveal()[:8], "little") % 1000 == 0
        )
        return make_release(plan.with_noise_multiplier(0.0) if rare else plan, state, *given, **more)

    return patched((server.strategy, "make_release", make))


def timed(name, factor_at, applies=lambda scene: True):
    return Sabotage(
        name, "the noise of some rounds is scaled", VARIANCE, lambda: scaled_noise(factor_at), applies
    )


def drawn(name, patches, *caught_by, applies=lambda scene: True):
    return Sabotage(name, "fresh rows of noise have another law", caught_by, patches, applies)


def one(name, caught_by, patches, applies=lambda scene: True):
    return Sabotage(name, "", caught_by, patches, applies)


CAUGHT = (
    timed("noise times 0.958", lambda plan, epoch, step: 0.958),
    timed("no noise in two of three rounds", lambda plan, epoch, step: float(step % 3 == 0)),
    timed("noise in the first epoch only", lambda plan, epoch, step: float(epoch == 0)),
    timed("noise in the last epoch only", lambda plan, epoch, step: float(is_last(plan, epoch))),
    timed("noise halved in the last epoch", lambda plan, epoch, step: 1 - is_last(plan, epoch) / 2),
    timed(
        "no noise on int8 values",
        lambda plan, epoch, step: float(plan.compression.value_type != "int8"),
        INT8,
    ),
    timed(
        "no noise where coordinates are padded and masked",
        unpadded_or_unmasked,
        lambda s: PADDED(s) and MASKED(s),
    ),
    one("noise for the mean", VARIANCE, lambda: scaled_noise(lambda plan, *_: 1 / plan.denominator)),
    one("row norms of C", VARIANCE, lambda: of_plan(by_row_norms)),
    one("noise only where something was sent", SENSITIVITY, lambda: after_release(only_where_sent), MASKED),
    one("no noise where a client was clipped", VARIANCE, none_where_clipped, lambda scene: scene.speaking),
    drawn(
        "one noise row for all rounds",
        lambda: drawn_by(lambda key, row, d: gaussian_row(key, 0, d)),
        *REPEATED,
    ),
    drawn(
        "a noise row that returns moved", third_from_first(lambda own, first: np.roll(first, 7)), *REPEATED
    ),
    drawn(
        "a noise row that returns backwards",
        third_from_first(lambda own, first: first[::-1].copy()),
        *REPEATED,
    ),
    drawn("a noise row that returns permuted", third_from_first(permuted), *CORRELATION),
    drawn("no noise along one direction", changed(without_a_direction), *DIRECTIONS),
    drawn(
        "a noise row that returns with public signs",
        third_from_first(lambda own, first: first * PublicSeed(0).signs(len(first), "sabotage")),
        *CORRELATION,
    ),
    drawn("a coordinate whose noise returns", third_from_first(of_one_coordinate), *CORRELATION),
    drawn("less noise here and more there", changed(smaller_and_larger), *VARIANCE),
    drawn(
        "noise shared by pairs of coordinates",
        lambda: drawn_by(lambda key, row, d: np.repeat(gaussian_row(key, row, (d + 1) // 2), 2)[:d]),
        *CORRELATION,
    ),
    drawn(
        "noise in tiles",
        lambda: drawn_by(lambda key, row, d: np.resize(gaussian_row(key, row, min(d, TILE)), d)),
        *REPEATED,
        applies=lambda scene: scene.dimension > TILE,
    ),
    drawn(
        "noise with no tails",
        lambda: drawn_by(lambda key, row, d: generator(key, row).uniform(-1, 1, (3, d)).sum(axis=0) / STEP),
        "residual tails",
    ),
    drawn(
        "noise that anyone can compute",
        lambda: drawn_by(lambda key, row, d: gaussian_row(SecretKey.reproducible(0), row, d)),
        *REPEATED,
    ),
    drawn("the same noise in all epochs", same_noise, *REPEATED),
    one("noise without C", CORRELATION, correlated(lambda row: NoiseRow(0 * row.mean, 1.0, row.fresh))),
    one("another C", CORRELATION, correlated(lambda row: NoiseRow(-row.mean, 2 - row.own, row.fresh))),
    one("noise rounded to float16", ("residual grid",), correlated(of_float16)),
    one("masks shared by pairs", MASKS, lambda: of_strategy(by_pairs), MASKED),
    one("one mask for all in the last epoch", MASKS, lambda: of_strategy(in_the_last_epoch), MASKED),
    one("the same masks in all epochs", MASKS, same_masks, MASKED),
    one("masks that return at another place", MASKS, lambda: of_strategy(elsewhere), MASKED),
    one("one mask for all, moved", MASKS, one_mask_moved, MASKED),
    one("a ratchet that stands still", REPEATED, lambda: patched((SecretKey, "ratchet", lambda self: self))),
    one(
        "no clipping in the last epoch",
        SENSITIVITY,
        lambda: when(UNCLIPPED, lambda plan, epoch, step: is_last(plan, epoch)),
    ),
    one("no clipping in round 5", SENSITIVITY, lambda: when(UNCLIPPED, in_round(5))),
    one("larger bounds for one client", SENSITIVITY, larger_bounds_for_one),
    one("no clipping by the server", SENSITIVITY, lambda: patched(*UNCLIPPED[2:])),
    one("the server passes on what is not finite", SENSITIVITY, lambda: patched(*UNLOOKED)),
    one("what is not finite is passed on", SENSITIVITY, lambda: patched(*NOT_FINITE)),
    one("what is not finite is passed on in round 1", SENSITIVITY, lambda: when(NOT_FINITE, in_round(1))),
    one("what is not finite is passed on in round 3", SENSITIVITY, lambda: when(NOT_FINITE, in_round(3))),
    one("what is not finite is passed on in round 5", SENSITIVITY, lambda: when(NOT_FINITE, in_round(5))),
    one("changes in place of updates", SENSITIVITY, lambda: adding(changes)),
    one("a second participation", SENSITIVITY, taking_part_twice),
    one("a client that answers twice counts twice", SENSITIVITY, counting_twice, lambda scene: scene.silent),
    one("divided by who spoke", SENSITIVITY, divided_by_who_spoke),
    one("momentum that leaks", JOURNAL, leaking_momentum),
    one("an initial model that leaks", OWN_ROUND, leaking_start),
    one("noise drawn anew after a resume", JOURNAL, drawn_anew, RESUMED),
    one("a journal ahead of the noise", JOURNAL, ahead_of_the_noise, RESUMED),
    # shared/docs/SABOTAGES.md
    one("no L2 clip on the path that every run takes", SENSITIVITY, unclipped_beside_a_start, MASKED),
    one("kept values multiplied by the number of examples", SENSITIVITY, times_examples, MASKED),
    one("rows from a public seed from the third epoch on", CORRELATION, public_from_the_third_epoch),
    one(
        "sigma of every epoch from the first one's column norm",
        VARIANCE,
        lambda: patched((Plan, "sigma_in", lambda self, epoch, honest=Plan.sigma_in: honest(self, 0))),
        lambda scene: scene.mechanism == "banded_toeplitz",
    ),
    drawn(
        "row r of an epoch is row r mod 8",
        lambda: drawn_by(lambda key, row, d: gaussian_row(key, row % 8, d)),
        *REPEATED,
        applies=lambda scene: scene.rounds_per_epoch > 8 or scene.mechanism == "banded_toeplitz",
    ),
    one(
        "mask key of the first three letters",
        MASKS,
        lambda: masks_of(lambda client, step: (client[:3], step)),
        MASKED,
    ),
    one("noise scaled by replies", VARIANCE, scaled_by_replies, lambda scene: scene.silent),
    one("a client asked through two messages", SENSITIVITY, asked_twice),
)
ESCAPES = (
    drawn("float32 rows", lambda: drawn_by(of_float32)),
    drawn("noise of a short key", lambda: drawn_by(short)),
)
BY_CHANCE = (
    drawn("two coordinates with correlated noise", changed(two_correlated)),
    one("no noise in one epoch of a thousand", (), rarely_none),
)
