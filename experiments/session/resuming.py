"""`run.directory=DIR run.resume=true` alone goes on with a run by the settings that it recorded itself.

Settings given beside it must be the run's own, or of those that may change between the calls of one run; what differs is
refused by name. The same for run.extend, which may raise privacy.max_epsilon.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.run_files.directory import CHECKPOINT, CONFIG, METRICS
from experiments.run_files.limits import LIMIT, bound_config
from experiments.run_files.reader import is_finished
from experiments.run_files.same_settings import differences, refuse_differences
from experiments.settings.compose import compose
from experiments.settings.frozen import plain
from experiments.settings.overrides import parsed
from experiments.settings.recorded import refuse_code, restored
from experiments.settings.resumed import beside, describes_a_run, is_true, named_in
from experiments.settings.schema import Settings
from fedmf.errors import RunDirectoryError, SettingError
from server.checkpoint import Checkpoint

CONSENT = "run.trust_code=true"


def with_recorded(overrides: Sequence[str], consent: str = CONSENT) -> list[str]:
    """Return `overrides` behind those that the run recorded which they go on with; as they are where there is none.

    A run that was cut off before its first release can begin anew with other settings: then they are as they are, too.
    Raises `RunDirectoryError` for settings that are not the run's, and `SettingError` for code that nobody but its
    directory names, without `consent`.
    """
    given: dict[str, Any] = {override.key: override.value for override in parsed(overrides)}
    extends = given.get("run.extend") is not None
    named = given.get("run.directory")
    if not (extends or is_true(given.get("run.resume"))) or not isinstance(named, str | int | float):
        return list(overrides)
    path = Path(str(named))
    refuse_lost_config(path)
    if not (path / CONFIG).is_file():
        _refuse_nothing_to_go_on_with(path, overrides, extends=extends)
        return list(overrides)
    document = bound_config(path)
    if not is_true(given.get("run.trust_code")):
        refuse_code(path, document, given=named_in(overrides), consent=consent)
    found = beside(restored(document), overrides)
    differing = list(found.differences)
    if not differing:
        composed = plain(compose("config", found.given, Settings, found.recorded))
        differing = differences(document, composed, besides=(LIMIT,) if extends else ())
    if differing:
        if not has_released(path):
            return list(overrides)
        refuse_differences(path, differing)
    return [*found.recorded, *found.given]


def _refuse_nothing_to_go_on_with(path: Path, overrides: Sequence[str], *, extends: bool) -> None:
    """Raise `RunDirectoryError` unless a new run may begin in `path`: one that is described, and may have been cut off."""
    if extends:
        raise RunDirectoryError(
            f"{path} holds no run that run.extend could add epochs to; name a finished one."
        )
    if not describes_a_run(overrides):
        raise RunDirectoryError(
            f"{path} holds no run to go on with, and no settings are given by which a new one would begin; name the "
            "directory of a run, or leave out run.resume."
        )


def refuse_lost_config(path: Path) -> None:
    """Raise `RunDirectoryError` for a run that released a round or has finished, and has lost its config.yaml."""
    if not (path / CONFIG).is_file() and (is_finished(path) or has_released(path)):
        raise RunDirectoryError(
            f"{path} holds a run, but no {CONFIG}, which says by what settings and within what limit it goes on; restore "
            "that file."
        )


def has_released(path: Path) -> bool:
    """Say whether a round was released in a run directory: one that was shown, or one that its checkpoint holds."""
    metrics = path / METRICS
    is_shown = metrics.is_file() and metrics.stat().st_size > 0
    return is_shown or Checkpoint(path / CHECKPOINT, {}).has_released()


def recorded_parts(settings: Settings, path: Path) -> Settings:
    """Return `settings` with the parts of the run in `path`, if it was extended: nobody has to give them.

    Raises `SettingError` for parts that are given otherwise: run.extend alone adds one.
    """
    goes_on = settings.resumes or settings.run.extend is not None
    recorded = None
    if goes_on:
        refuse_lost_config(path)
    if goes_on and (path / CONFIG).is_file():
        population = bound_config(path).get("population") or {}
        recorded = None if population.get("parts") is None else tuple(population["parts"])
    given = settings.population.parts
    if given not in (None, recorded):
        raise SettingError(
            f"population.parts is {list(given)}, which run.extend=EPOCHS writes when it adds epochs to a finished run; "
            "leave it null."
        )
    return replace(settings, population=replace(settings.population, parts=recorded))
