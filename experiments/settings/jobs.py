"""The jobs of a sweep under Hydra's own command line: `python -m experiments.simulate [-m] [overrides]`."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments.settings.compose import as_plain, given_values, is_true, store_settings
from experiments.settings.log import messages
from experiments.settings.mistakes import as_setting_errors, check_no_flags
from experiments.settings.overrides import at_home
from experiments.settings.recorded import named_code
from experiments.settings.reference import CONF
from experiments.settings.schema import Settings
from experiments.settings.sweep import SweepJob, check_sweeper, check_value, overrides_among, sweep_job
from experiments.settings.values import make, plain
from fedmf.errors import SettingError

Job = Callable[[Settings, Path, SweepJob | None], float | None]
"""Runs one job, which may be one of a sweep, and returns the value that a sweeper chooses by: nan where there is none, None where nobody asks."""


# Told of each job of a sweep that failed, in the process in which it ran.
OnJobFailure = Callable[[SweepJob, BaseException], None]


def ignore_failure(job: SweepJob, error: BaseException) -> None:
    """Leave it to the sweeper."""


def run_jobs(
    job: Job, settings_of: Callable[[Sequence[str]], Settings], on_failure: OnJobFailure = ignore_failure
) -> None:
    """Call `job` once with the settings that the command line describes, or for each job of -m.

    `settings_of` composes those of a single run; Hydra composes those of a sweep, and answers its own options.

    `directory` is run.directory, else a new one. Raises a `FedmfError` for a mistake of a single run;
    a sweep goes on with its other jobs and fails at its end. A sweeper that learns from its jobs is given what they return;
    how many of them may fail is its own setting. `on_failure` is told of each job of a sweep that fails.
    """
    arguments = at_home(sys.argv[1:])
    check_no_flags(arguments, _OPTIONS)
    overrides = overrides_among(arguments)
    if overrides == arguments and not any(_OF_HYDRA.match(text) for text in overrides):
        settings = settings_of(overrides)
        directory = Path(default_directory(settings.run.directory)).resolve()
        with saying_how_to_resume(settings, directory):
            job(settings, directory, None)
        return
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach the caller instead of Hydra's own exit code 1
    store_settings("config", Settings)
    OmegaConf.register_new_resolver("default_directory", default_directory, use_cache=True, replace=True)
    if {"-m", "--multirun"} & set(arguments):
        _refuse_one_directory(overrides)
    sys.argv[1:] = arguments  # hydra.main reads them itself
    composed = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    with as_setting_errors("config", overrides):
        composed(partial(_call, job, on_failure, tuple(sys.argv[1:])))()


@contextlib.contextmanager
def saying_how_to_resume(settings: Settings, directory: Path) -> Iterator[None]:
    """Say how a run that is interrupted inside can be resumed."""
    try:
        yield
    except KeyboardInterrupt:
        if (directory / "config.yaml").exists():  # the first file of a run
            trust = " run.trust_code=true" if named_code(plain(settings)) else ""
            messages.info(f"interrupted: go on with run.directory={directory} run.resume=true{trust}")
        else:
            messages.info("interrupted before the run began")
        raise


class NoLink(Callback):
    """Removes a link in the place of multirun.yaml, which Hydra would write through; see `hydra.callbacks` in conf/config.yaml."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Look before a sweep begins."""
        if (file := Path(config.hydra.sweep.dir) / "multirun.yaml").is_symlink():
            file.unlink()


def _refuse_one_directory(overrides: Sequence[str]) -> None:
    """Raise `SettingError` for a sweep that would go on with one run: it goes on with each job's own."""
    given = given_values(overrides)
    directory = given.get("run.directory")
    goes_on = is_true(given.get("run.resume")) or given.get("run.extend") is not None
    if goes_on and isinstance(directory, str) and "${" not in directory:
        raise SettingError(
            f"run.directory is {directory}, one run to go on with, but -m begins a sweep; leave out -m, or go on with a "
            "sweep by sweep.resume=true."
        )


_OF_HYDRA = re.compile(r"[+~]*hydra[./]")
# Hydra's options; see `--hydra-help`.
_OPTIONS = frozenset(
    [
        "-m",
        "--multirun",
        "-c",
        "--cfg",
        "-r",
        "--resolve",
        "-p",
        "--package",
        "-i",
        "--info",
        "-sc",
        "--shell-completion",
        "-cp",
        "--config-path",
        "-cn",
        "--config-name",
        "-cd",
        "--config-dir",
        "--experimental-rerun",
        "--hydra-help",
        "--version",
    ]
)


def default_directory(directory: object) -> str:
    """Return the output directory of a single run: `directory`, or runs/DATE_TIME."""
    given = "" if directory is None else str(directory)  # a number may name a folder
    return given or datetime.now().strftime("runs/%Y-%m-%d_%H-%M-%S-%f")


def _call(job: Job, on_failure: OnJobFailure, arguments: tuple[str, ...], config: DictConfig) -> float | None:
    """Return what a job that Hydra composed returns."""
    hydra_config = HydraConfig.get()
    output = Path(hydra_config.runtime.output_dir)
    directory = Path(str(config.run.directory or output)).resolve()
    in_sweep = hydra_config.mode == RunMode.MULTIRUN
    in_turn = sweep_job(hydra_config, arguments) if in_sweep else None
    try:
        with as_setting_errors("config", hydra_config.overrides.task):
            settings = make(Settings, as_plain(config))
        metric = settings.run.optimized_metric
        if in_sweep:
            check_sweeper(hydra_config.sweeper, metric)
        with saying_how_to_resume(settings, directory):
            value = job(settings, directory, in_turn)
        if in_sweep:
            check_value(value, metric, directory)
        return value
    except BaseException as error:
        if in_turn is not None and isinstance(error, Exception):
            on_failure(in_turn, error)
        with contextlib.suppress(OSError):  # the directory that Hydra made for a run that never began
            output.rmdir()
        raise
