"""Time kernels and whole rounds against the least they could cost: `python -m experiments.benchmark`.

Machines are shared and noisy, so every row is measured in turns with its floor, as CPU time with one thread, and the
turn with the median ratio counts. `rows=[gaussian_row,mask]` measures some only. Progress goes to stderr. JSON: {row:
{ratio, goal, floor, seconds, floor_is, turns}}, times in CPU seconds; floor_is says what the floor is.

`compare=pfl`, `compare=flower` or `compare=pfl,flower` let other systems play the same client work in the same turns; each runs in a
virtual environment that the command makes once below the cache folder. Their JSON stands under "others".
`device=cuda` lets clients train on a GPU and measures wall time. `check=true` exits 1 and names the rows that became slower than their limits, 3 where the
machine is not as it was when they were set; `limits=write` sets the limits.
rows=[wire_float32,wire_int8] count the bytes of a real deployment instead; rows=[round_100m] is a server round of 10^8
parameters and says how much memory it took (`most_memory`, in bytes). rows=[deployment_nodes_3,deployment_nodes_50] (or 10, 25) are seconds a
round in a deployment of so many light nodes, over the CPU seconds of its SuperLink.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import torch

from client.training import pick_device
from experiments.benchmark import limits, mechanisms, node_count, page, rounds, tables, updates, wire
from experiments.benchmark.environments import pins, ready_python
from experiments.benchmark.other_system import SCRIPTS, OtherSystem
from experiments.benchmark.row import Row, cuda_clock, measure
from experiments.benchmark.simulation import COMPRESSION, Federation, simulation
from experiments.cli import command, output
from experiments.engines.processes import keep_freed_memory
from experiments.settings.output import PRINTED, Output
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import SettingError
from fedmf.setting import setting

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

# In these rows other systems can do the same work.
FEDERATIONS = {"simulation_logistic": LOGISTIC, "simulation_mlp": MLP, "simulation_cnn": CNN}

# Measured only when named: wire_ and deployment_ start a deployment on the loopback interface, round_100m needs 6 GB.
NAMED_ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "wire_float32": partial(wire.uplink, "float32"),
    "wire_int8": partial(wire.uplink, "int8"),
    **{f"deployment_nodes_{count}": partial(node_count.nodes_row, count) for count in (3, 10, 25, 50)},
    "round_100m": partial(rounds.large_round, 100_000_000, 100, 0.001),
}


def cuda_rows() -> dict[str, Callable[[], Row]]:
    """Return the rows in which clients train on a CUDA device, in the time of the wall clock."""
    there = [replace(federation, device=Device.cuda.value) for federation in (LOGISTIC, MLP, CNN, UNROTATED)]
    names = [name for name in ROWS if name.startswith("simulation_")]
    played = {name: partial(simulation, one, None) for name, one in zip(names, there, strict=True)}
    return {"privatize": partial(updates.on_device, DIMENSION, KEEP, Device.cuda.value), **played}


class Device(StrEnum):
    """Where clients train."""

    cpu = "cpu"
    cuda = "cuda"


class Limits(StrEnum):
    """What becomes of the limits of the rows."""

    keep = "keep"
    write = "write"


@dataclass(frozen=True)
class BenchmarkSettings:
    """Keys of the command; null rows are all but those that are measured only when named."""

    rows: tuple[str, ...] | None = setting(
        None,
        "what is measured, such as [gaussian_row,mask]; null: all but wire_float32, wire_int8 (a "
        "deployment) and round_100m (6 GB)",
    )
    repeats: int = setting(
        15, "turns of each row and its floor, fewer of slow ones; the turn with the median ratio counts"
    )
    compare: tuple[str, ...] | None = setting(
        None,
        "other systems that do the work of the simulation_ rows in the same turns, pfl, flower or "
        "[pfl,flower], each in a virtual environment that is made once below the cache folder; null: "
        "none",
    )
    device: Device = setting(
        Device.cpu,
        "where clients train; with cuda the rows are the simulation_ ones and what a client does to "
        "its update, in wall time",
    )
    check: bool = setting(
        False,
        "whether to measure each row three times, and exit 1, naming the rows, where the median is "
        "above its limit, or 3 where floors took 1.15 times as long or short as when limits were set, "
        "which decides nothing",
    )
    limits: Limits = setting(
        Limits.keep,
        "whether to set the limits that check holds the rows to, 1.25 times the median of three "
        "measurements; on a quiet machine",
    )
    page: str | None = setting(
        None, "a page, such as docs/performance.md, whose tables are replaced by what is measured; null: none"
    )
    output: Output = setting(Output.text, PRINTED)

    @property
    def table(self) -> Mapping[str, Callable[[], Row]]:
        """The rows that there are on the device, those of a deployment aside."""
        return ROWS if self.device is Device.cpu else cuda_rows()

    @property
    def names(self) -> list[str]:
        """The rows to measure."""
        return list(self.table if self.rows is None else self.rows)

    @property
    def others(self) -> tuple[str, ...]:
        """The other systems that play too."""
        return self.compare or ()

    @property
    def line(self) -> str:
        """The command line, of the keys that say what was measured."""
        keys = {"rows": self.rows, "compare": self.compare}
        lists = [f"{key}=[{','.join(names)}]" for key, names in keys.items() if names is not None]
        written = ["limits=write"] if self.limits is Limits.write else []
        return " ".join(["python -m experiments.benchmark", *lists, f"repeats={self.repeats}", *written])


def benchmark(settings: BenchmarkSettings) -> None:
    """Print the ratio of every row chosen to its floor."""
    _refuse_contradictions(settings)
    known = limits.read() if settings.check else {}
    if settings.check:
        limits.refuse_unlimited(settings.names, known)
    if settings.page is not None:
        page.read(Path(settings.page), _tables_of(settings))
    interpreters = {name: ready_python(name, pins()[name], _say) for name in settings.others}
    torch.set_num_threads(1)
    logging.getLogger("server").setLevel(logging.WARNING)  # a line a round would bury the progress
    keep_freed_memory()
    results: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(settings.names, start=1):
        _say(f"{number}/{len(settings.names)} {name}")
        look = partial(_look, settings, name, interpreters)
        once = settings.limits is Limits.keep and not settings.check
        results[name] = look() if once else limits.median_of_looks(look)
    if settings.output is Output.json:
        output.print_json(results)
    else:
        tables.print_tables(results, settings.device.value)
    _keep(settings, results, known)


def _keep(settings: BenchmarkSettings, results: tables.Results, known: dict[str, limits.Limit]) -> None:
    """Write what is to be written of the results, and check what is to be checked."""
    if settings.page is not None:
        page.write(Path(settings.page), _written(settings, results))
    if settings.limits is Limits.write:
        limits.write(results, settings.line)
    if settings.check:
        limits.hold(results, known)


def _refuse_contradictions(settings: BenchmarkSettings) -> None:
    """Raise `SettingError` for settings that cannot be followed, before anything is measured."""
    check_at_least("repeats", settings.repeats, 1)
    on_cuda = settings.device is Device.cuda
    if not settings.names:
        raise SettingError("rows is []; it must name a row, such as rows=[mask], or be null for all.")
    for name in settings.names:
        check_choice("rows", name, settings.table if on_cuda else {**ROWS, **NAMED_ROWS})
    for other in settings.others:
        check_choice("compare", other, pins())
    if settings.others and not set(settings.names) & set(FEDERATIONS):
        raise SettingError(
            f"compare is {', '.join(settings.others)}, but no row that other systems can play is among the rows; "
            f"these are {', '.join(FEDERATIONS)}."
        )
    if on_cuda:
        _refuse_beside_cuda(settings)
    if settings.check and settings.limits is Limits.write:
        raise SettingError(
            "check is true and limits is write; limits that are set now would hold in any case."
        )
    if settings.page is not None and settings.rows is not None:
        raise SettingError("page and rows are both given; a page shows all rows, so leave rows null.")


def _refuse_beside_cuda(settings: BenchmarkSettings) -> None:
    """Raise `SettingError` without a CUDA device, and for what is made of CPU times alone."""
    pick_device(settings.device)
    asked = {"compare": settings.others, "check": settings.check, "page": settings.page}
    asked["limits=write"] = settings.limits is Limits.write
    for key in (key for key, value in asked.items() if value):
        raise SettingError(
            f"device is cuda, whose rows are in wall time, beside {key}, which is about CPU time."
        )


def _look(settings: BenchmarkSettings, name: str, interpreters: dict[str, Path]) -> dict[str, Any]:
    """Measure one row, with other systems in the turns of those rows that they can play."""
    if name in NAMED_ROWS:
        return NAMED_ROWS[name]()
    row = settings.table[name]()
    if settings.device is Device.cuda:
        return measure(row, settings.repeats, clock=cuda_clock)
    with ExitStack() as stack:
        others = {}
        for other, python in interpreters.items() if name in FEDERATIONS else ():
            start = [str(python), str(SCRIPTS / f"with_{other}.py")]
            others[other] = stack.enter_context(OtherSystem(other, start, FEDERATIONS[name]))
        return measure(row, settings.repeats, others)


def _tables_of(settings: BenchmarkSettings) -> tuple[str, ...]:
    """Return the tables that a page shows of these settings."""
    return (page.ROWS, page.COMPARED) if settings.others else (page.ROWS,)


def _written(settings: BenchmarkSettings, results: tables.Results) -> dict[str, str]:
    """Return the tables of a page, each below the command that measured it and above where that was."""
    lines = {page.ROWS: (tables.HEADINGS, tables.rows(results)), page.COMPARED: tables.compared(results)}
    where = page.where()
    versions = ", ".join(pin for other in settings.others for pin in pins()[other][:1])
    foot = {page.ROWS: where, page.COMPARED: f"{where} Beside it: {versions}."}
    return {
        name: f"    {settings.line}\n\n{tables.markdown(*lines[name])}\n\n{foot[name]}"
        for name in _tables_of(settings)
    }


def _say(line: str) -> None:
    """Show progress."""
    print(line, file=sys.stderr, flush=True)


def in_full(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the systems in `compare=NAME` or `compare=NAME,NAME` as a list.

    >>> in_full(["compare=pfl", "compare=null", "repeats=3"])
    ['compare=[pfl]', 'compare=null', 'repeats=3']
    """
    key, none = "compare=", "compare=null"
    return [
        f"{key}[{word.removeprefix(key)}]"
        if word.startswith(key)
        and word != none
        and all(name.isalnum() for name in word[len(key) :].split(","))
        else word
        for word in arguments
    ]


if __name__ == "__main__":
    command.run(benchmark, "benchmark", BenchmarkSettings, __doc__, in_full(sys.argv[1:]))
