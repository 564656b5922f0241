"""Plots of factorizations: error by round, matrices as heat maps, error against the number of rounds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.mechanisms.rows import describe
from experiments.pages.figures import COLOURS, DASHES, STYLE, save
from fedmf.mechanisms import RunFactorization, design, momentum, prefix_sum
from fedmf.mechanisms.arrays import Float64

LARGEST_HEAT_MAP = 512  # rounds of the run
MOST_MARKED = 100  # epochs: more marks would be one grey area
LARGEST_TREE = 1 << 14
# Of squared errors, tree over square root, T -> infinity: 10.27.
LIMIT_RATIO = np.pi**2 / (2 * np.log(2) ** 2)


def write(runs: Mapping[str, RunFactorization], lower_bound: float, directory: Path) -> list[Path]:
    """Write all plots as PNG into `directory` and return their paths; `lower_bound` is that on root loss."""
    directory.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))
    style: Any = STYLE
    with matplotlib.rc_context(style):
        figures = {
            "error_by_round": error_by_round(runs, lower_bound),
            "error_by_rounds": error_by_rounds(max(first.rounds, 4)),
        }
        if len(first.epochs) * first.rounds <= LARGEST_HEAT_MAP:
            figures |= {f"matrices_{name}": heat_maps(name, run) for name, run in runs.items()}
        return [_save(figure, directory / f"{name}.png") for name, figure in figures.items()]


def error_by_round(runs: Mapping[str, RunFactorization], lower_bound: float) -> Figure:
    """Return the error of every round of the run beside the root mean square that the lower bound allows.

    For one epoch, right of it, that with momentum 0.9: after Denisov et al. (NeurIPS 2022), Figure 1. For several,
    every epoch's first round is marked.
    """
    first = next(iter(runs.values()))
    epochs, rounds = len(first.epochs), first.rounds
    errors = {name: run.per_round_error for name, run in runs.items()}
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, *right = figure.subplots(1, 2 if epochs == 1 else 1, squeeze=False)[0]
    name = describe(first.workloads)
    _error_lines(left, errors, name if epochs == 1 else f"{epochs} epochs of {rounds} rounds, {name}")
    least = lower_bound / np.sqrt(epochs * rounds)
    label = "least possible, root mean square"
    left.axhline(least, color="black", linewidth=0.8, linestyle=(0, (1, 1)), label=label)
    left.legend(fontsize=7, ncols=2)
    if 1 < epochs <= MOST_MARKED:
        for start in range(rounds + 1, epochs * rounds, rounds):
            left.axvline(start, color="#888888", linewidth=0.8, linestyle="--", zorder=0)
        left.set_xlabel("round (dashed: the first of an epoch)")
    for axes in right:
        with_momentum = {
            family: design(family, momentum(rounds, 0.9)).per_round_error
            for family in ("optimal", "sqrt_toeplitz", "honaker_online", "independent")
        }
        _error_lines(axes, with_momentum, "momentum 0.9")
        axes.legend(fontsize=7, ncols=2)
    return figure


def _error_lines(axes: Any, errors: Mapping[str, Float64], title: str) -> None:
    for index, (name, values) in enumerate(errors.items()):
        style = {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}
        axes.plot(np.arange(1, len(values) + 1), values, label=name, linewidth=1.2, **style)
    axes.set(
        title=title,
        xlabel="round",
        ylabel="standard deviation of the released value\n(per noise multiplier and clip norm)",
        yscale="log",
    )


def heat_maps(name: str, run: RunFactorization) -> Figure:
    """Return B and C of all rounds as heat maps on a logarithmic scale (Denisov et al., Fig. 5)."""
    decoder, encoder = run.materialize()
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
    save(figure, file, 120)
    return file
