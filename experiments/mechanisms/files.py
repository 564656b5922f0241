"""Files of factorizations: dense matrices, which a reader can check a stream against, and plots."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, DASHES, STYLE, save
from fedmf.mechanisms import RunFactorization
from fedmf.mechanisms.streams.protocol import feed
from server.files import packed, write_output

_log = logging.getLogger(__name__)

LARGEST_HEAT_MAP = 512  # rounds of the run
MOST_MARKED = 100  # epochs: more marks would be one grey area


def export(run: RunFactorization, file: Path) -> None:
    """Write encoder C (m, T), decoder B (T, m), float64, and what the stream emits for the identity, `noise` (T, T).

    For several epochs each array has a leading axis, one entry an epoch; B is that of the epoch's own rounds.
    """
    parts = [(*epoch.materialize(), feed(epoch.stream, np.eye(epoch.rounds))) for epoch in run.epochs]
    arrays = (np.stack(found) if len(parts) > 1 else found[0] for found in zip(*parts, strict=True))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_output(file, packed(**dict(zip(("decoder", "encoder", "noise"), arrays, strict=True))))
    _log.info("wrote %s", file)


def plot(runs: Mapping[str, RunFactorization], lower_bound: float, what: str, directory: Path) -> None:
    """Write all plots of `what` as PNG into `directory`; `lower_bound` is that on root loss."""
    directory.mkdir(parents=True, exist_ok=True)
    style: Any = STYLE
    with matplotlib.rc_context(style):
        figures = {"error_by_round": error_by_round(runs, lower_bound, what)}
        for name, run in runs.items():
            if len(run.per_round_error) <= LARGEST_HEAT_MAP:
                figures[f"matrices_{name}"] = heat_maps(name, run)
        for name, figure in figures.items():
            file = directory / f"{name}.png"
            save(figure, file, 120)
            _log.info("wrote %s", file)


def error_by_round(runs: Mapping[str, RunFactorization], lower_bound: float, what: str) -> Figure:
    """Return the error of every round of the run and the root mean square that the lower bound allows.

    After Denisov et al. (NeurIPS 2022), Figure 1. The first round of every further epoch is marked.
    """
    first = next(iter(runs.values()))
    epochs, rounds = len(first.epochs), first.rounds
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    for index, (name, run) in enumerate(runs.items()):
        axes.plot(
            np.arange(1, epochs * rounds + 1),
            run.per_round_error,
            label=name,
            linewidth=1.2,
            color=COLOURS[index % len(COLOURS)],
            linestyle=DASHES[index % len(DASHES)],
        )
    axes.axhline(
        lower_bound / np.sqrt(epochs * rounds),
        color="black",
        linewidth=0.8,
        linestyle=(0, (1, 1)),
        label="least possible, root mean square",
    )
    starts = range(rounds + 1, epochs * rounds, rounds) if epochs <= MOST_MARKED else ()
    for start in starts:
        axes.axvline(start, color="#888888", linewidth=0.8, linestyle="--", zorder=0)
    axes.legend(fontsize=7, ncols=2)
    axes.set(
        title=what if epochs == 1 else f"{epochs} epochs of {rounds} rounds, {what}",
        xlabel="round (dashed: the first of an epoch)" if starts else "round",
        ylabel="standard deviation of the released value\n(per noise multiplier and clip norm)",
        yscale="log",
    )
    return figure


def heat_maps(name: str, run: RunFactorization) -> Figure:
    """Return B and C of all rounds as heat maps on a logarithmic scale (Denisov et al., Fig. 5).

    They show entries down to a millionth of the largest.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, matrix, label in zip(figure.subplots(1, 2), run.materialize(), ("B", "C"), strict=True):
        size = np.abs(matrix)
        shown = np.ma.masked_where(size < 1e-6 * size.max(), np.log10(np.maximum(size, 1e-300)))
        image = axes.imshow(shown, cmap="viridis", aspect="auto", interpolation="nearest")
        figure.colorbar(image, ax=axes, label=f"log10 of |{label}|")
        sides = ("noise row", "round") if label == "B" else ("round", "noise row")
        axes.set(title=f"{name}: {label}", xlabel=sides[0], ylabel=sides[1])
        axes.grid(False)
    return figure
