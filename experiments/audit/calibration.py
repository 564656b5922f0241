"""How often the audit accuses what is honest, and what it would find: `audit calibration=1000`.

Coupled pairs and a part of the residual runs go through the real pipeline. A thousand audits of fifty runs each would take a
night, so those are of the simulated law, which the pipeline's noise is held against anyway: once at the level of
the audit, and once at 1 in 20, where a level that is not kept shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import binomtest

from experiments.audit import coupled, residual
from experiments.audit.coupled import coupled_rows
from experiments.audit.crossing import PAIRS
from experiments.audit.digits import Setup
from experiments.audit.jobs import WIDE_DIMENSION
from experiments.audit.levels import Levels
from experiments.audit.one_run import OneRunSetup
from experiments.audit.power import Power, many_run_powers, one_run_powers, residual_powers
from experiments.audit.residual import RUNS, play_noises, residual_rows
from experiments.audit.row import Verdict
from experiments.audit.scene import Scene, cohorts, plan_of, stated_of
from experiments.audit.work import Task, outcomes
from fedmf.audit import mask_laws, residuals
from fedmf.randomness import PublicSeed

LARGE_LEVEL = 0.05
SIMULATED_DIMENSION = 64
STREAMS = 10  # simulated by a process at once


@dataclass(frozen=True)
class Alarms:
    """How often something honest was refuted: `alarms` of `trials`, each at `level` (None: it must never be)."""

    what: str
    trials: int
    alarms: int
    level: float | None

    @property
    def keeps_its_level(self) -> bool:
        """Whether so many alarms are no surprise at that level: a one-sided exact test at 1 in 1000."""
        if self.level is None:
            return self.alarms == 0
        return bool(binomtest(self.alarms, self.trials, self.level, alternative="greater").pvalue > 1e-3)

    def as_document(self) -> dict[str, Any]:
        """Return the count as JSON-ready values."""
        return {**vars(self), "keeps_its_level": self.keeps_its_level}


def false_alarms(count: int, *, level: float, workers: int, seed: int) -> list[Alarms]:
    """Return the false alarms of `count` coupled pairs, `count` residual runs and `count` simulated audits.

    `level` is that of the noise of a scene in the audit, and of its masks (`Levels.part`).
    """
    narrow = [
        [scene for scene in scenes if scene.dimension < WIDE_DIMENSION]
        for scenes in (coupled.SCENES, residual.SCENES)
    ]
    pairs = _spread(narrow[0], -(-count // PAIRS), seed)
    audits = _spread(narrow[1], -(-count // RUNS), seed)
    simulated = [
        Task(_simulated, (scene, first, min(STREAMS, count - first), level, seed), 3.0 * STREAMS)
        for scene in (replace(scene, dimension=SIMULATED_DIMENSION) for scene in residual.SCENES[:2])
        for first in range(0, count, STREAMS)
    ]
    tasks = [Task(_coupled, pair, 20.0) for pair in pairs] + [
        Task(_residual, (*pair, level), 160.0) for pair in audits
    ]
    found = outcomes(tasks + simulated, workers)
    of_pairs, found = found[: len(pairs)], found[len(pairs) :]
    of_audits, found = found[: len(audits)], found[len(audits) :]
    counted = [
        Alarms("coupled pairs, the real pipeline", PAIRS * len(pairs), sum(of_pairs), None),
        Alarms(f"residual audits of {RUNS} runs, the real pipeline", len(audits), sum(of_audits), 2 * level),
    ]
    parts = -(-count // STREAMS)
    for kind, streams in (("without masks", 1), ("with masks", 2)):
        alarms, found = [sum(column) for column in zip(*found[:parts], strict=True)], found[parts:]
        what = f"residual audits of {RUNS} runs {kind}, the simulated law"
        counted += [
            Alarms(what, count, alarm, streams * each)
            for alarm, each in zip(alarms, (level, LARGE_LEVEL), strict=True)
        ]
    return counted


def _spread(scenes: list[Scene], count: int, seed: int) -> list[tuple[Scene, int]]:
    """Return `count` pairs of a scene and a seed, each scene as often as every other."""
    return [(scenes[place % len(scenes)], seed + 1 + place // len(scenes)) for place in range(count)]


def _coupled(scene: Scene, seed: int) -> int:
    return int(any(row.verdict is Verdict.refuted for row in coupled_rows(scene, pairs=PAIRS, seed=seed)))


def _residual(scene: Scene, seed: int, level: float) -> int:
    rows = residual_rows(scene, play_noises(scene, 0, RUNS, seed=seed), false_alarm=level)
    return int(any(row.verdict is Verdict.refuted for row in rows))


def _simulated(scene: Scene, first: int, count: int, level: float, seed: int) -> tuple[int, ...]:
    """Return how many of some audits of the simulated law are refuted, at `level` and at `LARGE_LEVEL` for noise and masks."""
    plan, stated = plan_of(scene), stated_of(scene)
    who = plan.participation
    clients = np.array(cohorts(plan)).reshape(who.epochs, who.rounds_per_epoch, who.cohort_size)
    refuted = np.zeros(2, np.int64)
    for audit in range(first, first + count):
        rng = PublicSeed(seed).generator("audit calibration", scene.name, audit)
        values = rng.standard_normal((RUNS, who.epochs, who.rounds_per_epoch, plan.dimension))
        sums = np.stack(
            [
                np.einsum("ts,rsd->rtd", epoch.sigma * np.linalg.inv(epoch.whitening), values[:, place])
                for place, epoch in enumerate(stated.epochs)
            ],
            axis=1,
        )
        findings = list(residuals(sums, stated, false_alarm=level))
        if scene.keep_probability < 1:
            masks = rng.random((RUNS, *clients.shape, plan.rotation.padded)) < scene.keep_probability
            findings += mask_laws(masks, scene.keep_probability, clients=clients, false_alarm=level)
        # The limit of a row is its share of the level, in proportion.
        nearest = min(finding.observed / finding.limit for finding in findings)
        refuted += [nearest <= 1, nearest <= LARGE_LEVEL / level]
    return tuple(refuted.tolist())


def powers(
    setups: list[Setup], single: list[OneRunSetup], *, runs: int, residual_runs: int, levels: Levels
) -> list[Power]:
    """Return the power of all rows that see a factor in the noise, of the pipelines as shipped."""
    rows = residual_powers(residual.SCENES[0], residual_runs, levels.part)
    for setup in setups:
        rows += many_run_powers(setup, runs, levels)
    for one in single:
        rows += one_run_powers(one, levels)
    return rows


def in_words(alarms: Sequence[Alarms]) -> list[str]:
    """Return the counts as lines of a Markdown table."""
    lines = ["| honest | false alarms | level of each |", "|---|---|---|"]
    for found in alarms:
        level = "0" if found.level is None else f"{found.level:.2g}"
        lines.append(f"| {found.what} | {found.alarms} of {found.trials} | {level} |")
    return lines
