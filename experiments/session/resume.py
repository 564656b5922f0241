"""What a run begins with, is resumed with or extended by: settings of files and of other runs, its own, further epochs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.run_files.directory import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    REPORT,
    SUMMARY,
    check_no_other_files,
    check_unused,
)
from experiments.run_files.reader import (
    EXTENDED,
    LIMIT,
    PARTS,
    bound_config,
    check_same_settings,
    differences,
    is_finished,
    read_config,
    read_run,
    read_summary,
    with_limits,
    without,
)
from experiments.settings.compose import compose, from_file, given_values, is_true
from experiments.settings.experiment import Experiment, run_secret
from experiments.settings.log import messages
from experiments.settings.recorded import (
    Recorded,
    check_code_is_named,
    flattened,
    named_code,
    restored,
    to_yaml,
)
from experiments.settings.reference import RUN, called
from experiments.settings.schema import FREE, Settings, of_the_run
from experiments.settings.values import keyed, plain
from fedmf.checks import counted, rounded_up
from fedmf.errors import RunDirectoryError, SettingError
from server.checkpoint import Checkpoint
from server.files import sync_folder, write_atomically
from server.record import Record
from server.state import Secrets

CONSENT = "run.trust_code=true"


def run_settings(overrides: Sequence[str], consent: str = CONSENT) -> Settings:
    """Return the settings of a run: those that `overrides` give, or with run.resume or run.extend those that the run recorded.

    A run that was cut off before its first release can be begun again with other settings.
    With as=PATH the run begins with the settings of another run or of a file, as `start_of` reads them, and is no other's.
    Raises `RunDirectoryError` for settings that are not the run's, and `SettingError` for code that only its
    directory names, without `consent`.
    """
    overrides, start = start_of(overrides, consent)
    given = given_values(overrides)
    extends = given.get("run.extend") is not None
    directory = given.get("run.directory")
    resumes = extends or is_true(given.get("run.resume"))
    if start is not None or not resumes or not isinstance(directory, str | int | float):
        return compose("config", overrides, Settings, start)
    path = Path(str(directory))
    if not (path / CONFIG).is_file():  # a new run may begin that is described, and may have been cut off
        if is_finished(path) or has_released(path):
            raise RunDirectoryError(
                f"{path} holds a run, but no {CONFIG}, which has its settings and its limit; restore that file."
            )
        if extends:
            raise RunDirectoryError(
                f"{path} holds no run that run.extend could add epochs to; name a finished one."
            )
        if not without(dict.fromkeys(given), FREE):
            raise RunDirectoryError(
                f"{path} holds no run to continue, and no settings are given by which a new one would begin; name the "
                "directory of a run, or leave out run.resume."
            )
        return compose("config", overrides, Settings)
    document = bound_config(path)
    _check_code_is_typed(path, document, given, consent)
    settings = compose("config", overrides, Settings, of_the_run(plain(restored(document))))
    besides = (LIMIT,) if extends else ()
    if has_released(path):
        check_same_settings(path, settings, besides)
    elif differences(document, plain(settings), besides):
        return compose("config", overrides, Settings)
    return settings


def start_of(overrides: Sequence[str], consent: str = CONSENT) -> tuple[list[str], dict[str, Any] | None]:
    """Return `overrides` without as=PATH, and the plain values that it puts in the place of the defaults, None without it.

    PATH is the directory of a run, whose settings a new run begins with, or a YAML file with any settings; of several the
    later ones win. Raises a `FedmfError` for one that cannot be read, and as `run_settings` for code that only a run names.
    """
    typed = [text for text in overrides if not text.startswith("as=")]
    given, start = given_values(typed), None
    for text in (text for text in overrides if text.startswith("as=")):
        path = Path(str(given_values([text])["as"]))
        if path.name == CONFIG and (path.parent / CHECKPOINT).exists():
            path = path.parent
        if path.is_file():
            start = from_file(path, Settings, start)
        elif not (path / CONFIG).is_file():
            raise SettingError(
                f"as is {str(path)!r}, which is neither the directory of a run nor a file of settings."
            )
        else:
            document = read_config(path)
            _check_code_is_typed(path, document, given, consent)
            start = of_the_run(plain(restored(with_limits(document, {PARTS: None}))))
    return typed, start


def _check_code_is_typed(path: Path, document: Recorded, given: Mapping[str, Any], consent: str) -> None:
    """Raise `SettingError` for code that only the run in `path` names; an import path that was typed, alone or in a list, is trusted."""
    if not is_true(given.get("run.trust_code")):
        typed = {
            str(text) for value in given.values() for text in (value if isinstance(value, list) else [value])
        }
        check_code_is_named(path, document, given=typed, consent=consent)


def has_released(path: Path) -> bool:
    """Return whether a round was released in a run directory: one that was shown, or one that its checkpoint holds."""
    metrics = path / METRICS
    return (metrics.is_file() and metrics.stat().st_size > 0) or Record(path / CHECKPOINT).released() > 0


def recorded_parts(settings: Settings, path: Path) -> Settings:
    """Return `settings` with the parts of the run in `path`, if it was extended: they need not be given.

    Raises `SettingError` for parts that are given otherwise: run.extend alone adds one.
    """
    recorded = None
    if (settings.resumes or settings.run.extend is not None) and (path / CONFIG).is_file():
        recorded = dict(flattened(bound_config(path))).get(PARTS)
    given = settings.population.parts
    if given is not None and list(given) != recorded:
        raise SettingError(f"{PARTS} is {list(given)}, which run.extend alone writes; leave it null.")
    return replace(settings, population=replace(settings.population, parts=recorded and tuple(recorded)))


def taken_up(settings: Settings, path: Path) -> Settings | None:
    """Return the settings that a session in the directory `path` runs, None where the run has finished and is asked for again.

    `settings` are those of `recorded_parts`; run.extend adds its epochs to them as one more part. Nothing is written but the
    page of a finished run that a crash left without one. Raises `RunDirectoryError` for a directory in use without
    run.resume or by other things, for a run of other settings or without its checkpoint, and for an extension of one that has not finished.
    """
    added = settings.run.extend
    if not settings.resumes and added is None:
        check_unused(path)
        return settings
    check_no_other_files(path)
    is_over, is_extended = is_finished(path), added is not None
    if is_extended and not is_over:
        raise RunDirectoryError(
            f"run.extend is {added}, but {path} holds no finished run; resume one that was cut off with run.resume=true, or "
            "name the directory of another."
        )
    folder = path / CHECKPOINT
    if (is_extended or not is_over) and has_released(path) and Record(folder).saved() is None:
        raise RunDirectoryError(
            f"{path} shows released rounds, but {folder} holds no checkpoint: a released round must not be run again. "
            "Restore the checkpoint folder, or name another run.directory."
        )
    if is_over or has_released(path):
        check_same_settings(path, settings, besides=EXTENDED if is_extended else ())
    if added is not None:
        parts = settings.population.parts or (read_run(path).summary["epochs"],)
        return replace(settings, population=replace(settings.population, parts=(*parts, added)))
    if not is_over:
        return settings
    if not (path / REPORT).exists():  # a crash came between summary and report
        write_page(path)
    messages.info(f"finished: {path} holds this run; nothing was changed")
    return None


def how_to_continue(settings: Settings, directory: Path) -> str:
    """Return in a sentence how a run that was interrupted can be resumed."""
    if not (directory / CONFIG).exists():  # the first file of a run
        return "interrupted before the run began"
    trust = f" {CONSENT}" if named_code(plain(settings)) else ""
    return f"interrupted: continue with `{called(RUN)} run.directory={directory} run.resume=true{trust}`"


def write_page(directory: Path) -> None:
    from experiments.pages.run_page import write_report  # matplotlib: a run has no need of it before its end

    write_report(directory)


def begin(settings: Settings, directory: Path, experiment: Experiment, checkpoint: Checkpoint) -> None:
    """Let the finished run in `directory` continue with the last part of the experiment's plan.

    Raises `RunDirectoryError` or `PrivacyBudgetExhausted` with everything as it was.
    """
    plan = experiment.plan
    part = plan.participation.parts[-1]
    summary = read_summary(directory)
    for name in ("clients", "rounds_per_epoch"):  # from which all that is calculated follows
        if summary.get(name) != getattr(plan.participation, name):
            raise RunDirectoryError(
                f"the run in {directory} had {summary.get(name)} {name}, and the data at hand give "
                f"{getattr(plan.participation, name)}; extend it with data of as many clients."
            )
    state = checkpoint.ended(plan, experiment.optimizer, EXTENDED)
    if state.round != part.first * plan.participation.rounds_per_epoch or not state.is_finite:
        raise RunDirectoryError(
            f"the run in {directory} ended after round {state.round}; it can be extended after {part.first} epochs of "
            f"{plan.participation.rounds_per_epoch} rounds, with a finite model."
        )
    with keyed("privacy", ("max_epsilon", "epsilon")):
        spent = plan.check_extension(state.ledger, part.epochs)
    # As the finished run stated it; as part of a longer run its rounds cost a little more.
    before, after = (
        rounded_up(math.inf if each is None else each) for each in (summary["epsilon"], spent.epsilon)
    )
    messages.info(
        f"extended: {part.epochs} more after {counted(part.first)}, epsilon {before} -> {after} "
        f"at delta {rounded_up(spent.delta)} for all of them; a copy of this run that is extended too is a run on the same "
        "clients, and the two compose"
    )
    key = run_secret(settings)
    for _ in range(part.first):  # of a reproducible run: the key that this epoch would have had anyway
        key = key.ratchet()
    checkpoint.begin_part(replace(state, secrets=Secrets(part.first, key, None)), _limits(settings))
    (directory / SUMMARY).unlink()  # here the run continues; `complete` records the new limit and parts
    sync_folder(directory)


def complete(settings: Settings, directory: Path) -> None:
    """Put the limit and the parts of a run that continues into config.yaml, where a crash has kept them from it."""
    recorded = read_config(directory)
    if (now := with_limits(recorded, _limits(settings))) != recorded:
        write_atomically(directory / CONFIG, to_yaml(now).encode())


def _limits(settings: Settings) -> dict[str, Any]:
    return {key: value for key, value in flattened(plain(settings)) if key in EXTENDED}
