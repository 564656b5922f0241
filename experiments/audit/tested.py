"""What the scenes of the pipeline are tested for: one client's influence, the noise, the masks.

Coupled runs have the same secrets, one client in and zeroed out, for each way in which a run can go. All noise cancels. What is
left is what the client changed: its own bounded vector, in its own round. A single pair refutes, and an honest pipeline is never
refuted: the limits include the rounding of float32.

A run in which clients send zeros shows the noise alone. With masks it is run again with the same secret and clients that
send digits (`fedmf.audit.masks`): the noise cancels, and the difference shows the masks. In scenes whose clients speak it is
run once more with vectors at and over their bounds, and what a twin says that these add is taken away, so that noise is
also seen where a client was clipped.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from experiments.audit.scene import (
    INT8_LINF,
    KINDS,
    L2_NORM,
    OPTIMIZER,
    OVER,
    Run,
    Scene,
    cohorts,
    kind_of,
    known_sums,
    plan_of,
    rotated,
    stated_of,
    steps_of,
    vector,
)
from fedmf.audit import Finding, coupled, mask_laws, residuals, unmixed
from fedmf.audit.coupling import L2, OWN_ROUND
from fedmf.errors import FedmfError
from fedmf.mechanisms.workload import Float64
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.vectors import Vector, level_step
from server.state import apply_release, begin_epoch, first_state

WHOLE_VECTOR, JOURNAL = "coupled sensitivity, whole vector", "coupled journal"
COUPLED_SCENES = (
    Scene("rotated", resume_after=5),
    Scene("masks", keep_probability=0.3, rotation="identity", linf=64),
    Scene("rotated and padded, banded, silent clients", "banded_toeplitz", dimension=200, silent=True),
    Scene("rotated, masks, shared messages", keep_probability=0.3, together=4, resume_after=3),
    Scene("rotated, masks, int8", keep_probability=0.3, value_type="int8"),
    Scene("rotated and padded, masks, shared messages", keep_probability=0.1, dimension=1600, together=4),
    Scene(
        "tree, masks", "binary_tree", keep_probability=0.3, linf=64, rotation="identity", rounds_per_epoch=4
    ),
    Scene("rotated, masks, large", keep_probability=0.3, dimension=1 << 17, cohort_size=2),
)
FALSE_ALARM = 1e-7  # of a scene's noise, and of its masks: all scenes together stay near 1e-6
NOISE_SCENES = (
    Scene("rotated, clients over their bounds", speaking=True),
    Scene(
        "masks, shared messages, clients over their bounds",
        keep_probability=0.3,
        rotation="identity",
        linf=64,
        cohort_size=8,
        together=8,
        speaking=True,
    ),
    Scene(
        "rotated and padded, masks, resumed", keep_probability=0.3, dimension=255, together=2, resume_after=2
    ),
    Scene(
        "int8, few kept, resumed",
        "independent",
        keep_probability=0.03,
        value_type="int8",
        linf=INT8_LINF,
        resume_after=2,
    ),
    Scene("int8, padded, silent clients", value_type="int8", dimension=200, silent=True, runs=20),
    Scene(
        "banded, 9 epochs of 23 rounds",
        "banded_toeplitz",
        dimension=200,
        cohort_size=2,
        rounds_per_epoch=23,
        epochs=9,
        runs=8,
    ),
    Scene(
        "tree, six coordinates",
        "binary_tree",
        1.0,
        "identity",
        dimension=6,
        rounds_per_epoch=4,
        epochs=2,
        runs=80,
    ),
    Scene("rotated, masks, large", keep_probability=0.3, dimension=1 << 18, cohort_size=2, runs=3),
)


def coupled_findings(scene: Scene, seed: int) -> list[Finding]:
    """Return the findings of a scene, one for each test: that which refutes most, or comes nearest."""
    scene, found = replace(scene, noise_multiplier=0.1), []
    clients = plan_of(scene).participation.clients
    try:
        for number in range(5 * clients):  # every client sends every kind in every epoch
            secret = SecretKey.reproducible(seed).derive("coupled", scene.name, number)
            found += _pair(scene, number % clients, number // clients, secret)
    except FedmfError as error:  # a client's vector may decide how many rounds there are
        return [Finding(OWN_ROUND, np.inf, 0.0, True, where=f"a run broke off: {error}")]
    worst = {one.test: one for one in sorted(found, key=lambda one: (one.refutes, one.observed - one.limit))}
    reach = scene.keep_probability**0.5 * (0.99 if scene.keep_probability == 1 else 0.5)
    blind = max(one.observed for one in found if one.test == L2) < reach  # no client was seen near its bound
    return [replace(one, is_inconclusive=blind and not one.refutes) for one in worst.values()]


def _pair(scene: Scene, client: int, lap: int, secret: SecretKey) -> list[Finding]:
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

    inside, outside = (Run(scene, world, secret) for world in (holds, partial(holds, present=False)))
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
    for epoch, kind in enumerate(kinds):
        if kind == OVER:
            own = epoch, steps[epoch]
            found += _whole_vector(scene, epoch, sent[epoch], difference[own], error[own])
    first, second = ([release.answered for release in run.committed] for run in (inside, outside))
    found.append(
        Finding(OWN_ROUND, float(first != second), 0.0, first != second, where="who is recorded as heard")
    )
    found += [journal(inside), journal(outside)]
    return [replace(one, where=f"client {client}; {one.where}") for one in found]


def _whole_vector(scene: Scene, epoch: int, sent: Vector, moved: Float64, error: Float64) -> list[Finding]:
    """Return the finding on the length of a client's vector before its mask, over the bound; [] where nothing shows it.

    `sent` (d,) is the vector, over both bounds, `moved` (d,) what it changed in the client's round, up to `error`.
    """
    is_whole = plan_of(scene).rotation.padded == scene.dimension
    if is_whole and scene.dimension <= 4096:  # beyond that the rounding bound is too wide to see anything
        length, slack = _of_one_entry(scene, moved, error)
    elif scene.keep_probability < 1:
        length, slack = _along(scene, sent, moved, error)
    else:
        return []
    return [Finding(WHOLE_VECTOR, length, 1 + slack, not length <= 1 + slack, where=f"epoch {epoch}")]


def _of_one_entry(scene: Scene, moved: Float64, error: Float64) -> tuple[float, float]:
    """Return the length of a vector whose sent entries are all of one size, by one under the mask, and how far it may be off."""
    plan, whole = plan_of(scene), scene.dimension**0.5 / L2_NORM
    step = float(level_step(plan.bounds.linf_norm or 1.0)) if scene.value_type == "int8" else 0.0
    entry = float(np.abs(rotated(plan, moved)).max())
    return entry * whole, (float(np.linalg.norm(error)) + step) * whole


def _along(scene: Scene, sent: Vector, moved: Float64, error: Float64) -> tuple[float, float]:
    """Return the length of a vector along `sent`, from the coordinates that its mask kept, and how far it may be off.

    Each kept coordinate adds its share of the length over the keep probability: on average the length, by Bernstein's
    inequality within `spread` of it but for one time in 10^9.
    """
    keep, turned = scene.keep_probability, rotated(plan_of(scene), sent.astype(np.float64))
    length = float(moved @ sent / np.linalg.norm(turned) / keep) / L2_NORM
    shares = turned**2 / np.sum(turned**2) / keep
    largest = np.log(1e9) * shares.max() / 3
    variance = keep * (1 - keep) * np.sum(shares**2)
    spread = largest + (largest**2 + 2 * np.log(1e9) * variance) ** 0.5
    return length, float(spread + np.linalg.norm(error) / keep) / L2_NORM


def journal(run: Run) -> Finding:
    """Return how many releases differ from the first of their round, and how many models do not follow from those.

    The models are made again from the first one and public releases alone, without any secret.
    """
    first = {release.round: release for release in reversed(run.committed)}
    pairs = [(one.noisy_sum, first[one.round].noisy_sum) for one in run.committed]
    again = sum(not np.array_equal(*pair, equal_nan=True) for pair in pairs)
    state, expected = first_state(run.plan, run.models[0], SecretKey.reproducible(0)), [run.models[0]]
    for number in sorted(first):
        state = apply_release(run.plan, OPTIMIZER, begin_epoch(run.plan, state), first[number], None)
        expected.append(state.model)
    pairs = list(zip(expected, run.models, strict=True))
    wrong = sum(not np.array_equal(*pair, equal_nan=True) for pair in pairs)
    where = (
        f"{again} releases that differ from the first of their round, {wrong} models that follow from none"
    )
    return Finding(JOURNAL, float(again + wrong), 0.0, again + wrong > 0, where=where)


def noise_findings(scene: Scene, seed: int, false_alarm: float = FALSE_ALARM) -> list[Finding]:
    """Return the findings of a scene's runs: on the noise, on the masks, and whether the models follow from the releases."""
    zeros, left, masks, seen = np.zeros(scene.dimension, np.float32), [], [], []
    for run in range(scene.runs):
        secret = SecretKey.reproducible(seed).derive("noise", scene.name, run)
        seen.append(Run(scene, lambda client, number: zeros, secret))
        sums, mask = seen[-1].sums, None
        if scene.keep_probability < 1 and plan_of(scene).rotation.padded == scene.dimension:
            mask = shown_masks(scene, secret, sums)
            if mask is None:
                where = f"run {run}: with digits and without it differs by no sum of masked vectors"
                return [Finding("mask decoding", 1.0, 0.0, True, where=where)]
            masks.append(mask)
        if scene.speaking:
            seen.append(Run(scene, lambda *which, run=run: vector(scene, kind_of(run, *which)), secret))
            sums = seen[-1].sums - known_sums(scene, run, mask)
        left.append(sums)
    found = [
        *residuals(left, stated_of(scene), false_alarm=false_alarm),
        max(map(journal, seen), key=lambda one: one.observed),
    ]
    return found + (list(mask_laws(masks, scene.keep_probability, false_alarm=false_alarm)) if masks else [])


