"""Train a model with user-level differential privacy, all clients on this machine.

    python -m experiments.simulate [key=value ...]        e.g. compression.keep_probability=0.01 seed=3
    python -m experiments.simulate -m seed=1,2,3            a sweep

Shows progress on stderr and a table at the end (output=json: summary.json on stdout). The run directory holds
config.yaml, metrics.jsonl, privacy.json, summary.json, mechanism.json, model.npz, model_initial.npz and
report.html.
"""

import logging
import sys
from functools import partial
from pathlib import Path

from experiments.cli.command import end_with, guard, show_help
from experiments.cli.result import show
from experiments.run_files.reader import read_run
from experiments.session.simulation import simulate
from experiments.settings.jobs import run_jobs
from experiments.settings.schema import Settings


def job(settings: Settings, directory: Path) -> float | None:
    """Simulate into `directory`, print what the run did, unless it had finished before, and return what a sweep asks for."""
    if simulate(settings, directory):
        show(settings.output, read_run(directory))
    metric = settings.run.optimized_metric
    return None if metric is None else read_run(directory).score(metric)


def run() -> None:
    """Print the help, or run the jobs that the command line describes."""
    if not show_help("simulate", __doc__, sys.argv[1:]):
        run_jobs(job)


def main() -> None:
    """Compose the settings with Hydra and run.

    Exit codes: 0 done; 2 a user's mistake (which leaves no run directory); 1 stopped, can be resumed; 130
    interrupted by Ctrl-C or SIGTERM, can be resumed.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("flwr").setLevel(logging.WARNING)
    logging.getLogger("flwr").propagate = False  # it has a handler of its own
    end_with(partial(guard, run))


if __name__ == "__main__":
    main()
