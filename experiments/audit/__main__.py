"""Attack the real pipeline and bound epsilon from below: `python -m experiments.audit`.

Plays the Flower strategy and client app many times on digits with one canary client in or zeroed out, and
once with canaries only; an attacker who sees every released model guesses. What it gets right proves a lower
bound on epsilon. Pipelines as shipped must stay below the epsilon they state; the same pipelines, broken on
purpose (noise halved, one mask for a whole cohort), must be caught. Exit code 1 if either fails. What is
measured, and how: docs/audit.md.
"""

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from experiments.audit.digits import Setup, number_of_images
from experiments.audit.one_run import OneRunSetup
from experiments.audit.table import as_document, draw, table
from experiments.audit.trials import (
    Scores,
    Trial,
    attack,
    attacks_on,
    joined,
    many_run_setups,
    many_run_tasks,
    one_run_setups,
    one_run_task,
    one_run_trial,
)
from experiments.audit.work import outcomes
from experiments.cli import command, output
from experiments.run_files.finite import finite
from experiments.settings.output import Output
from fedmf.checks import check_at_least, check_keep_probability, check_open_unit
from fedmf.errors import RunDirectoryError, SettingError

NOT_AS_IT_MUST_BE = 1  # exit code

Outcome = tuple[Trial, Scores | None]


@dataclass(frozen=True)
class AuditSettings:
    """Keys of the command."""

    directory: str
    mechanisms: tuple[str, ...]
    keep_probabilities: tuple[float, ...]
    epsilon: float
    delta: float
    runs: int
    cohort_size: int
    rounds_per_epoch: int
    epochs: int
    one_run_epsilon: float
    one_run_delta: float
    canaries: int
    guesses: int
    confidence: float
    workers: int
    seed: int
    output: Output


def audit(settings: AuditSettings) -> None:
    """Play, attack, judge, print; raises `SystemExit(1)` when an outcome is not as it must be."""
    check(settings)
    many, single = make_setups(settings)
    for setup in many:
        attacks_on(setup)  # so that a plan which cannot be made leaves no directory behind
    directory = new_directory(Path(settings.directory))
    logging.getLogger("server").setLevel(logging.WARNING)  # a line for each of thousands of runs helps nobody
    found = run_trials(settings, many, single)
    trials = [trial for trial, _ in found]
    document = as_document(trials, draw(found, directory / "audit.png"))
    (directory / "audit.json").write_text(json.dumps(finite(document), indent=2) + "\n")
    if settings.output is Output.json:
        output.print_json(document)
    else:
        print_text(trials, directory)
    if not document["passed"]:
        sys.exit(NOT_AS_IT_MUST_BE)


def check(settings: AuditSettings) -> None:
    """Raise `SettingError` for settings with which nothing could be concluded."""
    for name in ("mechanisms", "keep_probabilities"):
        if not getattr(settings, name):
            raise SettingError(f"{name} is empty; give at least one.")
    for keep_probability in settings.keep_probabilities:
        check_keep_probability(keep_probability)
    check_at_least("runs", settings.runs, 20)
    check_at_least("cohort_size", settings.cohort_size, 2)
    clients, images = settings.cohort_size * settings.rounds_per_epoch, number_of_images()
    if clients > images:
        raise SettingError(
            f"cohort_size is {settings.cohort_size} and rounds_per_epoch {settings.rounds_per_epoch}; that is {clients} "
            f"clients for {images} training images, and each needs one."
        )
    check_at_least("canaries", settings.canaries, 0)
    check_at_least("workers", settings.workers, 1)
    check_open_unit("confidence", settings.confidence)


def new_directory(path: Path) -> Path:
    """Return `path`, made now. Raises `RunDirectoryError` if something is there."""
    try:
        path.mkdir(parents=True)
    except FileExistsError as error:
        raise RunDirectoryError(
            f"directory is {path}, which exists already; name one that does not, "
            "so that no audit overwrites another."
        ) from error
    return path


def run_trials(settings: AuditSettings, many: list[Setup], single: list[OneRunSetup]) -> list[Outcome]:
    """Return all trials in the order of the table; the runs of all pipelines are shared out together."""
    parts = [many_run_tasks(setup, settings.runs) for setup in many]
    tasks = [one_run_task(setup) for setup in single] + [task for part in parts for task in part]
    played = outcomes(tasks, settings.workers)
    rows: list[Outcome] = []
    start = len(single)
    for setup, part in zip(many, parts, strict=True):
        runs = joined(played[start : start + len(part)])
        rows += attack(setup, runs, settings.confidence)
        start += len(part)
    for one, correct in zip(single, played, strict=False):  # the one-run outcomes come first
        rows.append((one_run_trial(one, correct, settings.confidence), None))
    return rows


def make_setups(settings: AuditSettings) -> tuple[list[Setup], list[OneRunSetup]]:
    """Return the pipelines to play many times, and those to play once (none with canaries=0)."""
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
    many = many_run_setups(base, settings.mechanisms, settings.keep_probabilities)
    if settings.canaries == 0:
        return many, []
    single = OneRunSetup(
        mechanism="",
        epsilon=settings.one_run_epsilon,
        delta=settings.one_run_delta,
        canaries=settings.canaries,
        guesses=settings.guesses,
        seed=settings.seed,
    )
    return many, one_run_setups(single, settings.mechanisms)


def print_text(trials: Sequence[Trial], directory: Path) -> None:
    """Print the table and what it comes to."""
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    console.print(table(trials))
    wrong = sum(not trial.is_right for trial in trials)
    controls = sum(trial.is_control for trial in trials)
    if wrong:
        console.print(f"FAILED: {wrong} of {len(trials)} outcomes are not as they must be.")
    else:
        console.print(
            f"Passed: {len(trials) - controls} attacks on pipelines as shipped stay below the stated epsilon, "
            f"all {controls} broken pipelines are caught."
        )
    console.print("What an audit does not show: docs/audit.md.")
    console.print(f"Plot and numbers: {directory}/audit.png, {directory}/audit.json")


if __name__ == "__main__":
    command.run(audit, "audit", AuditSettings, __doc__)
