"""Time operations and whole rounds against the least they could cost: `python -m experiments.benchmark`, in a checkout.

Every row is measured in turns with its floor, as CPU time of one thread, and the turn with the median ratio counts.
JSON: {row: {ratio, goal, floor, seconds, floor_is, turns}}, times in CPU seconds; floor_is describes the floor.

Only when named: rows=[round_100m], a server round of 10^8 parameters (6 GB; `most_memory` in bytes), and
rows=[deployment], seconds a round of three nodes over plain Flower's. Other systems: experiments/benchmark/versus.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from client.training import pick_device
from experiments.benchmark import kernels, limits, rounds
from experiments.benchmark.deployment import deployment_row
from experiments.benchmark.row import Row, cuda_clock, measure
from experiments.benchmark.simulation import COMPRESSION, Federation, simulation
from experiments.benchmark.versus.work import ROWS as FEDERATIONS
from experiments.cli import output
from experiments.engines.processes import keep_freed_memory
from experiments.reproduce import Table, command_line, page
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import SettingError
from fedmf.setting import setting

DIMENSION, KEEP = 1 << 20, COMPRESSION.keep_probability
UNROTATED = replace(COMPRESSION, rotation="identity")  # what the rotation costs
GOALS = {"simulation_logistic": 1.5, "simulation_cnn": 1.1, "simulation_cnn_unrotated": 1.1}
LOOKS = 3  # measurements, of which the one with the median ratio sets a limit or is compared with it
HEADINGS = ("row", "ratio", "goal", "ours", "floor", "what the floor is")

Make = Callable[[], Row]


def simulations(device: str) -> dict[str, Make]:
    """Return the rows of whole rounds whose clients train on a device."""
    played = {name: Federation(*model, device=device) for name, model in FEDERATIONS.items()}
    played["simulation_cnn_unrotated"] = replace(played["simulation_cnn"], compression=UNROTATED)
    return {name: partial(simulation, one, GOALS.get(name)) for name, one in played.items()}


ROWS: dict[str, Make] = {
    "design_2048": partial(kernels.design_row, 2048),
    "gaussian_row": partial(kernels.normals, DIMENSION),
    "correlation_step": partial(kernels.correlation_step, 4, DIMENSION),
    "correlation_step_8": partial(kernels.correlation_step, 8, DIMENSION),
    "hadamard": partial(kernels.rotation, DIMENSION),
    "mask": partial(kernels.mask, DIMENSION, KEEP),
    "add_message": partial(kernels.add_message, DIMENSION, KEEP),
    "server_round": partial(rounds.server_round, DIMENSION, 100, KEEP, 8),
    **simulations("cpu"),
}
NAMED: dict[str, Callable[[], dict[str, Any]]] = {
    "round_100m": partial(rounds.large_round, 100_000_000, 100, 0.001),
    "deployment": deployment_row,
}
ON_CUDA = simulations("cuda")


@dataclass(frozen=True)
class BenchmarkSettings:
    """Keys of the command; null rows are all but those that are measured only when named."""

    rows: tuple[str, ...] | None = setting(
        None, "what is measured, such as [gaussian_row,mask]; null: all but the named"
    )
    repeats: int = setting(15, "turns of each row and its floor, fewer of slow ones")
    device: str = setting("cpu", "where clients train; cuda: the simulation_ rows, in wall time")
    check: bool = setting(
        False, "exit 1 where a row is above its limit, 3 where that cannot be told; a quiet machine"
    )
    limits: bool = setting(False, "set the limits of the rows that are measured; on a quiet machine")
    page: str | None = setting(None, "a page whose table of rows is replaced, such as docs/performance.md")
    output: Output = setting(Output.text, PRINTED)


def benchmark(settings: BenchmarkSettings) -> None:
    """Print the ratio of every row chosen to its floor."""
    check_at_least("repeats", settings.repeats, 1)
    check_choice("device", settings.device, ("cpu", "cuda"))
    pick_device(settings.device)
    table = ON_CUDA if settings.device == "cuda" else ROWS
    names = list(table if settings.rows is None else settings.rows)
    for name in names:
        check_choice("rows", name, table if settings.device == "cuda" else {**ROWS, **NAMED})
    if not names or (table is ON_CUDA and (settings.check or settings.limits)):
        raise SettingError(
            "rows is empty, or device is cuda beside check or limits, which are about CPU time."
        )
    known = limits.read(names) if settings.check else {}
    torch.set_num_threads(1)
    logging.getLogger("server").setLevel(logging.WARNING)  # a line a round would bury the progress
    keep_freed_memory()
    results: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(names, start=1):
        print(f"{number}/{len(names)} {name}", file=sys.stderr, flush=True)
        looks = LOOKS if settings.check or settings.limits else 1
        found = [_look(settings, table, name) for _ in range(looks)]
        results[name] = sorted(found, key=lambda row: float(row["ratio"]))[looks // 2]
    shown = page.markdown(
        Table("rows", HEADINGS, tuple(_line(name, row) for name, row in results.items()), texts=1)
    )
    output.print_json(results) if settings.output is Output.json else print(shown)
    if settings.page is not None:
        page.update(Path(settings.page), "benchmark", {"rows": f"{shown}\n\n{page.where()}"})
    if settings.limits:
        limits.write(results)
    if settings.check:
        limits.check(results, known)


def _look(settings: BenchmarkSettings, table: dict[str, Make], name: str) -> dict[str, Any]:
    if name in NAMED:
        return NAMED[name]()
    clock = {"clock": cuda_clock} if settings.device == "cuda" else {}
    return measure(table[name](), settings.repeats, **clock)


def _line(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    goal = "-" if row["goal"] is None else f"{row['goal']:.3g}"
    times = (f"{float(f'{1e3 * row[key]:.3g}'):,g} ms" for key in ("seconds", "floor"))
    return (name, f"{row['ratio']:.3g}", goal, *times, row["floor_is"])


if __name__ == "__main__":
    command_line.run(benchmark, BenchmarkSettings, __doc__)
