"""Sweeps that were cut short: `python -m experiments.simulate -m sweep.resume=true hydra.sweep.dir=DIR ...`.

Every job then resumes in its own directory, as with run.resume: a finished one is skipped, a cut one goes on
after its last released round, the others start. A job whose directory holds a run of other settings is
refused, finished or not, because the sweep is then not the one that was cut short.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.pages.wording import flattened
from experiments.run_files.directory import CONFIG
from experiments.run_files.reader import read_config
from fedmf.errors import RunDirectoryError

# What may differ between the first call and the one that resumes: speed and output, not the run.
FREE = ("sweep.resume", "engine.name", "engine.workers", "output", "logger", "run.directory", "run.resume")


def refuse_other_settings(directory: Path, config: DictConfig) -> None:
    """Raise `RunDirectoryError` when `directory` holds a run of other settings than `config`."""
    if not (directory / CONFIG).is_file():
        return
    wanted: Any = OmegaConf.to_container(config, resolve=True, enum_to_str=True)
    different = differing_keys(read_config(directory), wanted)
    if different:
        raise RunDirectoryError(
            f"{directory} holds a run with another {', '.join(different)}; "
            "resume it with the settings of the first call, or choose another directory."
        )


def differing_keys(held: dict[Any, Any], wanted: dict[Any, Any]) -> list[str]:
    """Return the settings that differ, apart from those that change nothing but speed and output.

    >>> differing_keys({"seed": 1, "engine": {"workers": 1}}, {"seed": 2, "engine": {"workers": 4}})
    ['seed']
    """
    old, new = dict(flattened(held)), dict(flattened(wanted))
    return [key for key in sorted({*old, *new}) if key not in FREE and old.get(key) != new.get(key)]
