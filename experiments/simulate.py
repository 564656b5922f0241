"""Train a model with user-level differential privacy, with all clients on this machine.

    python -m experiments.simulate seed=3 compression.keep_probability=0.01
    python -m experiments.simulate -m seed=1,2,3       a sweep

`run.directory=DIR run.resume=true` resumes a run that was stopped, with its recorded settings; `run.directory=DIR run.extend=2`
adds two epochs to a finished run.

`--config FILE` reads settings from a YAML file, `as=DIR` from another run; settings on the command line override them.
`--config-dir FOLDER +experiment=NAME` reads FOLDER/experiment/NAME.yaml.

Progress is shown on stderr. At the end a table and the short form of the privacy statement are printed, in a sweep one line a job;
with output=json summary.json goes to stdout. The run directory contains config.yaml, metrics.jsonl, privacy.json, summary.json,
mechanism.json, model.npz, model_initial.npz and report.html.
"""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.cli.command import end_with, show_help
from experiments.settings.log import install, messages, stderr_handler

# What trains is imported where it is used: help has no need of it, nor have worker processes, which import this file.
if TYPE_CHECKING:
    from experiments.settings.schema import Settings


def job(settings: "Settings", directory: Path, name: str = "") -> float | None:
    """Simulate into `directory`, print what the run did (as text unless it had finished before), and return what a sweep asks for.

    Of a sweep's job, which has a `name`, one line tells how good its model is and whether it did not learn, whenever it finished.
    """
    from experiments.cli.result import show
    from experiments.pages.wording import text_of
    from experiments.run_files.reader import read_run
    from experiments.session.resume import how_to_continue
    from experiments.session.session import simulate

    try:
        is_new = simulate(settings, directory, name)
    except KeyboardInterrupt:
        messages.info(how_to_continue(settings, directory))
        raise
    run = read_run(directory)
    chosen = settings.run.optimized_metric
    if name and settings.output != "json":
        metric = chosen or run.headline
        mark = ", NOT learnt" if run.summary.get("learnt") is False else ""
        print(f"{name}: {metric} {text_of(metric, run.summary.get(metric))}{mark}", flush=True)
    elif is_new or settings.output == "json":
        show(settings.output, run)
    return None if chosen is None else run.score(chosen)


def run() -> None:
    """Print the help, or run the job or the sweep that the command line describes."""
    if not show_help("simulate", __doc__, sys.argv[1:]):
        from experiments.session.resume import run_settings, start_of
        from experiments.settings.jobs import run_jobs

        run_jobs(job, run_settings, start_of)


def main() -> None:
    """Compose the settings with Hydra and run.

    Exit codes: 0 done; 2 a user's mistake (which leaves no run directory); 1 stopped, can be resumed; 130
    interrupted by Ctrl-C, SIGTERM or SIGHUP, can be resumed.
    """
    logging.basicConfig(
        handlers=[stderr_handler("%(levelname)s %(name)s: %(message)s")], level=logging.WARNING
    )
    logging.getLogger("flwr").setLevel(logging.WARNING)
    if "run.log=json" in sys.argv:  # also for errors in the other settings
        install()
    end_with(run)


if __name__ == "__main__":
    main()
