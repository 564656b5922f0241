"""The noise of the real pipeline, recovered and held against its law, and its masks.

A run is played with clients that send zeros: what its models tell is noise alone. With masks it is played once more
with the same secret and clients that send digits (`fedmf.audit.masks`): the noise cancels in the difference, and
what is left must be a sum of masked vectors, which tells the masks. So noise that hangs on what clients send is seen, as
a difference that is no such sum. In some scenes clients send vectors at and over their bounds in place of zeros, and a
twin says what that adds (`experiments.audit.speaking`), so that noise is also looked at where somebody was clipped.

Tests and their laws: `fedmf.audit.residual` and `fedmf.audit.masks`, at 1e-6 for all scenes of an audit together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.audit.coupled import BROKEN_OFF, quiet_client
from experiments.audit.decoding import shown_masks
from experiments.audit.pipeline import Float64, known
from experiments.audit.row import Row, Verdict
from experiments.audit.sabotage import NONE, Sabotage
from experiments.audit.scene import INT8_LINF, Scene, cohorts, plan_of, play, recovered, stated_of
from experiments.audit.speaking import TWIN_ERROR, holdings, known_sums
from fedmf.audit.finding import Finding
from fedmf.audit.masks import Masks, mask_laws
from fedmf.audit.residual import FALSE_ALARM, residuals
from fedmf.randomness import SecretKey

RUNS = 50
DECODED = "mask decoding"
RECOVERED = "residual recovery"

SCENES = (
    Scene("optimal, rotated"),
    Scene("optimal, masks", keep_probability=0.1, rotation="identity"),
    Scene("optimal, padded, masks, resumed in an epoch", dimension=255, keep_probability=0.3, together=2,
          resume_after=2),
    Scene("optimal, int8, silent clients, resumed at an epoch's end", value_type="int8", muted=True, resume_after=3),
    Scene("independent, rotated and padded, masks, int8", mechanism="independent", dimension=255, keep_probability=0.1,
          value_type="int8", linf=INT8_LINF),
    Scene("binary tree, rotated and padded", mechanism="binary_tree", dimension=200, rounds_per_epoch=4),
    Scene("optimal, six coordinates", rotation="identity", dimension=6),  # a whole run is one vector of 36
    Scene("optimal, rotated, clients over their bounds", speaking=True),
    Scene("optimal, masks, clients over their bounds", keep_probability=0.3, rotation="identity", linf=64,
          speaking=True),
)  # fmt: skip
WIDE = Scene(
    "optimal, more than a block of noise", rotation="identity", dimension=40_000, cohort_size=2, linf=64
)
WIDE_RUNS = 4


@dataclass(frozen=True)
class Noises:
    """What some runs of a scene tell: `sums` (runs, E, T, d), the largest `error` of one, in units of sigma.

    The sums are what is left of releases without what clients are known to have added: noise. `masks` (runs, E, T, n, D); None without masks, or where a difference was no sum of masked vectors in `undecoded` runs.
    `broken_off` says why a run ended early, "" for none; then `sums` has only those before it.
    """

    sums: Float64
    error: float
    masks: Masks | None
    undecoded: int = 0
    broken_off: str = ""


def play_noises(scene: Scene, first: int, count: int, sabotage: Sabotage = NONE, seed: int = 0) -> Noises:
    """Return runs number first .. first + count - 1 of a scene, each with a secret of its own."""
    plan = plan_of(scene)
    zeros = np.zeros(plan.dimension, np.float32)
    sums: list[Float64] = []
    masks: list[Masks] = []
    worst, undecoded = 0.0, 0
    for run in range(first, first + count):
        secret = SecretKey.reproducible(seed).derive("residual", scene.name, run)
        try:
            played = play(scene, secret, lambda who, number: known(zeros), sabotage)
        except BROKEN_OFF as stop:
            return Noises(np.array(sums), worst, None, undecoded, str(stop))
        noise, error = recovered(plan, played.models)
        found = None
        if scene.keep_probability < 1:
            found = shown_masks(scene, secret, noise, error, sabotage)
            undecoded += found is None
            masks += [] if found is None else [found]
        if scene.speaking and (scene.keep_probability == 1 or found is not None):
            try:
                noise, error = _beside_vectors(scene, secret, run, found, sabotage)
            except BROKEN_OFF as stop:
                return Noises(np.array(sums), worst, None, undecoded, str(stop))
        sums.append(noise)
        for epoch in range(plan.participation.epochs):
            worst = max(worst, float(error[epoch].max()) / plan.sigma_in(epoch))
    shown = np.array(masks) if masks and not undecoded else None
    return Noises(np.array(sums), worst, shown, undecoded)


def _beside_vectors(
    scene: Scene, secret: SecretKey, run: int, masks: Masks | None, sabotage: Sabotage
) -> tuple[Float64, Float64]:
    """Return the noise of a run whose clients send vectors at and over their bounds, and its error, both (E, T, d)."""
    with quiet_client():
        played = play(scene, secret, holdings(scene, run), sabotage)
    sums, error = recovered(plan_of(scene), played.models)
    return sums - known_sums(scene, run, masks), error + scene.cohort_size * TWIN_ERROR


def joined(parts: list[Noises]) -> Noises:
    """Return several parts' runs as one."""
    undecoded = sum(part.undecoded for part in parts)
    masks = [part.masks for part in parts if part.masks is not None]
    return Noises(
        np.concatenate([part.sums for part in parts if len(part.sums)] or [np.empty((0, 0, 0, 0))]),
        max(part.error for part in parts),
        np.concatenate(masks) if masks and not undecoded else None,
        undecoded,
        next((part.broken_off for part in parts if part.broken_off), ""),
    )


