"""The order of work: for each cell the learning rate that suits it is searched, then its runs are made.

A chain is a generator that yields trials and is sent their outcomes: nothing here knows who computes them.
"""

import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from experiments.reproduce.results import Results
from experiments.reproduce.trials import Cell, Outcome, Trial

FACTOR = 1.5  # between neighbouring rates of the grid

T = TypeVar("T")
Chain = Generator[list[Trial], list[Outcome], T]


@dataclass(frozen=True)
class Seeds:
    """How cells are run: `tuning` seeds score a rate on a share `held_out` of the clients, `final` seeds are reported.

    The two should have no seed in common: no draw of a reported run has then been seen by its tuning.
    """

    tuning: tuple[int, ...]
    final: tuple[int, ...]
    held_out: float


def rate_at(start: float, place: int) -> float:
    """Return the rate of the grid `place` steps above `start`, in four digits.

    >>> rate_at(0.3, 0), rate_at(0.3, 1), rate_at(0.3, -2)
    (0.3, 0.45, 0.1333)
    """
    return float(f"{start * FACTOR**place:.4g}")


def tuned_runs(cells: Sequence[Cell], start: float, seeds: Seeds) -> Chain[None]:
    """Tune and run cells that are neighbours, one after the other; each search begins where the last one ended."""
    place = 0
    for cell in cells:

        def at(place: int, cell: Cell = cell) -> list[Trial]:
            return [Trial(cell, rate_at(start, place), seed, seeds.held_out) for seed in seeds.tuning]

        place = yield from best_place(at, place)
        yield [Trial(cell, rate_at(start, place), seed) for seed in seeds.final]


def tuned_rates(chain: Chain[None], results: Results) -> dict[Cell, float]:
    """Return the rate of each cell whose tuning has ended, by going through the chain with the outcomes that are there."""
    rates: dict[Cell, float] = {}
    outcomes: list[Outcome] | None = None
    try:
        while True:
            batch = chain.send(outcomes)  # type: ignore[arg-type]
            if not batch[0].held_out:
                rates[batch[0].cell] = batch[0].learning_rate
                outcomes = []  # the runs themselves decide nothing
                continue
            outcomes = [known for trial in batch if (known := results.find(trial))]
            if len(outcomes) < len(batch):
                return rates
    except StopIteration:
        return rates


def best_place(trials_at: Callable[[int], list[Trial]], place: int) -> Chain[int]:
    """Return the place on the grid whose trials have the best mean accuracy, searched from `place` on.

    A line search: the best place so far and both its neighbours are tried until no neighbour is better. A neighbour
    that is as good is not, so that the search ends on a plateau.
    """
    means: dict[int, float] = {}
    while missing := [near for near in (place - 1, place, place + 1) if near not in means]:
        trials = [trials_at(near) for near in missing]
        outcomes = iter((yield [trial for batch in trials for trial in batch]))
        for near, batch in zip(missing, trials, strict=True):
            means[near] = statistics.fmean(next(outcomes).accuracy for _ in batch)
        place = max((place, *sorted(means)), key=means.__getitem__)  # the first of equals
    return place
