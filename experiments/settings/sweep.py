"""What a sweep shows of itself: one bar for all jobs that run at once on a terminal, and the best trial at its end."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.settings.log import is_on, messages
from experiments.settings.values import text_of

COUNTED = "FEDMF_SWEEP"  # of the environment of jobs whose lines the process of the sweep reads
ENDED, LAST = "\x1e job ended", "\x1e sweep ended"  # lines that it does not show
shown = ExitStack()
"""Ends the bar of this process, however its sweep ends."""


class Sweep(Callback):
    """What Hydra calls when a sweep begins and ends and, in their own processes, when its jobs end."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Show one bar where jobs run at once, and remove a link in the place of multirun.yaml: Hydra would write through it."""
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
            values = {
                file.parent.name: json.loads(file.read_bytes()).get(metric)
                for file in folder.glob("*/summary.json")
            }
            jobs = ", ".join(sorted(job for job, value in values.items() if value == best.best_value))
            parameters = ", ".join(f"{key}={text_of(value)}" for key, value in best.best_params.items())
            messages.info(f"best: job {jobs}: {metric} {best.best_value:.4g} with {parameters}")


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
    """Show one bar for `jobs` on the terminal; what this process and those of its jobs print is shown line by line above it.

    They write into a pipe, in the place of the terminal.
    """
    reading, writing = os.pipe()
    descriptor, streams = os.dup(2), [stream for stream in (1, 2) if os.isatty(stream)]
    columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("jobs, time left"), TimeRemainingColumn())
    with (
        open(descriptor, "w") as terminal,
        Progress(
            *columns,
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
