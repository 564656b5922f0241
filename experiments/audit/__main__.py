"""Audit the real pipeline: `python -m experiments.audit`.

Plays the Flower strategy and client app and looks for what they give away beyond the statement: pairs of runs with the
same secrets and one client in or out, the noise held against its law, and attacks that bound epsilon from below. Exit
code 0: nothing was found; 1: the product is refuted, or the audit missed what it must catch; 3: too few runs or pairs
for a test to decide, or a test that must catch something was left out. `sabotage=all` breaks the pipeline in every way
of a list and prints which test caught what; `run=DIR` audits the directory of a run whose secrets were kept;
`calibration=1000` measures false alarms and power. What each test can and cannot see: docs/audit.md.
"""

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.audit import calibration, coupled, residual
from experiments.audit.digits import Setup
from experiments.audit.jobs import (
    WIDE_DIMENSION,
    Job,
    audit_levels,
    coupled_jobs,
    many_run_job,
    of_mechanisms,
    one_run_job,
    residual_jobs,
    run_jobs,
)
from experiments.audit.levels import Levels
from experiments.audit.matrix import Code, exit_code, lines
from experiments.audit.one_run import OneRunSetup
from experiments.audit.power import CORRELATIONS, correlation_powers, correlations_in_words, in_words
from experiments.audit.recorded import recorded_rows
from experiments.audit.report import Report
from experiments.audit.sabotage import NONE, SABOTAGES, Sabotage
from experiments.audit.scene import Scene
from experiments.audit.settings import (
    check,
    chosen_sabotages,
    for_a_night,
    new_directory,
    refuse_existing,
)
from experiments.audit.trials import many_run_setups
from experiments.cli import command, output
from experiments.run_files.directory import RunDirectory
from experiments.settings.commands import AuditSettings
from experiments.settings.output import Output
from fedmf.mechanisms import FAMILIES

# What a default audit breaks, so that it shows what it can see; each in a pipeline that takes seconds.
CONTROLS = ("noise halved", "a coordinate without noise", "no clipping", "a stale sum", "one mask for all")
CONTROL_SCENES = 3
CONTROL_RUNS = 20
CORRELATED_RUNS = (50, 100, 200, 1000)  # for the power against a correlation of two coordinates


def audit(settings: AuditSettings) -> None:
    """Play, judge, print; raises `SystemExit` with the code of `matrix.Code` unless nothing was found."""
    check(settings)
    if settings.run_directory is not None:
        audit_run(settings, Path(settings.run_directory))
        return
    settings = for_a_night(settings, FAMILIES) if settings.thorough else settings
    refuse_existing(Path(settings.directory))
    if settings.calibration:
        calibrate(settings)
        return
    started = time.monotonic()
    sabotages, levels = chosen_sabotages(settings.sabotage), levels_of(settings)
    jobs = honest_jobs(settings, levels) + (
        [job for sabotage in sabotages for job in sabotage_jobs(settings, sabotage, levels)]
        if sabotages
        else control_jobs(settings, levels)
    )
    directory = new_directory(Path(settings.directory))
    logging.getLogger("server").setLevel(logging.WARNING)  # a line for each of thousands of runs helps nobody
    found = run_jobs(jobs, settings.workers)
    rows = [row for part in found for row in part.rows]
    broken = lines(rows, sabotages or [SABOTAGES[name] for name in CONTROLS])
    _say(
        Report(
            rows=rows,
            drawn=[trial for part in found for trial in part.drawn],
            lines=broken,
            code=exit_code(rows, broken),
            seconds=time.monotonic() - started,
            directory=directory,
        ),
        settings,
    )


def audit_run(settings: AuditSettings, run: Path) -> None:
    """Audit the directory of a run, and print what was found; raises `SystemExit` with the code of `matrix.Code`."""
    refuse_existing(Path(settings.directory))
    started = time.monotonic()
    rows = recorded_rows(run, trust_code=settings.trust_code)
    # Only now: what cannot be audited leaves nothing behind.
    directory = new_directory(Path(settings.directory))
    report = Report(rows, [], [], exit_code(rows, []), time.monotonic() - started, directory)
    _say(report, settings)


def _say(report: Report, settings: AuditSettings) -> None:
    """Write and print a report, and end with its code."""
    document = report.write()
    if settings.output is Output.json:
        output.print_json(document)
    else:
        report.print_text()
    if report.code:
        sys.exit(int(report.code))


def calibrate(settings: AuditSettings) -> None:
    """Measure false alarms and power, and print them; raises `SystemExit(1)` where a level is not kept."""
    first = replace(settings, mechanisms=settings.mechanisms[:1])
    setups = [setup for setup in many_runs(first, NONE) if not setup.companions]
    single = one_runs(first, NONE)
    levels = levels_of(replace(settings, residual_runs=settings.residual_runs or residual.RUNS))
    directory = new_directory(Path(settings.directory))
    logging.getLogger("server").setLevel(logging.WARNING)
    alarms = calibration.false_alarms(
        settings.calibration, level=levels.part, workers=settings.workers, seed=settings.seed
    )
    powers = calibration.powers(
        setups,
        single,
        runs=settings.runs,
        residual_runs=settings.residual_runs or residual.RUNS,
        levels=levels,
    )
    pairs = [
        (runs, correlation_powers(residual.SCENES[0], runs, levels.part, seed=settings.seed))
        for runs in CORRELATED_RUNS
    ]
    document = {
        "passed": all(found.keeps_its_level for found in alarms),
        "false_alarms": [found.as_document() for found in alarms],
        "power": [power.as_document() for power in powers],
        "power_of_pairs_of_coordinates": [
            {"runs": runs, "probability": dict(zip(map(str, CORRELATIONS), found, strict=True))}
            for runs, found in pairs
        ],
    }
    RunDirectory(directory).write_json("calibration.json", document)
    if settings.output is Output.json:
        output.print_json(document)
    else:
        print(
            "\n".join(
                [*calibration.in_words(alarms), "", *in_words(powers), "", *correlations_in_words(pairs)]
            )
        )
    if not document["passed"]:
        sys.exit(int(Code.refuted))


