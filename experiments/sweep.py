"""Sweeps that were cut short: `python -m experiments.simulate -m sweep.resume=true hydra.sweep.dir=DIR ...`.

A job whose directory holds a finished run of the same settings is skipped; one that holds an unfinished run
is set aside and run again from the start. Without -m it does the same for a single run.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.records import is_finished, read_config
from experiments.report import flattened
from experiments.run_directory import CONFIG
from fedmf.errors import RunDirectoryError

# What may differ between the first call and the one that resumes.
FREE = ("sweep.resume", "engine.name", "engine.workers", "output", "logger", "run.directory", "run.resume")


def skip_or_set_aside(directory: Path, config: DictConfig) -> bool:
    """Return whether `directory` already holds the finished run that `config` describes.

    An unfinished run is renamed to DIRECTORY.unfinished-1 (2, ...) so that the job can start afresh and
    nothing is lost. Raises `RunDirectoryError` when the directory holds a run of other settings: the sweep
    then differs from the first.
    """
    if not (directory / CONFIG).is_file():
        return False
    wanted = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    different = differing_keys(read_config(directory), wanted if isinstance(wanted, dict) else {})
    if different:
        raise RunDirectoryError(
            f"{directory} holds a run with another {', '.join(different)}; "
            "resume a sweep with the overrides of the first call, or choose another hydra.sweep.dir."
        )
    if is_finished(directory):
        return True
    directory.rename(free_name(directory))
    return False


def differing_keys(held: dict[Any, Any], wanted: dict[Any, Any]) -> list[str]:
    """Return the settings that differ, apart from those that change nothing but speed and output.

    >>> differing_keys({"seed": 1, "engine": {"workers": 1}}, {"seed": 2, "engine": {"workers": 4}})
    ['seed']
    """
    old, new = dict(flattened(held)), dict(flattened(wanted))
    return [key for key in sorted({*old, *new}) if key not in FREE and old.get(key) != new.get(key)]


def free_name(directory: Path) -> Path:
    """Return a name beside `directory` under which it can be set aside."""
    number = 1
    while (place := directory.with_name(f"{directory.name}.unfinished-{number}")).exists():
        number += 1
    return place
