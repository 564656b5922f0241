"""Plots of factorizations: error by round, matrices as heat maps, error against the number of rounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, DASHES, STYLE
from fedmf.mechanisms import Factorization, design, momentum, prefix_sum
from fedmf.mechanisms.arrays import Float64

LARGEST_HEAT_MAP = 512
LARGEST_TREE = 1 << 14
# Of squared errors, tree over square root, T -> infinity: 10.27.
LIMIT_RATIO = np.pi**2 / (2 * np.log(2) ** 2)


def write(designs: Mapping[str, Factorization], directory: Path) -> list[Path]:
    """Write all plots as PNG into `directory` and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    rounds = next(iter(designs.values())).rounds
    style: Any = STYLE
    with matplotlib.rc_context(style):
        figures = {
            "error_by_round": error_by_round(designs),
            "error_by_rounds": error_by_rounds(max(rounds, 4)),
        }
        if rounds <= LARGEST_HEAT_MAP:
            figures |= {f"matrices_{name}": heat_maps(name, item) for name, item in designs.items()}
        return [_save(figure, directory / f"{name}.png") for name, figure in figures.items()]


def error_by_round(designs: Mapping[str, Factorization]) -> Figure:
    """Return the error of every round: left on the workload of `designs`, right with momentum 0.9.

    After Denisov et al. (NeurIPS 2022), Figure 1.
    """
    rounds = next(iter(designs.values())).rounds
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    workload = next(iter(designs.values())).workload
    name = "prefix sums" if workload.is_prefix_sum else f"momentum {workload.momentum}"
    _error_lines(left, designs, name)
    with_momentum = {
        family: design(family, momentum(rounds, 0.9))
        for family in ("optimal", "sqrt_toeplitz", "honaker_online", "independent")
    }
    _error_lines(right, with_momentum, "momentum 0.9")
    return figure


def _error_lines(axes: Any, designs: Mapping[str, Factorization], title: str) -> None:
    for index, (name, item) in enumerate(designs.items()):
        style = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}
        axes.plot(np.arange(1, item.rounds + 1), item.per_round_error, label=name, linewidth=1.2, **style)
    axes.set(
        title=title,
        xlabel="round",
        ylabel="standard deviation of the released value\n(per noise multiplier and clip norm)",
        yscale="log",
    )
    axes.legend(fontsize=7, ncols=2)


def heat_maps(name: str, mechanism: Factorization) -> Figure:
    """Return B and C as heat maps on a logarithmic scale (Denisov et al., Fig. 5)."""
    decoder, encoder = mechanism.materialize()
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, matrix, label in zip(figure.subplots(1, 2), (decoder, encoder), ("B", "C"), strict=True):
        image = axes.imshow(_log_magnitude(matrix), cmap="viridis", aspect="auto", interpolation="nearest")
        figure.colorbar(image, ax=axes, label=f"log10 of |{label}|")
        axes.set(
            title=f"{name}: {label}",
            xlabel="noise row" if label == "B" else "round",
            ylabel="round" if label == "B" else "noise row",
        )
        axes.grid(False)
    return figure


def _log_magnitude(matrix: Float64) -> Any:
    """Return log10 of the entries' size down to a millionth of the largest; exact zeros are masked."""
    size = np.abs(matrix)
    return np.ma.masked_where(size < 1e-6 * size.max(), np.log10(np.maximum(size, 1e-300)))


def error_by_rounds(most: int) -> Figure:
    """Return mean squared errors against T of tree, square root and, up to `most` rounds, the optimum.

    Beside them the ratio of the first two (Henzinger et al., Figure 1 and Theorem 5).
    """
    sizes = {
        "binary_tree": 2 ** np.arange(1, LARGEST_TREE.bit_length()),
        "sqrt_toeplitz": 2 ** np.arange(1, LARGEST_TREE.bit_length()),
        "optimal": 2 ** np.arange(1, most.bit_length()),
    }
    squares = {family: _mean_squares(family, rounds) for family, rounds in sizes.items()}
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, (name, values) in enumerate(squares.items()):
        left.plot(sizes[name], values, label=name, color=COLOURS[index], marker="o", markersize=3)
    left.set_xscale("log", base=2)
    left.set(
        xlabel="rounds T",
        ylabel="mean squared error of a prefix sum\n(per squared noise multiplier and clip norm)",
    )
    left.legend()
    ratio = squares["binary_tree"] / squares["sqrt_toeplitz"]
    right.plot(sizes["binary_tree"], ratio, color=COLOURS[0], marker="o", markersize=3)
    right.axhline(LIMIT_RATIO, color=COLOURS[1], linestyle="--", label=f"limit: {LIMIT_RATIO:.2f}")
    right.set_xscale("log", base=2)
    right.set(xlabel="rounds T", ylabel="mean squared error, tree over square root", ylim=(0, 11))
    right.legend()
    return figure


def _mean_squares(family: str, sizes: Any) -> Float64:
    return np.array([design(family, prefix_sum(int(rounds))).rms_error ** 2 for rounds in sizes])


def _save(figure: Figure, file: Path) -> Path:
    figure.savefig(file, dpi=120)
    return file