def honest_jobs(settings: AuditSettings, levels: Levels) -> list[Job]:
    """Return the jobs of the product as shipped: those of one run with canaries first, which take longest."""
    coupled_scenes = list(coupled.SCENES)
    if settings.thorough:
        coupled_scenes = of_mechanisms(coupled_scenes, settings.mechanisms)
    jobs = [one_run_job(setup, levels=levels) for setup in one_runs(settings, NONE)]
    jobs += [many_run_job(setup, runs=settings.runs, levels=levels) for setup in many_runs(settings, NONE)]
    jobs += coupled_jobs(NONE, coupled_scenes, pairs=settings.pairs, seed=settings.seed)
    return jobs + residual_jobs(
        NONE, residual_scenes(settings), runs=settings.residual_runs, seed=settings.seed, level=levels.part
    )


def residual_scenes(settings: AuditSettings) -> list[Scene]:
    """Return the scenes whose noise is held against its law in the product as shipped."""
    scenes = [*residual.SCENES, residual.WIDE]
    return of_mechanisms(scenes, settings.mechanisms) if settings.thorough else scenes


def levels_of(settings: AuditSettings) -> Levels:
    """Return the levels of the audit, whose rows on the product as shipped share them; sabotages are caught at the same.

    Makes the plan of each attacked pipeline once, so that what cannot be made leaves no directory behind.
    """
    scenes = residual_scenes(settings) if settings.residual_runs else []
    return audit_levels(settings.confidence, many_runs(settings, NONE), one_runs(settings, NONE), scenes)


def control_jobs(settings: AuditSettings, levels: Levels) -> list[Job]:
    """Return the jobs of a few sabotages in a few scenes."""
    jobs = []
    for sabotage in (SABOTAGES[name] for name in CONTROLS):
        jobs += coupled_jobs(
            sabotage, coupled.SCENES[:CONTROL_SCENES], pairs=settings.pairs, seed=settings.seed
        )
        jobs += residual_jobs(
            sabotage,
            residual.SCENES[:2],
            runs=min(CONTROL_RUNS, settings.residual_runs),
            seed=settings.seed,
            level=levels.part,
            enough=CONTROL_RUNS,
        )
    return jobs


def sabotage_jobs(settings: AuditSettings, sabotage: Sabotage, levels: Levels) -> list[Job]:
    """Return the jobs of one sabotage, with the first mechanism only where runs are attacked."""
    first = replace(settings, mechanisms=settings.mechanisms[:1])
    jobs = coupled_jobs(sabotage, coupled.SCENES, pairs=settings.pairs, seed=settings.seed)
    is_wide = sabotage.dimension >= WIDE_DIMENSION
    scenes = (residual.WIDE,) if is_wide else residual.SCENES
    jobs += residual_jobs(
        sabotage, scenes, runs=settings.residual_runs, seed=settings.seed, level=levels.part
    )
    # Attacked pipelines are never resumed, have few coordinates, float32 values, no padding where there are masks, and
    # clients that keep to the protocol.
    if sabotage.resumes or sabotage.hostile or sabotage.int8 or sabotage.padded or is_wide:
        return jobs
    jobs += [many_run_job(setup, runs=settings.runs, levels=levels) for setup in many_runs(first, sabotage)]
    if not sabotage.masks:
        jobs += [one_run_job(setup, levels=levels) for setup in one_runs(first, sabotage)]
    return jobs


def many_runs(settings: AuditSettings, sabotage: Sabotage) -> list[Setup]:
    """Return the pipelines to play many times, of a broken one the first in which the sabotage bites."""
    if not settings.runs:
        return []
    base = Setup(
        mechanism="",
        keep_probability=1.0,
        epsilon=settings.epsilon,
        delta=settings.delta,
        cohort_size=settings.cohort_size,
        rounds_per_epoch=settings.rounds_per_epoch,
        epochs=settings.epochs,
        seed=settings.seed,
    )
    shipped = many_run_setups(base, settings.mechanisms, settings.keep_probabilities)
    setups = [replace(setup, sabotage=sabotage) for setup in shipped]
    if sabotage == NONE:
        return setups
    masked = [setup for setup in setups if setup.companions and setup.keep_probability < 1]
    return masked[:1] if sabotage.masks else setups[:1]


def one_runs(settings: AuditSettings, sabotage: Sabotage) -> list[OneRunSetup]:
    """Return the runs with canaries only, none with canaries=0."""
    if settings.canaries == 0:
        return []
    return [
        OneRunSetup(
            mechanism=mechanism,
            epsilon=settings.one_run_epsilon,
            delta=settings.one_run_delta,
            canaries=settings.canaries,
            guesses=settings.guesses,
            seed=settings.seed,
            sabotage=sabotage,
        )
        for mechanism in settings.mechanisms
    ]


def in_full(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `run=` written as the key it stands for: a run has a group of that name.

    >>> in_full(["run=outputs/mine", "seed=1"])
    ['run_directory=outputs/mine', 'seed=1']
    """
    return [
        f"run_directory={word.removeprefix('run=')}" if word.startswith("run=") else word
        for word in arguments
    ]


if __name__ == "__main__":
    command.run(audit, "audit", AuditSettings, __doc__, in_full(sys.argv[1:]))
