"""Train a model with user-level differential privacy, all clients on this machine.

    python -m experiments.simulate seed=3 compression.keep_probability=0.01
    python -m experiments.simulate -m seed=1,2,3       a sweep

`run.directory=DIR run.resume=true` goes on after a crash, as the run was begun; `run.directory=DIR run.extend=2` adds two
epochs to a finished run.

Shows progress on stderr and at the end a table and the privacy statement in short; of a sweep one line a job and the
command that compares (output=json: summary.json on stdout). The run directory holds
config.yaml, metrics.jsonl, privacy.json, summary.json, mechanism.json, model.npz, model_initial.npz and
report.html.
"""

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command import end_with, guard, show_help
from experiments.settings import log as json_log
from experiments.settings.log import stderr_handler
from experiments.settings.output import Output

# What trains is imported where it is used: help has no need of it, nor have worker processes, which import this file.
if TYPE_CHECKING:
    from experiments.cli.sweep import Tally
    from experiments.settings.schema import Settings
    from experiments.settings.sweep import SweepJob


def job(
    settings: "Settings",
    directory: Path,
    in_sweep: "SweepJob | None" = None,
    tally: "Tally | None" = None,
) -> float | None:
    """Simulate into `directory`, print what the run did, unless it had finished before, and return what a sweep asks for.

    A job of a sweep says in one line how good its model is, whenever it finished.
    """
    from experiments.cli.result import show
    from experiments.run_files.reader import read_run
    from experiments.session.session import simulate
    from experiments.settings.output import LogForm

    if settings.run.log is LogForm.json:
        json_log.install()  # to the end of the process, which may say in one line more what stopped the run
    json_log.name_run(directory.name)
    metric = settings.run.optimized_metric
    is_new = simulate(settings, directory, "" if in_sweep is None else in_sweep.label)
    if is_new and (in_sweep is None or settings.output is Output.json):
        show(settings.output, read_run(directory))
    if in_sweep is not None and tally is not None:
        tally.finished(in_sweep, settings.output, read_run(directory), metric or "accuracy")
    return None if metric is None else read_run(directory).score(metric)


def run() -> None:
    """Print the help, or run the job or the sweep that the command line describes."""
    if show_help("simulate", __doc__, sys.argv[1:]):
        return
    from experiments.cli.sweep import tally
    from experiments.session.resume import run_settings
    from experiments.settings.jobs import run_jobs

    with tally() as counted:
        run_jobs(partial(job, tally=counted), run_settings, counted.failed)


def main() -> None:
    """Compose the settings with Hydra and run.

    Exit codes: 0 done; 2 a user's mistake (which leaves no run directory); 1 stopped, can be resumed; 130
    interrupted by Ctrl-C, SIGTERM or SIGHUP, can be resumed.
    """
    handler = stderr_handler("%(levelname)s %(name)s: %(message)s")
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if "run.log=json" in sys.argv:  # also what is wrong with the settings beside it
        json_log.install()
    end_with(partial(guard, run))


if __name__ == "__main__":
    main()
