"""Broken pipelines for the tests of coupled and residual runs: one for each way in which noise or influence can be wrong."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import client.privatize
import server.state
from experiments.audit.sabotage import Sabotage, patched
from fedmf.mechanisms.noise import next_noise
from fedmf.randomness import SecretKey
from fedmf.updates import wire
from server.strategy import FedMF


def sabotage(name, **hooks):
    return Sabotage(name, name, ("a row",), **hooks)


def noise_changed(change):
    """Patch the server's noise: `change(row, step, earlier)` gives the row that is added; `earlier` are those of the epoch."""

    @contextmanager
    def patch():
        earlier = []

        def broken(stream, state, key, *, dimension, donate=False):
            row, after = next_noise(stream, state, key, dimension=dimension, donate=donate)
            if state.step == 0:
                earlier.clear()
            earlier.append(row)
            return np.asarray(change(row.copy(), state.step, earlier), np.float32), after

        with patched((server.state, "next_noise", broken)):
            yield

    return patch


def every_second_twice(row, step, earlier):
    row[1::2] = row[::2]
    return row


def without_coordinate(row, step, earlier):
    row[7] = 0
    return row


def heavy_tailed(row, step, earlier):
    return np.sign(row) * np.sqrt(2) * np.abs(row) ** 2 / np.sqrt(6)  # variance 1, kurtosis far from 3


class Standing(SecretKey):
    def ratchet(self):
        return self


class MaskOfStep(SecretKey):
    """A mask key that does not depend on the epoch."""

    def mask_key(self, client, step):
        return FIRST[0].derive("mask", client, step)

    def ratchet(self):
        return MaskOfStep(super().ratchet().reveal())


FIRST = []


def mask_of_step(secret):
    FIRST[:] = [secret]
    return MaskOfStep(secret.reveal())


class PairedMask(SecretKey):
    """Clients 0 and 1, 2 and 3, .. share a mask wherever they take part."""

    def mask_key(self, client, step):
        return super().mask_key(str(int(client) // 2), 0)

    def ratchet(self):
        return PairedMask(super().ratchet().reveal())


class StaleSum(FedMF):
    """Adds everyone's updates again one round later."""

    before = None

    def _add(self, replies):
        total, answered = super()._add(replies)
        stale = 0 if self.before is None else self.before
        self.before = total
        return total + stale, answered


class NoiseOnlyWhereSilent(FedMF):
    """Adds noise only where no client sent anything."""

    def _add(self, replies):
        total, answered = super()._add(replies)
        self.silent = self.plan.rotation.unrotate(total) == 0
        return total, answered


def unbounded(value, *_):
    return value


def no_clipping():
    return patched(
        (client.privatize, "clip_l2", unbounded),
        (client.privatize, "clip_linf", unbounded),
        (wire, "decode", lambda data, bounds, kept: np.frombuffer(data, "<f4")),
        (server.strategy.FixedPoint, "fit", classmethod(lambda cls, bound, terms: cls(30, 1e6))),
    )


def clipping_on_the_server_only():
    return patched((client.privatize, "clip_l2", unbounded), (client.privatize, "clip_linf", unbounded))


def initial_model_that_leaks(start, plan, examples_of):
    return start + np.float32(1e-3) * sum(
        np.nan_to_num(examples_of(i, 1).x[0]) for i in range(plan.participation.clients)
    )


def twice_the_keep(plan):
    return replace(
        plan, compression=replace(plan.compression, keep_probability=2 * plan.compression.keep_probability)
    )


BROKEN = {
    "no clipping": sabotage("no clipping", patches=no_clipping),
    "clipping on the server only": sabotage(
        "clipping on the server only", patches=clipping_on_the_server_only
    ),
    "stale sum": sabotage("stale sum", strategy=StaleSum),
    "initial model": sabotage("initial model", start=initial_model_that_leaks),
    "factor": sabotage("factor", patches=noise_changed(lambda row, step, earlier: 0.958 * row)),
    "two rounds bare": sabotage(
        "two rounds bare", patches=noise_changed(lambda row, step, earlier: row * (step == 0))
    ),
    "one row": sabotage("one row", patches=noise_changed(lambda row, step, earlier: earlier[0])),
    "bare coordinate": sabotage("bare coordinate", patches=noise_changed(without_coordinate)),
    "twin coordinates": sabotage("twin coordinates", patches=noise_changed(every_second_twice)),
    "heavy tails": sabotage("heavy tails", patches=noise_changed(heavy_tailed)),
    "biased": sabotage("biased", patches=noise_changed(lambda row, step, earlier: row + 0.05)),
    "standing ratchet": sabotage("standing ratchet", secret=lambda secret: Standing(secret.reveal())),
    "one secret": sabotage("one secret", secret=lambda secret: SecretKey.reproducible(0)),
    "mask of step": sabotage("mask of step", secret=mask_of_step),
    "paired masks": sabotage("paired masks", secret=lambda secret: PairedMask(secret.reveal())),
}
