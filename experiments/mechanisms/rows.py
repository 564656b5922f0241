"""What the command prints: one row a family, beside the lower bounds that hold for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from experiments.cli import output
from fedmf.mechanisms import RunFactorization, Workload, bounds, run_lower_bound


@dataclass(frozen=True)
class LowerBounds:
    """Lower bounds on the root loss of the run: the best known, the nuclear norm's, Henzinger et al.'s.

    None where a bound is unknown: the nuclear norm of a large workload, and Henzinger et al.'s for any but the
    prefix sums of one epoch.
    """

    certified: float
    schatten: float | None
    henzinger: float | None


def lower_bounds(workloads: Sequence[Workload]) -> LowerBounds:
    """Return the bounds of a run. Squares add up over epochs: no column of C reaches into another epoch."""
    # None for one epoch is None for all: the SVDs of the others would be for nothing.
    schatten: list[float] = []
    for workload in workloads:
        bound = bounds.schatten(workload)
        if bound is None:
            break
        schatten.append(bound)
    alone = len(workloads) == 1 and workloads[0].is_prefix_sum
    return LowerBounds(
        run_lower_bound(workloads),
        float(np.linalg.norm(schatten)) if len(schatten) == len(workloads) else None,
        bounds.henzinger_lower(workloads[0].rounds) if alone else None,
    )


def as_document(name: str, run: RunFactorization, lower: LowerBounds) -> dict[str, Any]:
    """Return one row of the JSON list: the contract's keys, then memory and the other bounds."""
    buffers = max(epoch.stream.buffers for epoch in run.epochs)
    return {
        "family": name,
        "epochs": len(run.epochs),
        "sensitivity": run.sensitivity,
        "root_loss": run.root_loss,
        "rms_error": run.rms_error,
        "max_error": run.max_error,
        "lower_bound": lower.certified,
        "relative_gap": run.root_loss / lower.certified - 1,
        "seconds": run.seconds,
        "buffers": buffers,
        "bytes_per_parameter": 4 * buffers,
        "schatten_bound": lower.schatten,
        "henzinger_bound": lower.henzinger,
    }


def print_table(designs: Mapping[str, RunFactorization], lower: LowerBounds, title: str) -> None:
    """Print one row a family, least loss first; the three bounds stand beside every loss as ratios."""
    table = Table(title=title)
    table.add_column("family", no_wrap=True)
    for heading in (
        "root loss",
        "/ certified",
        "/ Schatten-1",
        "/ Henzinger",
        "rms error",
        "max error",
        "sensitivity",
        "bytes per parameter",
        "design, CPU s",
    ):
        table.add_column(heading, justify="right")
    for name, run in sorted(designs.items(), key=lambda pair: pair[1].root_loss):
        row = as_document(name, run, lower)
        table.add_row(
            name,
            f"{run.root_loss:.4f}",
            *(_ratio(run.root_loss, bound) for bound in (lower.certified, lower.schatten, lower.henzinger)),
            f"{run.rms_error:.4f}",
            f"{run.max_error:.4f}",
            f"{run.sensitivity:.4f}",
            f"{row['bytes_per_parameter']}",
            f"{run.seconds:.2f}",
        )
    output.console().print(table)


def _ratio(loss: float, bound: float | None) -> str:
    return "-" if bound is None else f"{loss / bound:.5f}"


def title(workloads: Sequence[Workload], alone: Workload | None) -> str:
    """Return what is compared in one line; `alone` is the epoch that the families were fitted to, None: the run.

    >>> from fedmf.mechanisms import of_run
    >>> title(of_run(8, 1), of_run(8, 1)[0])
    '8 rounds, prefix sums'
    >>> title(of_run(8, 3), None)
    'the whole run: 3 epochs of 8 rounds, prefix sums, fitted to the run'
    """
    epochs, rounds = len(workloads), workloads[0].rounds
    if epochs == 1:
        return f"{rounds} rounds, {describe(workloads)}"
    fitted = "the run" if alone is None else "one epoch alone"
    return f"the whole run: {epochs} epochs of {rounds} rounds, {describe(workloads)}, fitted to {fitted}"


def describe(workloads: Sequence[Workload]) -> str:
    """Return the workload of a run in words: prefix sums, or momentum and learning rate."""
    first = workloads[0]
    # A schedule that has not begun to fall in the first epoch falls later: all rates of the run count.
    learning_rates = {rate for workload in workloads for rate in workload.learning_rates or (1.0,)}
    if first.momentum == 0 and learning_rates == {1.0}:
        return "prefix sums"
    falls = "constant" if len(learning_rates) == 1 else "falling"
    return f"momentum {first.momentum}, {falls} learning rate"
