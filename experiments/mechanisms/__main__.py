"""Compare factorizations of a workload: `python -m experiments.mechanisms rounds=1024`.

Prints, for every family, sensitivity, root loss, errors, memory and the CPU time of its design, beside the
lower bounds that no factorization of the workload can go below. `workload=momentum momentum=0.9` and
`schedule=cooldown` choose another workload; its prefix-sum optimum with the momentum as post-processing is
then listed too. `families=[optimal,mine:FAMILY]` compares chosen ones, a family of your own by its import path
among them. `export=DIR` writes DIR/FAMILY.npz with the dense encoder, decoder and what the stream itself
emits; `plots=DIR` writes plots.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from experiments.cli import command, output
from experiments.mechanisms import plots
from experiments.run_files.directory import refuse_unmakeable
from experiments.settings.family import find_family
from experiments.settings.mechanism import WorkloadName
from experiments.settings.output import Output
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Factorization,
    Family,
    Workload,
    bounds,
    design,
    lower_bound,
    momentum,
    prefix_sum,
    relative_gap,
)
from fedmf.mechanisms.family import settings_of, suits
from fedmf.mechanisms.post_processing import post_process
from fedmf.mechanisms.schedules import SCHEDULES, rates
from fedmf.mechanisms.streams.protocol import feed

_log = logging.getLogger(__name__)

MOST_EXPORTED = 4096
POST_PROCESSED = "optimal_for_prefix_sum"


@dataclass(frozen=True)
class MechanismsSettings:
    """Keys of the command; null families are all that suit the size, null buffers each family's choice."""

    rounds: int
    workload: WorkloadName
    momentum: float
    schedule: str
    families: tuple[str, ...] | None
    buffers: int | None
    export: str | None
    plots: str | None
    output: Output


def mechanisms(settings: MechanismsSettings) -> None:
    """Print the comparison, and export and plot as asked."""
    workload = build_workload(settings)
    if settings.export is not None and settings.rounds > MOST_EXPORTED:
        raise SettingError(f"rounds is {settings.rounds}; dense matrices are exported up to {MOST_EXPORTED}.")
    for name in ("export", "plots"):
        if (folder := getattr(settings, name)) is not None:
            refuse_unmakeable(name, Path(folder))
    designs = dict(_designs(settings, workload))
    if settings.output is Output.json:
        output.print_json([as_document(name, item) for name, item in designs.items()])
    else:
        _print_table(designs, workload)
    if settings.export is not None:
        for name, mechanism in designs.items():
            export(mechanism, Path(settings.export) / f"{name}.npz")
    if settings.plots is not None:
        for file in plots.write(designs, Path(settings.plots)):
            _log.info("wrote %s", file)


def build_workload(settings: MechanismsSettings) -> Workload:
    """Return the workload that `settings` names; prefix sums take neither momentum nor a schedule."""
    check_at_least("rounds", settings.rounds, 1)
    check_choice("schedule", settings.schedule, SCHEDULES)
    if settings.workload is WorkloadName.momentum:
        learning_rates = rates(settings.schedule, settings.rounds)
        is_constant = settings.schedule == "constant"
        return momentum(settings.rounds, settings.momentum, None if is_constant else learning_rates)
    if settings.momentum != 0 or settings.schedule != "constant":
        raise SettingError(
            f"momentum is {settings.momentum} and schedule {settings.schedule} with workload=prefix_sum; "
            "ask for workload=momentum."
        )
    return prefix_sum(settings.rounds)


def as_document(name: str, mechanism: Factorization) -> dict[str, Any]:
    """Return one row of the JSON list: the contract's keys, then memory and the other bounds."""
    return {
        "family": name,
        "sensitivity": mechanism.sensitivity,
        "root_loss": mechanism.root_loss,
        "rms_error": mechanism.rms_error,
        "max_error": mechanism.max_error,
        "lower_bound": lower_bound(mechanism.workload),
        "relative_gap": relative_gap(mechanism),
        "seconds": mechanism.seconds,
        "buffers": mechanism.stream.buffers,
        "bytes_per_parameter": 4 * mechanism.stream.buffers,
        "schatten_bound": bounds.schatten(mechanism.workload),
        "henzinger_bound": _henzinger(mechanism.workload),
    }


