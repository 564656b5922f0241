"""Time operations and whole rounds against the least they could cost: `python -m experiments.benchmark`, in a checkout.

Every row is measured in turns with its floor, as CPU time of one thread, and the turn with the median ratio counts.
JSON: {row: {ratio, goal, floor, seconds, floor_is, turns}}, times in CPU seconds; floor_is describes the floor.

Only when named: rows=[round_100m], a server round of 10^8 parameters (6 GB; `most_memory` in bytes), and
rows=[deployment], seconds a round of three nodes over plain Flower's. Other systems: experiments/benchmark/versus.
"""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from client.training import pick_device
from experiments.benchmark import rows
from experiments.benchmark.row import (
    Row,
    check_limits,
    cuda_clock,
    measure,
    read_limits,
    write_limits,
)
from experiments.benchmark.versus.work import ROWS as FEDERATIONS
from experiments.cli import output
from experiments.engines.processes import keep_freed_memory
from experiments.reproduce import Table, tools
from experiments.settings.values import PRINTED, Output
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.setting import setting

DIMENSION, KEEP = 1 << 20, rows.COMPRESSION.keep_probability
GOALS = {"simulation_logistic": 1.5, "simulation_cnn": 1.1, "simulation_cnn_unrotated": 1.1}
LOOKS = 3  # measurements, of which the one with the median ratio sets a limit or is compared with it


def simulations(device: str) -> dict[str, Callable[[], Row]]:
    """Return the rows of whole rounds whose clients train on a device."""
    federations = {name: rows.Federation(*model, device=device) for name, model in FEDERATIONS.items()}
    federations["simulation_cnn_unrotated"] = replace(  # what the rotation costs
        federations["simulation_cnn"], compression=replace(rows.COMPRESSION, rotation="identity")
    )
    return {name: partial(rows.simulation, one, GOALS.get(name)) for name, one in federations.items()}


ROWS: dict[str, Callable[[], Row]] = {
    "design_2048": partial(rows.design_row, 2048),
    "gaussian_row": partial(rows.normals, DIMENSION),
    "correlation_step": partial(rows.correlation_step, 4, DIMENSION),
    "correlation_step_8": partial(rows.correlation_step, 8, DIMENSION),
    "hadamard": partial(rows.rotation, DIMENSION),
    "mask": partial(rows.mask, DIMENSION, KEEP),
    "add_message": partial(rows.add_message, DIMENSION, KEEP),
    "server_round": partial(rows.server_round, DIMENSION, 100, KEEP, 8),
    **simulations("cpu"),
}
NAMED: dict[str, Callable[[], dict[str, Any]]] = {
    "round_100m": partial(rows.large_round, 100_000_000, 100, 0.001),
    "deployment": rows.deployment_row,
}
ON_CUDA = simulations("cuda")


@dataclass(frozen=True)
class BenchmarkSettings:
    """Keys of the command; null rows are all but those that are measured only when named."""

    rows: tuple[str, ...] | None = setting(
        None, "what is measured, such as [gaussian_row,mask]; null: all but the named"
    )
    repeats: int = setting(15, "turns of each row and its floor, fewer of slow ones", at_least=1)
    device: str = setting("cpu", "where clients train; cuda: the simulation_ rows, in wall time")
    check: bool = setting(
        False, "exit 1 where a row is above its limit, 3 where that cannot be told; a quiet machine"
    )
    limits: bool = setting(False, "set the limits of the rows that are measured; on a quiet machine")
    page: str | None = setting(None, "a page whose table of rows is replaced, such as docs/performance.md")
    output: Output = setting("text", PRINTED)


def benchmark(settings: BenchmarkSettings) -> None:
    """Print the ratio of every row chosen to its floor."""
    check_choice("device", settings.device, ("cpu", "cuda"))
    pick_device(settings.device)
    on_cuda = settings.device == "cuda"
    table, clock = (ON_CUDA, cuda_clock) if on_cuda else (ROWS, time.process_time)
    names = list(table if settings.rows is None else settings.rows)
    for name in names:
        check_choice("rows", name, table if on_cuda else {**ROWS, **NAMED})
    if not names or (on_cuda and (settings.check or settings.limits)):
        raise SettingError("rows is empty, or device is cuda with check or limits, which are about CPU time.")
    known = read_limits(names) if settings.check else {}
    torch.set_num_threads(1)
    logging.getLogger("server").setLevel(logging.WARNING)  # a line a round would bury the progress
    keep_freed_memory()
    results: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names, start=1):
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
        found = [
            NAMED[name]() if name in NAMED else measure(table[name](), settings.repeats, clock)
            for _ in range(LOOKS if settings.check or settings.limits else 1)
        ]
        results[name] = sorted(found, key=lambda row: float(row["ratio"]))[len(found) // 2]
    columns = ("row", "ratio", "goal", "ours", "floor", "what the floor is")
    shown = tools.markdown(Table("rows", columns, tuple(map(_line, results.items())), texts=1))
    output.show(settings.output, results, lambda: print(shown))
    block = {"rows": f"{shown}\n\n{tools.where()}"}
    if settings.page is not None and tools.update(Path(settings.page), "benchmark", block):
        raise SettingError(f"{settings.page}: the page has no mark <!-- benchmark: rows -->. Add it.")
    if settings.limits:
        write_limits(results)
    if settings.check:
        check_limits(results, known)


def _line(result: tuple[str, dict[str, Any]]) -> tuple[str, ...]:
    name, row = result
    goal = "-" if row["goal"] is None else f"{row['goal']:.3g}"
    times = (f"{float(f'{1e3 * row[key]:.3g}'):,g} ms" for key in ("seconds", "floor"))
    return (name, f"{row['ratio']:.3g}", goal, *times, row["floor_is"])


if __name__ == "__main__":
    tools.run(benchmark, BenchmarkSettings, __doc__)
