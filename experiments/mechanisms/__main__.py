"""Compare factorizations of a workload: `python -m experiments.mechanisms rounds=1024`.

Prints sensitivity, root loss, errors, memory and the CPU time of the design of every family, and its loss over lower
bounds that hold for every factorization with equal noise in every epoch. `workload=momentum momentum=0.9` and
`schedule=cooldown` choose another workload; the optimum for prefix sums, with the momentum as post-processing, is then
listed too. `epochs=8 workload=run` compares whole runs, in which the noise restarts every epoch and the model continues:
each epoch's mechanism is fitted to its own rounds and all later ones, and the optimum of one epoch alone is listed too.
With `workload=prefix_sum` or `workload=momentum` all families are fitted to one epoch, and costed on the run.
`families=[optimal,mine:FAMILY]` compares chosen families, a custom one by its import path. `export=DIR` writes
DIR/FAMILY.npz with the dense encoder, decoder and the output of the stream itself, with a leading axis for several
epochs; `plots=DIR` writes plots.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cli import command, output
from experiments.run_files.directory import refuse_unmakeable
from experiments.settings.factorization import find_family, fit, run_workloads, say_long
from experiments.settings.mechanism import WorkloadName
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_below_one, check_choice
from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    RunFactorization,
    Workload,
    bounds,
    momentum,
    prefix_sum,
    run_lower_bound,
)
from fedmf.mechanisms.family import resolve
from fedmf.setting import setting

_log = logging.getLogger(__name__)

FOR_PREFIX_SUM, FOR_MOMENTUM = "optimal_for_prefix_sum", "optimal_for_momentum"
BOUNDS = {"lower_bound": "/ certified", "schatten_bound": "/ Schatten-1", "henzinger_bound": "/ Henzinger"}
MOST_EXPORTED = 4096  # rounds of an epoch; several epochs may have as many numbers together


@dataclass(frozen=True)
class MechanismsSettings:
    """Keys of the command; null families are all that suit the size, null buffers each family's choice.

    Raises `SettingError` for prefix sums with momentum or a schedule, for a schedule over several epochs with a design of
    one epoch, which does not know it, and for an export of too many numbers.
    """

    rounds: int = setting(1024, "T, rounds of an epoch")
    epochs: int = setting(1, "E, epochs of the run: the noise restarts in each of them, the model goes on")
    workload: WorkloadName = setting(
        WorkloadName.prefix_sum,
        "what families are fitted to, one epoch alone, or each epoch and all rounds behind it",
    )
    momentum: float = setting(0.0, "beta of the server's optimizer in [0, 1), with workload=momentum or run")
    schedule: str = setting(
        "constant", "learning rates over the whole run, not with workload=prefix_sum", SCHEDULES
    )
    families: tuple[str, ...] | None = setting(
        None, "what is compared, such as [optimal,blt,mine:FAMILY]; null: all that suit the size", FAMILIES
    )
    buffers: int | None = setting(
        None, "rows of state for the families that take a number; null: each family's own choice"
    )
    export: str | None = setting(
        None,
        "folder for FAMILY.npz with encoder, decoder and noise (rounds <= 4096; of several epochs, as "
        "many numbers together)",
    )
    plots: str | None = setting(None, "folder for plots; null: none")
    output: Output = setting(Output.text, PRINTED)

    def __post_init__(self) -> None:
        check_at_least("rounds", self.rounds, 1)
        check_at_least("epochs", self.epochs, 1)
        check_below_one("momentum", self.momentum)
        check_choice("schedule", self.schedule, SCHEDULES)
        is_constant = self.schedule == "constant"
        if self.workload is WorkloadName.prefix_sum and not (is_constant and self.momentum == 0):
            raise SettingError(
                f"momentum is {self.momentum} and schedule {self.schedule} with workload=prefix_sum; "
                "ask for workload=momentum, or for workload=run."
            )
        if self.workload is WorkloadName.momentum and self.epochs > 1 and not is_constant:
            raise SettingError(
                f"schedule is {self.schedule} with workload=momentum and {self.epochs} epochs; a schedule goes "
                "over the whole run, which a design of one epoch does not know: ask for workload=run, which lists that "
                f"design too, as {FOR_MOMENTUM}."
            )
        if self.export is not None and self.rounds > MOST_EXPORTED:
            raise SettingError(f"rounds is {self.rounds}; dense matrices are exported up to {MOST_EXPORTED}.")
        if self.export is not None and self.epochs * self.rounds**2 > MOST_EXPORTED**2:
            raise SettingError(
                f"epochs is {self.epochs} with {self.rounds} rounds each; dense matrices of at most "
                f"{MOST_EXPORTED**2 // self.rounds**2} epochs as long are exported."
            )


def mechanisms(settings: MechanismsSettings) -> None:
    """Print the comparison, and export and plot as asked."""
    workloads = run_workloads(
        settings.rounds, settings.epochs, beta=settings.momentum, schedule=settings.schedule
    )
    # The epoch alone that families are fitted to, None: the run. Nothing follows the last epoch, whose rates all have.
    alone = None if settings.workload is WorkloadName.run and settings.epochs > 1 else workloads[-1]
    for name in ("export", "plots"):
        if (folder := getattr(settings, name)) is not None:
            refuse_unmakeable(name, Path(folder))
    say_long(settings.rounds)
    runs = dict(designs(settings, workloads, alone))
    lower = lower_bounds(workloads)
    rows = [as_document(name, run, lower) for name, run in runs.items()]
    output.show(settings.output, rows, lambda: _print_table(rows, title(workloads, alone)))
    from experiments.mechanisms import files  # matplotlib takes a moment, which help does not

    if settings.export is not None:
        for name, run in runs.items():
            files.export(run, Path(settings.export) / f"{name}.npz")
    if settings.plots is not None:
        files.plot(runs, lower["lower_bound"], describe(workloads), Path(settings.plots))


def designs(
    settings: MechanismsSettings, workloads: Sequence[Workload], alone: Workload | None
) -> Iterator[tuple[str, RunFactorization]]:
    """Yield the families asked for, or all that suit the size, by name, all costed on the same `workloads`.

    `workload=run` fits each epoch's mechanism to its own rounds and all that follow. `workload=prefix_sum` and
    `workload=momentum` are the papers' designs: fitted to the epoch `alone`, the same in every epoch. With one epoch
    there is no difference; with more, only the noise restarts: model, momentum and schedule continue.

    With all families comes what the optimum of one epoch costs on this workload: that of prefix sums, and that of the
    momentum at a constant learning rate.
    """
    chosen, buffers = _chosen(settings.families, workloads[0]), settings.buffers
    without = [family.name for family in chosen if "buffers" not in family.settings]
    if buffers is not None and len(without) == len(chosen):
        raise SettingError(
            f"buffers is {buffers}, but {', '.join(without)} cannot be told how many; leave it out."
        )
    if buffers is not None and without:
        _log.info("buffers=%d says nothing to %s", buffers, ", ".join(without))
    for family in chosen:
        given = {} if buffers is None or family.name in without else {"buffers": buffers}
        yield family.name, fit(family, workloads, alone, **given)
    if settings.families is None:
        if (epoch := prefix_sum(settings.rounds)) != alone:
            yield FOR_PREFIX_SUM, fit(resolve("optimal"), workloads, epoch)
        if settings.momentum and (epoch := momentum(settings.rounds, settings.momentum)) != alone:
            yield FOR_MOMENTUM, fit(resolve("optimal"), workloads, epoch)


def _chosen(names: Sequence[str] | None, workload: Workload) -> list[Family]:
    """Return the families named, in order and once, or all that suit the size."""
    if names is None:
        suitable = [family for family in map(resolve, FAMILIES) if family.suits(workload)]
        left_out = [name for name in FAMILIES if name not in {family.name for family in suitable}]
        if left_out:
            _log.info("left out at %d rounds, as dense: %s", workload.rounds, ", ".join(left_out))
        return suitable
    if not names:
        raise SettingError("families is empty; name at least one, or leave it out for all.")
    families = [find_family(name, "families") for name in dict.fromkeys(names)]
    for name in (found := [family.name for family in families]):
        if found.count(name) > 1:  # they would share a row and a file
            raise SettingError(f"families holds two that are called {name!r}; give one another name.")
    return families


def lower_bounds(workloads: Sequence[Workload]) -> dict[str, Any]:
    """Return lower bounds on the root loss of the run: the best known, the nuclear norm's, Henzinger et al.'s.

    None where a bound is unknown: the nuclear norm of a large workload, and Henzinger et al.'s for any but the prefix sums of
    one epoch. Squares add up over epochs: no column of C reaches into another epoch.
    """
    # None for one epoch is None for all: the SVDs of the others would be for nothing.
    norms = list(takewhile(lambda bound: bound is not None, map(bounds.schatten, workloads)))
    is_prefix_sum = len(workloads) == 1 and workloads[0].is_prefix_sum
    return {
        "lower_bound": run_lower_bound(workloads),
        "schatten_bound": float(np.linalg.norm(norms)) if len(norms) == len(workloads) else None,  # type: ignore[arg-type]
        "henzinger_bound": bounds.henzinger_lower(workloads[0].rounds) if is_prefix_sum else None,
    }


def as_document(name: str, run: RunFactorization, lower: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the JSON list: the contract's keys, then memory and the other bounds."""
    buffers = max(epoch.stream.buffers for epoch in run.epochs)
    return {
        "family": name,
        "epochs": len(run.epochs),
        "sensitivity": run.sensitivity,
        "root_loss": run.root_loss,
        "rms_error": run.rms_error,
        "max_error": run.max_error,
        "lower_bound": lower["lower_bound"],
        "relative_gap": run.root_loss / lower["lower_bound"] - 1,
        "seconds": run.seconds,
        "buffers": buffers,
        "bytes_per_parameter": 4 * buffers,
        "schatten_bound": lower["schatten_bound"],
        "henzinger_bound": lower["henzinger_bound"],
    }


def _print_table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print one row a family, least loss first; the three bounds are compared with every loss as ratios."""
    cells = (
        (
            row["family"],
            f"{row['root_loss']:.4f}",
            *("-" if row[name] is None else f"{row['root_loss'] / row[name]:.5f}" for name in BOUNDS),
            *(f"{row[name]:.4f}" for name in ("rms_error", "max_error", "sensitivity")),
            f"{row['bytes_per_parameter']}",
            f"{row['seconds']:.2f}",
        )
        for row in sorted(rows, key=lambda row: row["root_loss"])
    )
    numbers = ("root loss", *BOUNDS.values(), "rms error", "max error", "sensitivity", "bytes per parameter", "design, CPU s")  # fmt: skip
    columns: dict[str, dict[str, Any]] = {
        "family": {"no_wrap": True},
        **dict.fromkeys(numbers, output.NUMBER),
    }
    output.print_table(title, columns, cells)


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


if __name__ == "__main__":
    command.run(mechanisms, "mechanisms", MechanismsSettings, __doc__)
