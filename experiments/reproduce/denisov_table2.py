"""Table 2 of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022): root loss of prefix-sum factorizations.

Their "Honaker" is the online estimator. Their optimal entry at 4096 rounds, 217.3, was not converged. Their efficient
column is the banded-plus-low-rank approximation of Appendix H, whose fit is not unique: ours must only be no worse.
"""

import math
from pathlib import Path
from typing import Any

from experiments.pages.figures import COLOURS
from experiments.reproduce import Reproduction, Table, Value
from experiments.reproduce.drawing import figure, legend_below, progress
from fedmf.mechanisms import design, design_run, of_run, prefix_sum, restarted, run_lower_bound
from fedmf.mechanisms.optimum.fixed_point import certified

PUBLISHED = {  # rounds: Honaker, optimal, efficient
    256: (74.4, 40.4, 40.4),
    512: (116.5, 62.0, 62.2),
    1024: (180.8, 94.6, 95.5),
    2048: (278.3, 143.6, 145.8),
    4096: (425.6, 217.3, 224.0),
}
BANDS_AND_RANK = {256: 4, 512: 4, 1024: 5, 2048: 5, 4096: 6}
SHAPES = ((4, 4), (5, 4), (5, 5), (6, 5), (6, 6))  # bands and rank of the further fits
EPOCHS = 8
PRINTED = 0.05  # half a unit of the last printed digit
COLUMNS = (
    "rounds",
    "Honaker, published",
    "Honaker online",
    "optimal, published",
    "certified from",
    "certified to",
    "streamed",
    "efficient, published",
    "banded low rank",
    "published optimum",
)
ON_A_RUN = ("rounds an epoch", "Honaker online", "optimum of one epoch", "whole run", "lower bound", "one epoch over whole run")  # fmt: skip


def reproduce(directory: Path, size: str) -> Reproduction:
    """Return the tables, and draw the first.

    The worst relative error is over the Honaker entries and the optimal ones that had converged.
    """
    rows = tuple(row(rounds) for rounds in progress(list(PUBLISHED), "errors"))
    errors = [abs(item[2] / item[1] - 1) for item in rows]
    errors += [abs(item[5] / item[3] - 1) for item in rows if item[-1] == "converged"]
    shapes = tuple(by_shape(rounds) for rounds in progress(list(PUBLISHED), "bands and rank"))
    runs = tuple(on_a_run(rounds) for rounds in progress(list(PUBLISHED), f"a run of {EPOCHS} epochs"))
    return Reproduction(
        (
            Table("root loss", COLUMNS, rows),
            Table("bands and rank", ("rounds", "efficient, published", *map(str, SHAPES)), shapes),
            Table("a run", ON_A_RUN, runs),
        ),
        max(errors),
        figures=(draw(directory / "denisov_table2.png", rows),),
    )


def row(rounds: int) -> tuple[int, float, float, float, float, float, float, float, float, str]:
    """Return one line of the table, see `COLUMNS`."""
    honaker, optimal, efficient = PUBLISHED[rounds]
    workload, size = prefix_sum(rounds), BANDS_AND_RANK[rounds]
    solution = certified(workload)
    converged = solution.lower - PRINTED <= optimal <= solution.upper + PRINTED
    return (
        rounds,
        honaker,
        design("honaker_online", workload).root_loss,
        optimal,
        solution.lower,
        solution.upper,
        design("optimal", workload).root_loss,
        efficient,
        design("banded_low_rank", workload, bands=size, rank=size).root_loss,
        "converged" if converged else "not converged",
    )


def by_shape(rounds: int) -> tuple[Value, ...]:
    """Return the rounds, the published efficient entry and ours for each of `SHAPES`."""
    workload = prefix_sum(rounds)
    fits = (design("banded_low_rank", workload, bands=bands, rank=rank).root_loss for bands, rank in SHAPES)
    return (rounds, PUBLISHED[rounds][2], *fits)


def on_a_run(rounds: int) -> tuple[Value, ...]:
    """Return what a run of `EPOCHS` epochs of so many rounds costs with each mechanism."""
    families = ("honaker_online", "optimal")
    honaker, epoch = (restarted(design(name, prefix_sum(rounds)), EPOCHS).root_loss for name in families)
    workloads = of_run(rounds, EPOCHS)
    whole = design_run("optimal", workloads).root_loss
    return (rounds, honaker, epoch, whole, run_lower_bound(workloads), epoch / whole)


def draw(path: Path, rows: tuple[tuple[Any, ...], ...]) -> Path:
    """Draw to `path`, a PNG, the error of one sum, and by how much each is above the optimum; lines are ours."""
    with figure(path, 9.5, 3.8) as drawn:
        panels = drawn.subplots(1, 2)
        rounds = [item[0] for item in rows]
        columns = (("Honaker online", 1, 2), ("banded low rank", 7, 8), ("optimum", 3, 6))
        for colour, (label, *places) in zip(COLOURS, columns, strict=False):
            of_one = [[item[place] / math.sqrt(item[0]) for item in rows] for place in places]
            excess = [[100 * (item[place] / item[4] - 1) for item in rows] for place in places]
            for axes, (theirs, own) in zip(panels, (of_one, excess), strict=True):
                if axes is panels[0] or label != "Honaker online":  # far above the others
                    axes.plot(
                        rounds, theirs, "o", color=colour, fillstyle="none", label=f"{label}, published"
                    )
                    axes.plot(rounds, own, color=colour, label=f"{label}, ours")
        for axes, label in zip(panels, ("rms error of a sum", "root loss above the bound, %"), strict=True):
            axes.set_xscale("log", base=2)
            axes.set_xticks(rounds, [str(number) for number in rounds])
            axes.set(xlabel="rounds", ylabel=label)
        panels[0].set_ylim(bottom=0)
        legend_below(drawn, panels[0], 3)
    return path
