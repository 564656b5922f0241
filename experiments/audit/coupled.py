"""Coupled runs: the same secrets, one client in and zeroed out, for each way in which a run can go.

All noise cancels. What is left is what the client changed: its own bounded vector, in its own round. A single pair refutes,
and an honest pipeline is never refuted: the limits include the rounding of float32.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.audit.scene import (
    L2_NORM,
    OPTIMIZER,
    Holds,
    Run,
    Scene,
    plan_of,
    replayed,
    stated_of,
    steps_of,
)
from experiments.audit.vectors import KINDS, OVER, rotated, vector
from experiments.engines.grid import Worker
from fedmf.audit import Finding, coupled
from fedmf.audit.coupling import L2, OWN_ROUND
from fedmf.errors import FedmfError
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.rounding import level_step
from fedmf.updates.vectors import Vector

WHOLE_VECTOR, JOURNAL = "coupled sensitivity, whole vector", "coupled journal"
SCENES = (
    Scene("rotated", resume_after=5),
    Scene("masks", keep_probability=0.3, rotation="identity", linf=64),
    Scene("rotated and padded, banded, silent clients", "banded_toeplitz", dimension=200, silent=True),
    Scene("rotated, masks, shared messages", keep_probability=0.3, together=2, resume_after=3),
    Scene("rotated, masks, int8", keep_probability=0.3, value_type="int8"),
    Scene(
        "tree, masks", "binary_tree", keep_probability=0.3, linf=64, rotation="identity", rounds_per_epoch=4
    ),
    Scene("rotated, masks, large", keep_probability=0.3, dimension=1 << 17, cohort_size=2),
)
Around = Callable[[Scene, Holds, int], Callable[[Worker], Worker]]
"""What wraps the worker of a scene, whose clients hold this, for the sake of this client."""


def coupled_findings(
    scene: Scene, seed: int, around: Around = lambda scene, holds, client: lambda worker: worker
) -> list[Finding]:
    """Return the findings of a scene, one for each test: that which refutes most, or comes nearest."""
    scene, found = replace(scene, noise_multiplier=0.1), []
    clients = plan_of(scene).participation.clients
    try:
        for number in range(5 * clients):  # every client sends every kind in every epoch
            secret = SecretKey.reproducible(seed).derive("coupled", scene.name, number)
            found += _pair(scene, number % clients, number // clients, secret, around)
    except FedmfError as error:  # a client's vector may decide how many rounds there are
        return [Finding(OWN_ROUND, np.inf, 0.0, True, where=f"a run broke off: {error}")]
    worst = {one.test: one for one in sorted(found, key=lambda one: (one.refutes, one.observed - one.limit))}
    reach = scene.keep_probability**0.5 * (0.99 if scene.keep_probability == 1 else 0.5)
    blind = max(one.observed for one in found if one.test == L2) < reach  # no client was seen near its bound
    return [replace(one, is_inconclusive=blind and not one.refutes) for one in worst.values()]


def _pair(scene: Scene, client: int, lap: int, secret: SecretKey, around: Around) -> list[Finding]:
    """Return the findings of two runs of one secret. Of the others every second one holds what the client holds."""
    plan, stated, steps = plan_of(scene), stated_of(scene), steps_of(plan_of(scene), client)
    kinds = [KINDS[(client + lap + 2 * epoch) % 5] for epoch in range(scene.epochs)]
    sent = [vector(scene, kind, epoch) for epoch, kind in enumerate(kinds)]
    other = (
        2 / scene.dimension**0.5 * PublicSeed(0).generator("others", scene.name).normal(size=scene.dimension)
    )
    # Rounding to int8 turns the last bits of float32 into whole levels: there all others send nothing.
    others = np.asarray(0 * other if scene.value_type == "int8" else other, np.float32)

    def holds(who: int, number: int, present: bool = True) -> Vector:
        if who == client and not present:
            return 0 * others
        speaks = who == client or (who % 2 and scene.value_type != "int8")
        return sent[(number - 1) // scene.rounds_per_epoch] if speaks else others

    worlds: tuple[Holds, ...] = (holds, partial(holds, present=False))
    inside, outside = (Run(scene, world, secret, around(scene, world, client)) for world in worlds)
    with np.errstate(invalid="ignore", over="ignore"):
        # Float32 rounds what is released, and at the client each vector by 2^-24 of it and the start.
        sizes = np.abs([inside.sums, outside.sums]).sum(axis=0)
        norms = np.linalg.norm(inside.models[:-1], axis=1) + np.linalg.norm(outside.models[:-1], axis=1)
        rounded = 2.0**-22 * scene.cohort_size * (2 + norms.reshape(*sizes.shape[:2], 1))
        error = np.nan_to_num(2.0**-24 * sizes + rounded, posinf=0)
        difference = inside.sums - outside.sums
    is_whole = plan.rotation.padded == scene.dimension
    found = [
        *coupled(
            difference,
            0 * np.nan_to_num(difference),
            stated if is_whole else replace(stated, linf_norm=None),
            own_rounds=steps,
            tolerance=error,
            rotate=(lambda row: rotated(plan, row)) if is_whole else None,
        )
    ]
    start = float(np.abs(inside.models[0] - outside.models[0]).max())
    found += [Finding(OWN_ROUND, start, 0.0, start > 0, where="the model before the first round")]
    if is_whole and scene.dimension <= 4096:  # beyond that the rounding bound is too wide to see anything
        step = float(level_step(plan.bounds.linf_norm or 1.0)) if scene.value_type == "int8" else 0.0
        for epoch in (epoch for epoch, kind in enumerate(kinds) if kind == OVER):
            # All its sent entries are of one size, so that one under the mask shows the length of the whole.
            entry = (
                float(np.abs(rotated(plan, difference[epoch, steps[epoch]])).max())
                * scene.dimension**0.5
                / L2_NORM
            )
            limit = (
                1
                + (float(np.linalg.norm(error[epoch, steps[epoch]])) + step) * scene.dimension**0.5 / L2_NORM
            )
            found.append(Finding(WHOLE_VECTOR, entry, limit, not entry <= limit, where=f"epoch {epoch}"))
    return [
        replace(one, where=f"client {client}; {one.where}")
        for one in (*found, journal(inside), journal(outside))
    ]


def journal(run: Run) -> Finding:
    """Return the number of releases that differ from the first of their round, and of models that do not follow from those."""
    first = {release.round: release for release in reversed(run.committed)}
    again = sum(
        not np.array_equal(release.noisy_sum, first[release.round].noisy_sum, equal_nan=True)
        for release in run.committed
    )
    expected = replayed(run.plan, OPTIMIZER, run.models[0], [first[number] for number in sorted(first)])
    wrong = sum(
        not np.array_equal(one, two, equal_nan=True) for one, two in zip(expected, run.models, strict=True)
    )
    where = (
        f"{again} releases that differ from the first of their round, {wrong} models that follow from none"
    )
    return Finding(JOURNAL, float(again + wrong), 0.0, again + wrong > 0, where=where)