def export(mechanism: Factorization, file: Path) -> None:
    """Write dense encoder C and decoder B, float64, and the stream's own noise on the identity, as `file`."""
    decoder, encoder = mechanism.materialize()
    noise = feed(mechanism.stream, np.eye(mechanism.stream.fresh_rows, dtype=np.float32))
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, encoder=encoder, decoder=decoder, noise=noise)
    _log.info("wrote %s", file)


def _designs(settings: MechanismsSettings, workload: Workload) -> Iterator[tuple[str, Factorization]]:
    """Yield the families asked for, or all that suit the size, by name."""
    chosen = _chosen(settings.families, workload)
    if settings.buffers is not None:
        _check_buffers_apply(chosen, settings.buffers)
    for family in chosen:
        takes_buffers = settings.buffers is not None and "buffers" in settings_of(family)
        yield (
            _name(family),
            design(family, workload, **({"buffers": settings.buffers} if takes_buffers else {})),
        )
    if settings.families is None and not workload.is_prefix_sum:
        yield POST_PROCESSED, post_process(design("optimal", prefix_sum(workload.rounds)), workload)


def _chosen(families: Sequence[str] | None, workload: Workload) -> Sequence[str | Family]:
    """Return the families named, in order and once, or all that suit the size."""
    if families is not None:
        if not families:
            raise SettingError("families is empty; name at least one, or leave it out for all.")
        for name in families:
            if ":" not in name:
                check_choice("families", name, FAMILIES)
        chosen = [find_family(name, "families") for name in dict.fromkeys(families)]
        _check_names_differ([_name(family) for family in chosen])
        return chosen
    left_out = [family for family in FAMILIES if not suits(family, workload)]
    if left_out:
        _log.info("left out at %d rounds, as dense: %s", workload.rounds, ", ".join(left_out))
    return [family for family in FAMILIES if family not in left_out]


def _name(family: str | Family) -> str:
    return family.name if isinstance(family, Family) else family


def _check_names_differ(names: Sequence[str]) -> None:
    """Raise `SettingError` where two families of the list would share a row and a file."""
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"families holds two that are called {name!r}; give one another name.")


def _check_buffers_apply(chosen: Sequence[str | Family], buffers: int) -> None:
    """Say which families have no such setting; raise `SettingError` if none has it."""
    without = [_name(family) for family in chosen if "buffers" not in settings_of(family)]
    if len(without) == len(chosen):
        raise SettingError(
            f"buffers is {buffers}, but {', '.join(without)} cannot be told how many; leave it out."
        )
    if without:
        _log.info("buffers=%d says nothing to %s", buffers, ", ".join(without))


def _henzinger(workload: Workload) -> float | None:
    """Return Henzinger et al.'s lower bound, which is for prefix sums only."""
    return bounds.henzinger_lower(workload.rounds) if workload.is_prefix_sum else None


def _print_table(designs: dict[str, Factorization], workload: Workload) -> None:
    """Print one row a family, least loss first; the three bounds stand beside every loss as ratios."""
    table = Table(title=f"{workload.rounds} rounds, {_describe(workload)}")
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
    for name, item in sorted(designs.items(), key=lambda pair: pair[1].root_loss):
        row = as_document(name, item)
        table.add_row(
            name,
            f"{item.root_loss:.4f}",
            *(
                _ratio(item.root_loss, row[key])
                for key in ("lower_bound", "schatten_bound", "henzinger_bound")
            ),
            f"{item.rms_error:.4f}",
            f"{item.max_error:.4f}",
            f"{item.sensitivity:.4f}",
            f"{row['bytes_per_parameter']}",
            f"{item.seconds:.2f}",
        )
    output.console().print(table)


def _ratio(loss: float, bound: float | None) -> str:
    return "-" if bound is None else f"{loss / bound:.5f}"


def _describe(workload: Workload) -> str:
    if workload.is_prefix_sum:
        return "prefix sums"
    rates = "constant" if workload.is_toeplitz else "falling"
    return f"momentum {workload.momentum}, {rates} learning rate"


if __name__ == "__main__":
    command.run(mechanisms, "mechanisms", MechanismsSettings, __doc__)
