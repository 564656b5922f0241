"""Compare factorizations of a workload: `python -m experiments.mechanisms rounds=1024`.

Prints, for every family, sensitivity, root loss, errors, memory and the CPU time of its design, beside the
lower bounds that no factorization of the workload can go below, with equal noise in every epoch. `workload=momentum momentum=0.9`
and `schedule=cooldown` choose another workload; its prefix-sum optimum with the momentum as
post-processing is then listed too. `epochs=8 workload=run` compares whole runs, in which the noise
restarts every epoch and the model does not: each epoch's mechanism is fitted to its own rounds and all that
follow, and the optimum of one epoch alone stands beside. With `workload=prefix_sum` or `workload=momentum` all
families are fitted to one epoch alone, and costed on the run. `families=[optimal,mine:FAMILY]` compares chosen
ones, a family of your own by its import path among them. `export=DIR` writes DIR/FAMILY.npz with the dense
encoder, decoder and what the stream itself emits, with a leading axis for several epochs; `plots=DIR` writes
plots.
"""

import logging
from pathlib import Path

from experiments.cli import command, output
from experiments.mechanisms import plots, rows
from experiments.mechanisms.designs import MechanismsSettings, build_workloads, designs, fitted_to
from experiments.mechanisms.export import check_exportable, export
from experiments.run_files.directory import refuse_unmakeable
from experiments.settings.factorization import say_long
from experiments.settings.output import Output

_log = logging.getLogger(__name__)


def mechanisms(settings: MechanismsSettings) -> None:
    """Print the comparison, and export and plot as asked."""
    workloads = build_workloads(settings)
    if settings.export is not None:
        check_exportable(settings.rounds, settings.epochs)
    for name in ("export", "plots"):
        if (folder := getattr(settings, name)) is not None:
            refuse_unmakeable(name, Path(folder))
    say_long(settings.rounds)
    runs = dict(designs(settings, workloads))
    lower = rows.lower_bounds(workloads)
    if settings.output is Output.json:
        output.print_json([rows.as_document(name, run, lower) for name, run in runs.items()])
    else:
        rows.print_table(runs, lower, rows.title(workloads, fitted_to(settings, workloads)))
    if settings.export is not None:
        for name, run in runs.items():
            file = Path(settings.export) / f"{name}.npz"
            export(run, file)
            _log.info("wrote %s", file)
    if settings.plots is not None:
        for file in plots.write(runs, lower.certified, Path(settings.plots)):
            _log.info("wrote %s", file)


if __name__ == "__main__":
    command.run(mechanisms, "mechanisms", MechanismsSettings, __doc__)
