"""Time the hot kernels against what the machine needs for the same: `python -m experiments.benchmark`.

Machines are shared and noisy, so every kernel is measured in turns with its floor, as CPU time of one thread,
and the least of `repeats` turns of each is compared. `kernels=[gaussian_row]` measures some only. JSON:
{kernel: {ratio, floor, seconds, floor_is, goal}}, times in seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from rich.table import Table

from experiments import command
from experiments.config_data import Output
from fedmf.checks import check_at_least, check_choice
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.optimal_solve import certified, solve
from fedmf.mechanisms.poles import poles, spectral_interval
from fedmf.mechanisms.smoother import diagonal
from fedmf.mechanisms.stream import StreamState
from fedmf.randomness import SecretKey, gaussian_row

DIMENSION = 1 << 20


@dataclass
class BenchmarkConfig:
    """Keys of the command; null kernels are all."""

    kernels: list[str] | None = None
    repeats: int = 15
    output: Output = Output.text


@dataclass(frozen=True)
class Kernel:
    """Two things to run in turns: the kernel, and the least that any implementation of it would do."""

    run: Callable[[], object]
    floor: Callable[[], object]
    floor_is: str
    goal: float | None


def design_2048() -> Kernel:
    """The optimal factorization of 2048 rounds to gap 1e-6."""
    workload = prefix_sum(2048)
    v = certified(workload).v
    return Kernel(
        lambda: solve(workload),
        lambda: diagonal(v, workload, poles(spectral_interval(v, workload), 1e-10)),
        "one evaluation of the fixed-point map at the solution",
        None,
    )


def gaussian_row_kernel() -> Kernel:
    """One keyed row of 2^20 normals."""
    key = SecretKey.generate()
    buffer = torch.empty(DIMENSION)
    return Kernel(
        lambda: gaussian_row(key, 0, DIMENSION),
        buffer.normal_,
        "torch normal_, 2^20 float32, neither keyed nor secret",
        4,
    )


def correlation_step(buffers: int) -> Kernel:
    """One step of the optimal stream at 2^20 coordinates, in place."""
    stream = design("optimal", prefix_sum(1024), buffers=buffers).stream
    rng = np.random.default_rng(0)
    state = StreamState(512, rng.standard_normal((buffers, DIMENSION), dtype=np.float32))
    fresh = rng.standard_normal((1, DIMENSION), dtype=np.float32)
    source = rng.standard_normal((buffers, DIMENSION), dtype=np.float32)
    target = source.copy()
    return Kernel(
        lambda: stream.next(fresh, state, donate=True),
        lambda: np.copyto(target, source),
        f"a copy of {buffers} x 2^20 float32",
        2,
    )


KERNELS: dict[str, Callable[[], Kernel]] = {
    "design_2048": design_2048,
    "gaussian_row": gaussian_row_kernel,
    "correlation_step": lambda: correlation_step(4),
    "correlation_step_8": lambda: correlation_step(8),
}


def benchmark(config: DictConfig) -> None:
    """Print the ratio of every kernel chosen to its floor."""
    check_at_least("repeats", config.repeats, 1)
    names = list(KERNELS) if config.kernels is None else list(config.kernels)
    for name in names:
        check_choice("kernels", name, KERNELS)
    torch.set_num_threads(1)
    results = {name: measure(KERNELS[name](), config.repeats) for name in names}
    if config.output is Output.json:
        command.print_json(results)
    else:
        _print_table(results)


def measure(kernel: Kernel, repeats: int) -> dict[str, Any]:
    """Return the least CPU times of kernel and floor, measured in turns after one warm-up, and their
    ratio.
    """
    kernel.run()
    kernel.floor()
    pairs = [(_seconds(kernel.run), _seconds(kernel.floor)) for _ in range(repeats)]
    seconds, floor = (min(column) for column in zip(*pairs, strict=True))
    return {
        "ratio": seconds / floor,
        "floor": floor,
        "seconds": seconds,
        "floor_is": kernel.floor_is,
        "goal": kernel.goal,
    }


def _seconds(action: Callable[[], object]) -> float:
    begun = time.thread_time()
    action()
    return time.thread_time() - begun


def _print_table(results: dict[str, dict[str, Any]]) -> None:
    """Print one row a kernel."""
    table = Table(title="CPU time of one thread over the floor of the same run")
    table.add_column("kernel", no_wrap=True)
    for heading in ("ratio", "goal", "ms", "floor, ms"):
        table.add_column(heading, justify="right")
    table.add_column("floor")
    for name, row in results.items():
        table.add_row(
            name,
            f"{row['ratio']:.2f}",
            "-" if row["goal"] is None else f"{row['goal']:g}",
            f"{1e3 * row['seconds']:.2f}",
            f"{1e3 * row['floor']:.2f}",
            row["floor_is"],
        )
    command.console().print(table)


if __name__ == "__main__":
    command.run(benchmark, "benchmark", BenchmarkConfig, __doc__)
