"""Time kernels and whole rounds against the least they could cost: `python -m experiments.benchmark`.

Machines are shared and noisy, so every row is measured in turns with its floor, as CPU time of this process
with one thread, and the medians are compared. `rows=[gaussian_row,mask]` measures some only. Progress goes to
stderr. JSON: {row: {ratio, goal, floor, seconds, floor_is, turns}}, times in CPU seconds; floor_is says what
the floor is. rows=[wire_float32,wire_int8] count the bytes of a real deployment instead; rows=[round_100m] is a
server round of 10^8 parameters and says how much memory it took (`most_memory`, in bytes).
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table

from experiments.benchmark import mechanisms, rounds, updates, wire
from experiments.benchmark.row import Row, measure
from experiments.benchmark.simulation import COMPRESSION, Federation, simulation
from experiments.cli import command, output
from experiments.settings.output import Output
from fedmf import kernels
from fedmf.checks import check_at_least, check_choice

DIMENSION = 1 << 20
KEEP = COMPRESSION.keep_probability
LOGISTIC, MLP, CNN = Federation("logistic", 62), Federation("mlp", 10), Federation("cnn", 62)
UNROTATED = replace(CNN, compression=replace(COMPRESSION, rotation="identity"))  # what the rotation costs

ROWS: dict[str, Callable[[], Row]] = {
    "design_2048": partial(mechanisms.design_row, 2048),
    "gaussian_row": partial(mechanisms.normals, DIMENSION),
    "correlation_step": partial(mechanisms.correlation_step, 4, DIMENSION),
    "correlation_step_8": partial(mechanisms.correlation_step, 8, DIMENSION),
    "hadamard": partial(updates.rotation, DIMENSION),
    "mask": partial(updates.mask, DIMENSION, KEEP),
    "add_message": partial(updates.add_message, DIMENSION, KEEP),
    "server_round": partial(rounds.server_round, DIMENSION, 100, KEEP, 8),
    "simulation_logistic": partial(simulation, LOGISTIC, 1.5),
    "simulation_mlp": partial(simulation, MLP, None),
    "simulation_cnn": partial(simulation, CNN, 1.1),
    "simulation_cnn_unrotated": partial(simulation, UNROTATED, 1.1),
    "checkpoint": partial(rounds.checkpoint, CNN),
}


# Measured only when named: wire_ starts a deployment on the loopback interface, round_100m needs 6 GB.
NAMED_ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "wire_float32": partial(wire.uplink, "float32"),
    "wire_int8": partial(wire.uplink, "int8"),
    "round_100m": partial(rounds.large_round, 100_000_000, 100, 0.001),
}


@dataclass(frozen=True)
class BenchmarkSettings:
    """Keys of the command; null rows are all but those that are measured only when named."""

    rows: tuple[str, ...] | None
    repeats: int
    output: Output


def benchmark(settings: BenchmarkSettings) -> None:
    """Print the ratio of every row chosen to its floor."""
    check_at_least("repeats", settings.repeats, 1)
    names = list(ROWS) if settings.rows is None else list(settings.rows)
    for name in names:
        check_choice("rows", name, {**ROWS, **NAMED_ROWS})
    torch.set_num_threads(1)
    logging.getLogger("server").setLevel(logging.WARNING)  # a line a round would bury the progress
    keep_freed_memory()
    kernels.load()  # compiled in the turn that warms a row up
    results = {}
    for number, name in enumerate(names, start=1):
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
        results[name] = NAMED_ROWS[name]() if name in NAMED_ROWS else measure(ROWS[name](), settings.repeats)
    if settings.output is Output.json:
        output.print_json(results)
    else:
        _print_table(results)


def keep_freed_memory() -> None:
    """Bring the allocator to the state of a process that has been running for a while.

    glibc asks the system for every array larger than the largest it has seen freed, and touching new pages
    costs more than most kernels: without this a row would depend on what ran before it.
    """
    np.empty(30 << 20, np.uint8)  # freed at once; glibc remembers sizes up to 32 MiB


def _sizes(row: dict[str, Any]) -> tuple[str, str]:
    """Return what we need and the floor, in the unit of the row."""
    if "bytes" in row:
        return f"{row['bytes']:,.0f} B", f"{row['floor']:,.0f} B"
    return f"{1e3 * row['seconds']:.3g} ms", f"{1e3 * row['floor']:.3g} ms"


def _print_table(results: dict[str, dict[str, Any]]) -> None:
    """Print one line a row."""
    table = Table(title="CPU time of one thread (wire_: bytes) over the floor of the same run")
    table.add_column("row", no_wrap=True)
    for heading in ("ratio", "goal", "ours", "floor"):
        table.add_column(heading, justify="right")
    table.add_column("what the floor is")
    for name, row in results.items():
        table.add_row(
            name,
            f"{row['ratio']:.3g}",
            "-" if row["goal"] is None else f"{row['goal']:.3g}",
            *_sizes(row),
            row["floor_is"],
        )
    output.console().print(table)


if __name__ == "__main__":
    command.run(benchmark, "benchmark", BenchmarkSettings, __doc__)