def streams(scenes: Sequence[Scene]) -> int:
    """Return how many streams of noise and of masks are tested in the scenes, which share one false alarm.

    >>> streams(SCENES[:2])  # the second has masks too
    3
    """
    return sum(1 + (scene.keep_probability < 1) for scene in scenes)


def residual_rows(
    scene: Scene, played: Noises, sabotage: Sabotage = NONE, *, false_alarm: float = FALSE_ALARM
) -> list[Row]:
    """Return the rows of a scene's runs, one for each kind of test; `false_alarm` is that of its noise, and of its masks."""
    rows: list[Row] = []
    if played.broken_off:
        return [_certain(scene, sabotage, RECOVERED, f"a run broke off: {played.broken_off}", "whole runs")]
    if not np.isfinite(played.sums).all():
        return [_certain(scene, sabotage, RECOVERED, "a release that is not finite", "finite numbers")]
    findings = residuals(played.sums, stated_of(scene), resolution=played.error, false_alarm=false_alarm)
    rows += [_row(scene, sabotage, finding) for finding in findings]
    if scene.keep_probability == 1:
        return rows
    if played.undecoded or played.masks is None:
        observed = f"{played.undecoded} of {len(played.sums)} runs differ by no sum of masked vectors"
        return [*rows, _certain(scene, sabotage, DECODED, observed, "0 runs")]
    plan = plan_of(scene)
    shape = (plan.participation.epochs, plan.participation.rounds_per_epoch, plan.participation.cohort_size)
    clients = np.array(cohorts(plan)).reshape(shape)
    found = mask_laws(played.masks, scene.keep_probability, clients=clients, false_alarm=false_alarm)
    return rows + [_row(scene, sabotage, finding) for finding in found]


def _row(scene: Scene, sabotage: Sabotage, finding: Finding) -> Row:
    verdict = Verdict.refuted if finding.refutes else Verdict.nothing_found
    observed = f"p = {finding.observed:.3g} over {finding.tests} tests"
    limit = f"p > {finding.limit:.2g}"
    nearness = float(np.log(max(finding.observed, 1e-300)) / np.log(finding.limit))
    return Row(
        scene.name,
        sabotage.name,
        finding.test,
        observed,
        limit,
        finding.false_alarm,
        verdict,
        finding.where,
        nearness,
    )


def _certain(scene: Scene, sabotage: Sabotage, test: str, observed: str, limit: str) -> Row:
    return Row(scene.name, sabotage.name, test, observed, limit, 0.0, Verdict.refuted)
