"""The audit as a list of jobs: calls that processes share, and what makes rows of what they return."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments.audit import residual
from experiments.audit.coupled import coupled_rows
from experiments.audit.crossing import needed
from experiments.audit.digits import Runs, Setup
from experiments.audit.further import attack_rows, check_exact, f_dp_row, further_rows
from experiments.audit.levels import Levels
from experiments.audit.matrix import LIKELY, SURE
from experiments.audit.one_run import OneRunSetup
from experiments.audit.power import many_run_control_power, one_run_control_powers
from experiments.audit.residual import Noises, play_noises, residual_rows
from experiments.audit.row import Row, Verdict
from experiments.audit.sabotage import HALF_NOISE, NONE, SHARED_MASK, Sabotage
from experiments.audit.scene import Scene, plan_of
from experiments.audit.trials import (
    Scores,
    Trial,
    attack,
    attacks_on,
    joined,
    many_run_tasks,
    one_run_task,
    one_run_trial,
)
from experiments.audit.work import Task, outcomes
from fedmf.audit import detection
from fedmf.audit.residual import VARIANCE

CHUNK = 25  # runs of a scene that a process plays before it hands them back
PLAY_WEIGHT = 0.8  # a run of a scene takes as long as this many runs on digits
WIDE_DIMENSION = 10_000
WIDE_WEIGHT = 8.0  # and one of a scene as wide as this


@dataclass(frozen=True)
class Found:
    """What a job comes to: rows, and what the plot is drawn from."""

    rows: list[Row]
    drawn: list[tuple[Trial, Scores | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """Calls, and the function that makes of what they return, in order, what is found."""

    tasks: list[Task]
    finish: Callable[[list[Any]], Found]
    judging: float = 1.0  # the weight of `finish`


def run_jobs(jobs: Sequence[Job], workers: int) -> list[Found]:
    """Return what each job found; the calls of all are shared out together, the longest first."""
    tasks = [(number, task) for number, job in enumerate(jobs) for task in job.tasks]
    order = sorted(range(len(tasks)), key=lambda place: -tasks[place][1].weight)
    played = dict(zip(order, outcomes([tasks[place][1] for place in order], workers), strict=True))
    parts: list[list[Any]] = [[] for _ in jobs]
    for place, (number, _) in enumerate(tasks):
        parts[number].append(played[place])
    judging = [
        Task(job.finish, (part,), job.judging) for job, part in zip(jobs, parts, strict=True) if job.tasks
    ]
    return outcomes(judging, workers)


def bites(sabotage: Sabotage, scene: Scene) -> bool:
    """Say whether a scene has what the sabotage breaks; what is not about resuming is played without it."""
    if sabotage == NONE:
        return True
    clients = scene.cohort_size * scene.rounds_per_epoch
    if clients < sabotage.clients or scene.dimension < sabotage.dimension:
        return False
    lacks = (
        sabotage.masks and scene.keep_probability == 1,
        sabotage.hostile and not scene.hostile,
        sabotage.int8 and scene.value_type != "int8",
        sabotage.padded and plan_of(scene).rotation.padded == scene.dimension,
    )
    if any(lacks):
        return False
    return sabotage.resumes == (scene.resume_after is not None)


def coupled_jobs(sabotage: Sabotage, scenes: Sequence[Scene], *, pairs: int | None, seed: int) -> list[Job]:
    """Return the coupled runs of the scenes that a sabotage bites in."""
    return [
        Job([Task(_coupled, (scene, sabotage, pairs, seed), count * _weight(scene))], _first)
        for scene in scenes
        if (count := needed(plan_of(scene)) if pairs is None else pairs) and bites(sabotage, scene)
    ]


def _coupled(scene: Scene, sabotage: Sabotage, pairs: int | None, seed: int) -> list[Row]:
    """Return the rows of so many pairs; fewer than send every kind of vector in every round decide nothing that they miss."""
    rows = coupled_rows(scene, sabotage, pairs=pairs, seed=seed)
    if pairs is None or pairs >= needed(plan_of(scene)):
        return rows
    return [
        row.undecided(f"too few pairs (pairs={pairs}) to send each kind of vector in every round")
        for row in rows
    ]


def _first(parts: list[Any]) -> Found:
    return Found(parts[0])


def _weight(scene: Scene) -> float:
    """Return how many runs on digits take as long as two runs of a scene."""
    return 2 * PLAY_WEIGHT if scene.dimension < WIDE_DIMENSION else 2 * WIDE_WEIGHT


def residual_jobs(
    sabotage: Sabotage,
    scenes: Sequence[Scene],
    *,
    runs: int,
    seed: int,
    level: float | None = None,
    enough: int = residual.RUNS,
) -> list[Job]:
    """Return the residual runs of the scenes that a sabotage bites in; of wide ones a few, which hold as much noise.

    `level` is the false alarm of each scene's noise, and of its masks (`Levels.part`); None: these scenes are the whole audit.
    Of a sabotage fewer runs than `enough` decide nothing that they miss.
    """
    level = Levels(0.95, parts=residual.streams(scenes)).part if level is None else level
    return [
        _residual_job(scene, sabotage, runs, seed, _Judge(scene, sabotage, level, runs, runs < enough))
        if scene.dimension < WIDE_DIMENSION
        else _residual_job(
            *(scene, sabotage, residual.WIDE_RUNS, seed),
            _Judge(scene, sabotage, level, residual.WIDE_RUNS, is_small=False),
        )
        for scene in scenes
        if runs and bites(sabotage, scene)
    ]


def _residual_job(scene: Scene, sabotage: Sabotage, runs: int, seed: int, judge: "_Judge") -> Job:
    sizes = [(first, min(CHUNK, runs - first)) for first in range(0, runs, CHUNK)]
    tasks = [
        Task(play_noises, (scene, first, size, sabotage, seed), size * _weight(scene))
        for first, size in sizes
    ]
    return Job(tasks, judge)


@dataclass(frozen=True)
class _Judge:
    """Makes rows of so many runs of a scene; `is_small`: fewer than decide whether a sabotage is caught."""

    scene: Scene
    sabotage: Sabotage
    level: float
    runs: int
    is_small: bool

    def __call__(self, parts: list[Noises]) -> Found:
        rows = residual_rows(self.scene, residual.joined(parts), self.sabotage, false_alarm=self.level)
        if self.sabotage == NONE:
            return Found(self._shipped(rows))
        why = f"fewer runs than a default audit has (residual_runs={self.runs})"
        return Found([row.undecided(why) for row in rows] if self.is_small else rows)

    def _shipped(self, rows: list[Row]) -> list[Row]:
        """Return the rows on the product, the one on the variance with the power at which it finds halved noise."""
        who = plan_of(self.scene).participation
        (power,) = (
            found.probability
            for found in detection.power(
                0.5,
                runs=self.runs,
                epochs=who.epochs,
                rounds=who.rounds_per_epoch,
                coordinates=self.scene.dimension,
                false_alarm=self.level,
            )
            if found.test == VARIANCE
        )
        rows = [replace(row, power=power) if row.test == VARIANCE else row for row in rows]
        if power >= SURE:
            return rows
        why = (
            f"{self.runs} runs (residual_runs) would find {HALF_NOISE.name} with probability {power:.2g} only"
        )
        return [row.undecided(why) for row in rows]


def audit_levels(
    confidence: float, many: Sequence[Setup], single: Sequence[OneRunSetup], scenes: Sequence[Scene]
) -> Levels:
    """Return the levels of an audit of these pipelines as shipped, played many times and once, and of these scenes."""
    exact = sum(setup.keep_probability < 1 for setup in many)
    return Levels(
        confidence,
        attacks=sum(attack_rows(setup) for setup in many) + len(single),  # f-DP
        one_runs=len(single),
        parts=residual.streams(scenes) + exact,
    )


def many_run_job(setup: Setup, *, runs: int, levels: Levels) -> Job:
    """Return a pipeline on digits, played many times. Raises `SettingError` for sizes that give no verdict."""
    check_exact(setup, levels)
    return Job(many_run_tasks(setup, runs), _Attack(setup, levels), judging=200.0)


@dataclass(frozen=True)
class _Attack:
    """Makes rows of the runs of a pipeline on digits."""

    setup: Setup
    levels: Levels

    def __call__(self, parts: list[Runs]) -> Found:
        runs = joined(parts)
        drawn = attack(self.setup, runs, self.levels)
        trials = [trial for trial, _ in drawn]
        rows = [self._asked(trial.as_row(), len(runs.present)) for trial in trials]
        rows += further_rows(self.setup, runs, trials, self.levels)
        if self.setup.sabotage == NONE:
            rows = self._shipped(rows, len(runs.present))
        return Found(rows, list(drawn))

    def _shipped(self, rows: list[Row], runs: int) -> list[Row]:
        """Return the rows on the product, of which the second is meant for a fault: with its power at that many runs."""
        fault = SHARED_MASK if self.setup.companions else HALF_NOISE
        broken = replace(self.setup, sabotage=fault)
        (law,) = attacks_on(broken).values()
        power = many_run_control_power(broken, law, runs, self.levels)
        rows = [replace(row, power=power) if place == 1 else row for place, row in enumerate(rows)]
        return decided(rows, power, f"{runs} runs", fault.name)

    def _asked(self, row: Row, runs: int) -> Row:
        """Return the row of a control whose law is known with its power at that many runs."""
        if self.setup.sabotage not in (HALF_NOISE, SHARED_MASK):
            return row
        (law,) = attacks_on(self.setup).values()
        return with_power(row, many_run_control_power(self.setup, law, runs, self.levels))


def one_run_job(setup: OneRunSetup, *, levels: Levels) -> Job:
    """Return a run whose clients are all canaries."""
    return Job([one_run_task(setup)], _OneRun(setup, levels))


@dataclass(frozen=True)
class _OneRun:
    """Makes rows of a run whose clients are all canaries."""

    setup: OneRunSetup
    levels: Levels

    def __call__(self, parts: list[int]) -> Found:
        trial = one_run_trial(self.setup, parts[0], self.levels)
        rows = [trial.as_row(), f_dp_row(self.setup, parts[0], self.levels)]
        if self.setup.sabotage in (HALF_NOISE, NONE):
            powers = one_run_control_powers(replace(self.setup, sabotage=HALF_NOISE), 0.5, self.levels)
            if self.setup.sabotage == HALF_NOISE:
                rows = [with_power(row, power) for row, power in zip(rows, powers, strict=True)]
            else:
                rows = [replace(row, power=power) for row, power in zip(rows, powers, strict=True)]
                played = f"{self.setup.guesses} guesses of {self.setup.canaries}"
                rows = decided(rows, max(powers), played, HALF_NOISE.name)
        return Found(rows, [(trial, None)])


def decided(rows: Sequence[Row], power: float, played: str, fault: str) -> list[Row]:
    """Return the rows on a pipeline as shipped; where `power` is below `LIKELY`, attacks that found nothing decide nothing.

    `power` is that of the one among them that is meant for `fault`, at the size `played`.
    """
    if power >= LIKELY:
        return list(rows)
    note = f"{played} would find {fault} with probability {power:.2g} only"
    return [
        replace(row, verdict=Verdict.inconclusive, note=f"{row.note}; {note}")
        if row.is_attack and row.verdict is Verdict.nothing_found
        else row
        for row in rows
    ]


def with_power(row: Row, power: float) -> Row:
    """Return the row of a control with its power; too small a one that found nothing has not decided anything."""
    if row.verdict is not Verdict.nothing_found or power >= SURE:
        return replace(row, power=power)
    note = f"{row.note}; at this size it finds the sabotage with probability {power:.3g} only"
    return replace(row, power=power, verdict=Verdict.inconclusive, note=note)


def of_mechanisms(scenes: Sequence[Scene], mechanisms: Sequence[str]) -> list[Scene]:
    """Return the scenes, and for each mechanism that none of them has the first one under it."""
    played = {scene.mechanism for scene in scenes}
    more = [
        replace(scenes[0], name=scenes[0].name.replace(scenes[0].mechanism, name, 1), mechanism=name)
        for name in mechanisms
        if name not in played
    ]
    return [*scenes, *more]
