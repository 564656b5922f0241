"""A run, or the jobs of a sweep under Hydra's command line: `python -m experiments.simulate [-m] [overrides]`."""

import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from client.metrics import BETTER_IF_LARGER
from experiments.settings.compose import (
    SEARCHPATH,
    as_plain,
    as_setting_errors,
    check_keys,
    check_no_flags,
    given_values,
    sentence,
    store_settings,
    without_choices,
)
from experiments.settings.log import is_on, messages
from experiments.settings.reference import CONF, called
from experiments.settings.schema import Settings
from experiments.settings.values import at_home, make, text_of
from fedmf.accounting.caveats import CHOOSING
from fedmf.errors import SettingError

# Runs one job into a directory and returns the value that a sweeper chooses by; the text is the name of a sweep's job.
Job = Callable[[Settings, Path, str], float | None]

# Hydra's options; see `--hydra-help`.
_OPTIONS = (
    *("-m", "--multirun", "-c", "--cfg", "-r", "--resolve", "-p", "--package", "-i", "--info"),
    *("-sc", "--shell-completion", "-cp", "--config-path", "-cn", "--config-name"),
    *("--experimental-rerun", "--hydra-help", "--version"),
)
_FILES = ("--config", "-cd", "--config-dir")
_SAMPLED = re.compile(r"-?\d+\.\d{7,}(e-?\d+)?")  # more digits than are needed to distinguish values


def run_jobs(
    job: Job,
    settings_of: Callable[[Sequence[str]], Settings],
    start_of: Callable[[Sequence[str]], tuple[list[str], dict[str, Any] | None]],
) -> None:
    """Call `job` once with the settings that the command line describes, or for each job of -m.

    `settings_of` composes those of a single run; Hydra composes those of a sweep, on the values that `start_of` reads for
    as=PATH, and answers its own options. The directory is run.directory, else a new one. Raises a `FedmfError` for a mistake
    of a single run; a sweep continues with its other jobs and fails at its end, or when its sweeper ends it.
    """
    arguments = without_files(at_home(sys.argv[1:]))
    check_no_flags(arguments, _OPTIONS)
    overrides = [text for text in arguments if "=" in text and not text.startswith("-")]
    if overrides == arguments and not any(
        text.lstrip("+~").startswith(("hydra.", "hydra/")) and not text.startswith(SEARCHPATH)
        for text in overrides
    ):
        settings = settings_of(overrides)
        job(settings, Path(default_directory(settings.run.directory)).resolve(), "")
        return
    overrides, start = start_of(overrides)
    check_keys("config", given_values(overrides), ["hydra"])
    overrides = without_choices(overrides, Settings, start or {})
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach the caller instead of Hydra's exit code 1
    store_settings("config", Settings, start)
    OmegaConf.register_new_resolver("default_directory", default_directory, use_cache=True, replace=True)
    # hydra.main reads them itself.
    sys.argv[1:] = [*(text for text in arguments if "=" not in text or text.startswith("-")), *overrides]
    composed = hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
    with as_setting_errors(), shown:
        composed(partial(_call, job))()


def without_files(arguments: Sequence[str]) -> list[str]:
    """Return arguments with --config FILE as the override as=FILE, and --config-dir FOLDER as Hydra's search path.

    Raises `SettingError` for a path that does not exist.
    """
    found, left = [], iter(arguments)
    for text in left:
        option, equals, path = text.partition("=")
        if option in _FILES:
            path = path if equals else next(left, "")
            if not os.path.exists(path):
                raise SettingError(f"{option} is {path!r}, which does not exist; give it as {option} PATH.")
            folder = text_of([f"file://{Path(path).resolve()}"])
            text = f"as={text_of(path)}" if option == "--config" else f"{SEARCHPATH}={folder}"
        found.append(text)
    return found


def default_directory(directory: object) -> str:
    """Return the output directory of a single run: `directory`, or runs/DATE_TIME."""
    unnamed = directory in (None, "")
    return datetime.now().strftime("runs/%Y-%m-%d_%H-%M-%S-%f") if unnamed else str(directory)


def mistake_of(sweeper: Any, metric: str | None) -> str:
    """Return the error of a sweeper that would choose by no value, or choose the worst; "" of any other."""
    if str(sweeper.get("_target_")).endswith(".BasicSweeper"):
        return ""
    if metric is None:
        return "run.optimized_metric is null, but the sweeper chooses by a value of every run; set it to one of metrics."
    wanted = {True: "maximize", False: "minimize"}.get(BETTER_IF_LARGER.get(metric))  # type: ignore[arg-type]
    chosen = getattr(sweeper.get("direction"), "name", wanted)
    return (
        f"hydra.sweeper.direction is {chosen}; it must be {wanted} for {metric}."
        if wanted not in (None, chosen)
        else ""
    )


