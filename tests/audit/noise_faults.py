"""Faults of the noise: how much of it there is, and the law of its rows."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import client.privatize
import server.state
import server.strategy
from experiments.audit.sabotage import patched
from fedmf.mechanisms.noise import NoiseRow, next_noise
from fedmf.normals import STEP
from fedmf.randomness import PublicSeed, SecretKey, gaussian_row
from fedmf.updates import wire
from fedmf.updates.vectors import clip_l2, l2_norm
from server.state import make_release

TILE, PAIR = 20_000, (5, 42)


# how much noise


def releasing(make):
    """Release by `make(plan, state, rotated sum, answered)` in place of the product's function."""
    return patched((server.strategy, "make_release", make))


def of_plan(change):
    """Release under another plan: `change(plan, state, answered)`."""

    def make(plan, state, total, answered, **more):
        return make_release(change(plan, state, answered), state, total, answered, **more)

    return releasing(make)


def scaled(plan, factor):
    return plan.with_noise_multiplier(factor * plan.noise_multiplier)


def by_row_norms(plan, *_):
    """Take the smallest row norm of C for its sensitivity."""
    first = plan.factorization.epochs[0]
    return scaled(plan, np.linalg.norm(first.stream.materialize_strategy(), axis=1).min() / first.sensitivity)


def rarely_none(plan, state, answered):
    key = state.secrets and state.secrets.key.derive("rare").reveal()[:8]
    return scaled(plan, float(key is None or int.from_bytes(key, "little") % 1000 != 0))


def is_last(plan, epoch):
    return epoch == plan.participation.epochs - 1


def unpadded_or_unmasked(plan, epoch, step):
    return float(plan.rotation.padded == plan.dimension or plan.compression.keep_probability == 1)


def after_release(change):
    """Change what is released, given the plan, the rotated sum and the release."""

    def make(plan, state, rotated_sum, answered, **more):
        given = rotated_sum.copy()
        release, secrets = make_release(plan, state, rotated_sum, answered, **more)
        return replace(release, noisy_sum=change(plan, given, release).astype(np.float32)), secrets

    return releasing(make)


def only_where_sent(plan, rotated_sum, release):
    return np.where(plan.rotation.unrotate(rotated_sum) == 0, 0, release.noisy_sum)


@contextmanager
def none_where_clipped():
    """Leave a round without noise if an update is more than 1.5 times as long as its bound."""
    longest = [0.0]

    def clip(update, bound, *, norm=None):
        longest[0] = max(longest[0], (l2_norm(update) if norm is None else norm) / bound)
        return clip_l2(update, bound, norm=norm)

    def change(plan, *_):
        over, longest[0] = longest[0] > 1.5, 0.0
        return scaled(plan, float(not over))

    with patched((client.privatize, "clip_l2", clip)), of_plan(change):
        yield


@contextmanager
def divided_by_who_spoke():
    spoke, decode = [], wire.decode

    def look(data, bounds, *, kept):
        values = decode(data, bounds, kept=kept)
        spoke.append(bool(values.any()))
        return values

    def scale(plan, rotated_sum, release):
        factor = plan.participation.cohort_size / max(1, sum(spoke))
        spoke.clear()
        return release.noisy_sum * factor

    with patched((wire, "decode", look)), after_release(scale):
        yield


# what draws fresh rows: (key, row, dimension) -> (dimension,)


def third_from_first(change):
    """Draw the third row of an epoch as `change(its own, the first one)`."""

    def draw(key, row, dimension):
        drawn = gaussian_row(key, row, dimension)
        return change(drawn, gaussian_row(key, 0, dimension)) if row == 2 else drawn

    return draw


def changed(change):
    """Draw rows as `change` of those that are due."""
    return lambda key, row, dimension: change(gaussian_row(key, row, dimension))


def generator(key, row):
    return np.random.default_rng(int.from_bytes(key.derive("noise row", row).reveal(), "little"))


def permuted(own, first):
    return first[PublicSeed(0).generator("sabotage", len(first)).permutation(len(first))]


def without_a_direction(drawn):
    lost = PublicSeed(0).generator("sabotage direction").standard_normal(len(drawn))
    return drawn - lost * (lost @ drawn) / (lost @ lost)


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


def of_a_short_key(key, row, dimension):
    number = int.from_bytes(key.derive("noise row", row).reveal()[:4], "little")
    return gaussian_row(SecretKey.reproducible(number), row, dimension)


# rows under C, and keys


def correlated(change):
    """Replace each noise row by `change` of it."""

    def draw(*given, **more):
        row, after = next_noise(*given, **more)
        return change(row), after

    return patched((server.state, "next_noise", draw))


def of_float16(row):
    values = (STEP * (row.mean + row.own * row.fresh)).astype(np.float16).astype(np.float64)
    return NoiseRow(np.zeros_like(row.mean), 1.0, values / STEP)


def public_from(first_epoch):
    """Draw the noise of an epoch (from 0) and of all later ones by a key that anyone can compute."""

    def make(plan, state, *given, **more):
        epoch, own = state.position(plan)[0], state.secrets
        public = own if epoch < first_epoch else replace(own, key=SecretKey.reproducible(epoch))
        release, secrets = make_release(plan, replace(state, secrets=public), *given, **more)
        return release, replace(secrets, key=own.key)

    return releasing(make)


def with_key(change):
    """Derive keys by `change(first key of the run, purpose, position)`; None: as is due."""
    honest, ratchet, firsts = SecretKey.derive, SecretKey.ratchet, {}

    def following(self):
        after = ratchet(self)
        firsts[after.reveal()] = firsts.get(self.reveal(), self)
        return after

    def derive(self, purpose, *position):
        found = change(firsts.get(self.reveal(), self), purpose, position)
        return honest(self, purpose, *position) if found is None else honest(*found)

    return patched((SecretKey, "derive", derive), (SecretKey, "ratchet", following))