def shown_masks(scene: Scene, secret: SecretKey, silent: Float64) -> npt.NDArray[np.bool_] | None:
    """Return the masks (E, T, n, D) of the run with this secret, whose sums are `silent` (E, T, d) if all send zeros."""
    plan, n = plan_of(scene), scene.cohort_size
    linf = plan.bounds.linf_norm or L2_NORM
    # Half: float32 may round a vector up, which is clipped then.
    largest = min(L2_NORM / scene.dimension**0.5, linf) / 2
    if scene.value_type == "int8":
        largest = linf / 127 * 2 ** (n - 1)  # levels, so that nothing is rounded
    entries = largest * 0.5 ** np.arange(n)
    sent = [
        np.asarray(plan.rotation.unrotate(np.full(scene.dimension, entry)), np.float32) for entry in entries
    ]
    rounds = cohorts(plan).reshape(-1, n)

    def holds(client: int, number: int) -> Vector:
        return sent[int(np.flatnonzero(rounds[number - 1] == client)[0])]

    speaking = Run(scene, holds, secret).sums
    error = np.linalg.norm(2.0**-24 * (np.abs(speaking) + np.abs(silent)), axis=-1).max()
    return unmixed(rotated(plan, speaking - silent), entries, tolerance=float(error + 2.0**-17 * n * largest))