def _call(job: Job, config: DictConfig) -> float | None:
    """Run a job that Hydra composed and return its result; print the overrides of a sweep's job, and its error."""
    hydra_config = HydraConfig.get()
    output, given = Path(hydra_config.runtime.output_dir), hydra_config.overrides.task
    directory = Path(str(config.run.directory or output)).resolve()
    name = f"job {hydra_config.job.num}" if hydra_config.mode == RunMode.MULTIRUN else ""
    try:
        settings = make(Settings, as_plain(config))
        if name == "job 0":
            _logged.clear()
            messages.info(
                f"a sweep; `{called('compare')} directory={hydra_config.sweep.dir}` compares its runs\n"
                "Each epsilon is that of its run alone: runs on the same clients compose."
            )
            if (chosen := settings.run.optimized_metric) is not None:
                messages.info(CHOOSING.format(metric=chosen))
        if name:
            messages.addFilter(is_new)  # of each process that has jobs; nothing the second time
            shown.callback(messages.removeFilter, is_new)
            messages.info(f"{name}: {' '.join(map(in_short, given))}")
        value = job(settings, directory, name)
        if name and value is not None and math.isnan(value):
            raise SettingError(
                f"run.optimized_metric is {settings.run.optimized_metric}, which the run in {directory} recorded as null."
            )
        return value
    except BaseException as error:
        if name and isinstance(error, Exception):
            messages.info(f"{name}: failed: {sentence(error)}")
        with suppress(OSError):  # the directory that Hydra made for a run that never began
            output.rmdir()
        raise


def in_short(override: str) -> str:
    """Return an override with six digits of a sampled value, as it is shown; the run uses all digits.

    >>> in_short("optimizer.learning_rate=0.37454011884736254"), in_short("seed=3")
    ('optimizer.learning_rate=0.37454', 'seed=3')
    """
    key, equals, value = override.partition("=")
    return f"{key}{equals}{float(value):.6g}" if _SAMPLED.fullmatch(value) else override


_logged: set[str] = set()  # messages that the jobs of this sweep have logged in this process


def is_new(record: logging.LogRecord) -> bool:
    """Return whether no job of the sweep in this process has logged the same message: a filter. In JSON each line belongs to one run."""
    text, before = record.getMessage(), len(_logged)
    _logged.add(text)
    return is_on() or len(_logged) > before


COUNTED = "FEDMF_SWEEP"  # of the environment of jobs whose lines the process of the sweep reads
ENDED, LAST = "\x1e job ended", "\x1e sweep ended"  # lines that it does not show
# Ends the bar of this process, however its sweep ends.
shown = ExitStack()


class Sweep(Callback):
    """Hydra's callbacks for the begin and end of a sweep and, in their processes, for the end of its jobs."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Show one bar where jobs run at once, and remove a link in the place of multirun.yaml: Hydra would write through it.

        Exits with code 2 for a sweeper that cannot choose: of an `Exception` here Hydra would make a warning.
        """
        if mistake := mistake_of(config.hydra.sweeper, config.run.optimized_metric):
            messages.error(mistake)
            sys.exit(2)
        if (file := Path(config.hydra.sweep.dir) / "multirun.yaml").is_symlink():
            file.unlink()
        if config.hydra.launcher.get("n_jobs", 1) != 1 and sys.stderr.isatty() and not is_on():
            shown.enter_context(one_bar(number_of_jobs(config)))

    def on_job_end(self, *_: Any, **__: Any) -> None:
        """Let the process of the sweep count a job, whether or not it failed."""
        if COUNTED in os.environ:
            os.write(2, f"{ENDED}\n".encode())

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Name the best trial of Optuna: its job (all that are as good), its value and its parameters."""
        if "optuna" in str(config.hydra.sweeper.get("_target_")):
            metric, folder = config.run.optimized_metric, Path(config.hydra.sweep.dir)
            best = OmegaConf.load(folder / "optimization_results.yaml")
            jobs = sorted(
                file.parent.name
                for file in folder.glob("*/summary.json")
                if json.loads(file.read_bytes()).get(metric) == best.best_value
            )
            chosen = (in_short(f"{key}={text_of(value)}") for key, value in best.best_params.items())
            messages.info(
                f"best: job {', '.join(jobs)}: {metric} {best.best_value:.4g} with {', '.join(chosen)}"
            )


def number_of_jobs(config: DictConfig) -> int | None:
    """Return how many jobs a sweep has, None where that is not known before: values that are a pattern of files."""
    if "n_trials" in config.hydra.sweeper:
        return int(config.hydra.sweeper.n_trials)
    with suppress(HydraException):
        parsed = OverridesParser.create().parse_overrides(config.hydra.overrides.task)
        return math.prod(len(list(one.sweep_iterator())) for one in parsed if one.is_sweep_override())
    return None


@contextmanager
def one_bar(jobs: int | None) -> Iterator[None]:
    """Show a bar for `jobs` on the terminal; the output of this process and of its jobs appears line by line above it.

    They write into a pipe, in the place of the terminal.
    """
    reading, writing = os.pipe()
    descriptor, streams = os.dup(2), [stream for stream in (1, 2) if os.isatty(stream)]
    with (
        open(descriptor, "w") as terminal,
        Progress(
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("jobs, time left"),
            TimeRemainingColumn(),
            console=Console(file=terminal),
            transient=True,
            speed_estimate_period=math.inf,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as bar,
    ):
        bar.advance(bar.add_task("", total=jobs), 0)
        reader = Thread(target=_show, args=(reading, bar))
        reader.start()
        os.environ[COUNTED] = "1"
        for stream in streams:
            os.dup2(writing, stream)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.write(writing, f"{LAST}\n".encode())
            reader.join()
            del os.environ[COUNTED]
            for stream in streams:
                os.dup2(descriptor, stream)


def _show(reading: int, bar: Progress) -> None:
    """Print the lines of a pipe above the bar up to the last one, and count the jobs that end."""
    with open(reading, errors="replace") as lines:
        for line in map(str.rstrip, lines):
            if line == LAST:
                break
            if line == ENDED:
                bar.advance(bar.task_ids[0])
            else:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
