"""Compare factorizations of a workload: `python -m experiments.mechanisms rounds=1024`.

Prints for every family its sensitivity, root loss, errors, memory, the CPU time of its design, and its loss relative to a lower bound
for all factorizations with equal noise in every epoch. All are evaluated on the run that `epochs`, `momentum` and `schedule`
describe, in which the noise restarts every epoch and the model continues. `workload` is what they are fitted to, as in simulate:
`run` fits each epoch to its own rounds and all later ones, `prefix_sum` and `momentum` fit one epoch alone at a constant learning
rate. If all families are compared, the optima of one epoch alone are listed too.

`families=[optimal,mine:FAMILY]` compares the named families; a custom one is named by its import path. `export=DIR` writes
DIR/FAMILY.npz with the dense encoder, the decoder and the output of the stream, with a leading axis for several epochs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cli import command, output
from experiments.pages.wording import number
from experiments.run_files.directory import check_can_be_made
from experiments.settings.groups import WorkloadName, find_family, fit, run_workloads
from experiments.settings.log import messages
from experiments.settings.values import PRINTED, Output
from fedmf.checks import counted
from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    RunFactorization,
    Workload,
    momentum,
    run_lower_bound,
)
from fedmf.mechanisms.family import resolve
from fedmf.mechanisms.streams.protocol import feed
from fedmf.setting import SCHEDULES, setting
from server.files import packed, write_output

MOST_EXPORTED = 4096  # rounds of an epoch; several epochs may have as many numbers together


@dataclass(frozen=True)
class MechanismsSettings:
    """Keys of the command; null families are all that suit the size, null buffers each family's choice."""

    rounds: int = setting(1024, "rounds in an epoch (T)")
    epochs: int = setting(
        1, "epochs of the run (E); the noise restarts in each, the model continues", at_least=1
    )
    workload: WorkloadName = setting(
        "prefix_sum",
        "workload that the families are fitted to: one epoch alone, or each epoch and all later rounds",
    )
    momentum: float = setting(0.0, "momentum of the server's optimizer (beta), in [0, 1)")
    schedule: str = setting("constant", "schedule of the learning rate over the whole run", SCHEDULES)
    families: tuple[str, ...] | None = setting(
        None, "families to compare, such as [optimal,blt,mine:FAMILY]; null: all that suit the size", FAMILIES
    )
    buffers: int | None = setting(
        None, "number of buffers, for the families that take one; null: each family's default"
    )
    export: str | None = setting(
        None,
        "folder for FAMILY.npz with encoder, decoder and noise; epochs * rounds^2 must be at most 4096^2",
    )
    output: Output = setting("text", PRINTED)

    def __post_init__(self) -> None:
        if self.export is not None and self.epochs * self.rounds**2 > MOST_EXPORTED**2:
            raise SettingError(
                f"rounds is {self.rounds} and epochs {self.epochs}; dense matrices of at most {MOST_EXPORTED} rounds are "
                "exported, or of as many numbers."
            )


def mechanisms(settings: MechanismsSettings) -> None:
    workloads = run_workloads(
        settings.rounds, settings.epochs, beta=settings.momentum, schedule=settings.schedule
    )
    if settings.export is not None:
        check_can_be_made("export", Path(settings.export))
    runs = dict(designs(settings, workloads))
    lower = run_lower_bound(workloads)
    rows = [as_document(name, run, lower) for name, run in runs.items()]
    title = (
        f"{counted(settings.epochs)} of {counted(settings.rounds, 'round')}, fitted to workload={settings.workload}, momentum "
        f"{settings.momentum:g}, {settings.schedule} learning rate"
    )
    output.show(settings.output, rows, lambda: _print_table(rows, title))
    if settings.export is not None:
        for name, run in runs.items():
            export(run, Path(settings.export) / f"{name}.npz")


def designs(
    settings: MechanismsSettings, workloads: Sequence[Workload]
) -> Iterator[tuple[str, RunFactorization]]:
    """Yield the families asked for, or all that suit the size, by name, all costed on the same `workloads`.

    `workload=run` fits each epoch's mechanism to its own rounds and all later ones. `workload=prefix_sum` and
    `workload=momentum` are the papers' designs: fitted to one epoch alone, the same in every epoch.

    With all families comes what the optima of one epoch alone cost on these workloads, where they are others.
    """
    alone = {
        f"optimal_for_{name}": momentum(settings.rounds, beta)
        for name, beta in {"prefix_sum": 0.0, "momentum": settings.momentum}.items()
    }
    fitted_to = alone.get(f"optimal_for_{settings.workload}")
    chosen = _chosen(settings.families, workloads[0])
    # Where no family has buffers, the first one says so.
    with_buffers = [family for family in chosen if "buffers" in family.settings] or chosen
    for family in chosen:
        is_given = settings.buffers is not None and family in with_buffers
        given = {"buffers": settings.buffers} if is_given else {}
        yield family.name, fit(family, workloads, fitted_to, **given)
    if settings.families is None:
        listed = [workloads if fitted_to is None else (fitted_to,)]
        for name, epoch in alone.items():
            if (epoch,) not in listed:
                listed.append((epoch,))
                yield name, fit(resolve("optimal"), workloads, epoch)


def _chosen(names: Sequence[str] | None, workload: Workload) -> list[Family]:
    """Return the families named, in order and once, or all that suit the size."""
    if names is None:
        return [family for family in map(resolve, FAMILIES) if family.suits(workload)]
    families = [find_family(name, "families") for name in dict.fromkeys(names)]
    found = [family.name for family in families]
    if len({*found}) < len(found):  # two would share a row and a file
        raise SettingError(f"families are called {', '.join(found)}; give each a name of its own.")
    return families


def as_document(name: str, run: RunFactorization, lower: float) -> dict[str, Any]:
    """Return one row of the JSON list: the contract's keys, then memory."""
    buffers = max(epoch.stream.buffers for epoch in run.epochs)
    return {
        "family": name,
        "epochs": len(run.epochs),
        "sensitivity": run.sensitivity,
        "root_loss": run.root_loss,
        "rms_error": run.rms_error,
        "max_error": run.max_error,
        "lower_bound": lower,
        "relative_gap": run.root_loss / lower - 1,
        "seconds": run.seconds,
        "buffers": buffers,
        "bytes_per_parameter": 8 * buffers,  # rows of float64
    }


def _print_table(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    keys = (
        "root_loss",
        "relative_gap",
        "rms_error",
        "max_error",
        "sensitivity",
        "bytes_per_parameter",
        "seconds",
    )
    cells = (
        [row["family"], *(number(row[key]) for key in keys)]
        for row in sorted(rows, key=lambda row: row["root_loss"])
    )
    numbers = dict.fromkeys((key.replace("_", " ") for key in keys), output.NUMBER)
    output.print_table(title, {"family": {"no_wrap": True}, **numbers}, cells)


def export(run: RunFactorization, file: Path) -> None:
    """Write encoder C (m, T), decoder B (T, m), float64, and what the stream emits for the identity, `noise` (T, T).

    For several epochs each array has a leading axis, one entry an epoch; B is that of the epoch's own rounds.
    """
    parts = [(*epoch.materialize(), feed(epoch.stream, np.eye(epoch.rounds))) for epoch in run.epochs]
    arrays = (np.stack(found) if len(parts) > 1 else found[0] for found in zip(*parts, strict=True))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_output(file, packed(**dict(zip(("decoder", "encoder", "noise"), arrays, strict=True))))
    messages.info(f"wrote {file}")


if __name__ == "__main__":
    command.run(mechanisms, "mechanisms", MechanismsSettings, __doc__)
