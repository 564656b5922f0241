"""Many cells of one task: each tuned and run with a few seeds, and with more where two mechanisms lie close together."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from experiments.pages.wording import Estimate, estimate
from experiments.reproduce.results import Results
from experiments.reproduce.trials import Cell, Trial
from experiments.reproduce.tuning import Chain, Seeds, tuned_rates, tuned_runs
from experiments.reproduce.work import Play, carry_out

CLOSE = 2.0  # standard errors of the difference

Name = TypeVar("Name")


@dataclass(frozen=True)
class Study:
    """What is run: chains of cells whose searches begin each other, and rows of cells that are held against each other.

    `start` is the learning rate at which the first search of a chain begins; `more` are the seeds that cells of a row
    have besides, where they lie close.
    """

    chains: tuple[tuple[Cell, ...], ...]
    rows: tuple[tuple[Cell, ...], ...]
    start: float
    seeds: Seeds
    more: tuple[int, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells."""
        return tuple(cell for chain in self.chains for cell in chain)

    def tuned(self) -> list[Chain[None]]:
        """Return the order of work, one for each chain."""
        return [tuned_runs(chain, self.start, self.seeds) for chain in self.chains]

    def rates(self, results: Results) -> dict[Cell, float]:
        """Return the learning rate of each cell whose tuning has ended."""
        return {cell: rate for chain in self.tuned() for cell, rate in tuned_rates(chain, results).items()}


def compute(path: Path, study: Study, play: Play, *, workers: int, mix_code: bool = False) -> None:
    """Make the runs of a study that the file of results `path` lacks; beside those of other code only with `mix_code`."""
    with Results.alone(path, mix_code=mix_code) as results:
        runs = len(study.cells) * len(study.seeds.final)
        carry_out(study.tuned(), results, play, workers=workers, runs=runs)
        rates = study.rates(results)
        close = close_cells(study, results, rates)
        chains = [_runs(cell, rates[cell], study.more) for cell in close]
        carry_out(chains, results, play, workers=workers, runs=len(close) * len(study.more))


def _runs(cell: Cell, rate: float, seeds: Sequence[int]) -> Chain[None]:
    """Yield the runs of a cell with these seeds, at a rate that is known."""
    yield [Trial(cell, rate, seed) for seed in seeds]


def close_cells(study: Study, results: Results, rates: dict[Cell, float]) -> list[Cell]:
    """Return the cells that lie closer than `CLOSE` standard errors to a neighbour in the order of their row.

    Only the first seeds decide, so that the answer does not hang on which further runs are there already.
    """
    close: list[Cell] = []
    for row in study.rows:
        found = {cell: first_runs(study, results, cell, rates[cell]) for cell in row}
        by_mean = ranked(found)
        near = {
            cell
            for (above, a), (below, b) in pairwise(by_mean)
            if not is_above(a, b)
            for cell in (above, below)
        }
        close += [cell for cell in row if cell in near]
    return close


def first_runs(study: Study, results: Results, cell: Cell, rate: float) -> Estimate | None:
    """Return the mean test accuracy, in percent, of the runs that every cell has; None where one is missing."""
    outcomes = [results.find(Trial(cell, rate, seed)) for seed in study.seeds.final]
    return estimate([100 * outcome.accuracy if outcome else None for outcome in outcomes])


def ranked(found: dict[Name, Estimate | None]) -> list[tuple[Name, Estimate]]:
    """Return those that have runs, the best one first."""
    known = [(name, item) for name, item in found.items() if item]
    return sorted(known, key=lambda pair: -pair[1].mean)


def is_above(a: Estimate, b: Estimate) -> bool:
    """Return whether a is above b by at least `CLOSE` standard errors of the difference of independent means.

    >>> is_above(Estimate(90.0, 0.3), Estimate(89.0, 0.3)), is_above(Estimate(90.0, 0.3), Estimate(89.0, 0.5))
    (True, False)
    """
    return a.mean > b.mean and a.mean - b.mean >= CLOSE * math.hypot(a.error or 0.0, b.error or 0.0)


def is_paired_above(a: Mapping[int, float], b: Mapping[int, float]) -> bool:
    """Return whether a is above b, accuracies by seed, by `CLOSE` standard errors of the mean difference over the seeds both have.

    >>> is_paired_above({0: 0.80, 1: 0.90}, {0: 0.79, 1: 0.89, 2: 0.5}), is_paired_above({0: 0.80, 1: 0.90}, {0: 0.79, 1: 0.92})
    (True, False)
    """
    found = estimate([a[seed] - b[seed] for seed in sorted({*a} & {*b})])
    return found is not None and found.error is not None and found.mean > max(0.0, CLOSE * found.error)


def order(found: Mapping[str, Mapping[int, float]]) -> str:
    """Return names in the order of their means: > where runs of the same seed tell neighbours apart, ≈ where they do not.

    >>> order({"b": {0: 0.80, 1: 0.90}, "a": {0: 0.82, 1: 0.92}, "c": {0: 0.79, 1: 0.905}, "d": {}})
    'a > b ≈ c'
    """
    means = {name: estimate(list(runs.values())) for name, runs in found.items()}
    return "".join(_ordered([(name, found[name]) for name, _ in ranked(means)]))


def _ordered(pairs: list[tuple[str, Mapping[int, float]]]) -> Iterator[str]:
    before: Mapping[int, float] | None = None
    for name, runs in pairs:
        if before:
            yield " > " if is_paired_above(before, runs) else " ≈ "
        yield name
        before = runs
