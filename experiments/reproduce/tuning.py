"""The search for a learning rate: for each cell of a chain its rate is searched, then its runs are made."""

import statistics
from collections.abc import Callable, Iterator, Sequence

from experiments.reproduce.results import Outcome
from experiments.reproduce.study import Cell, Chain, Study, Trial

FACTOR = 1.5  # between neighbouring rates of the grid
FIRST_TUNING_SEED = 100  # no draw of a reported run has been seen by its tuning

Play = Callable[[Sequence[Trial]], list[Outcome] | None]
"""Returns the outcomes of trials, None where they are not there and nothing is computed."""


def rate_at(start: float, place: int) -> float:
    """Return the rate of the grid `place` steps above `start`, in four digits.

    >>> rate_at(0.3, 0), rate_at(0.3, 1), rate_at(0.3, -2)
    (0.3, 0.45, 0.1333)
    """
    return float(f"{start * FACTOR**place:.4g}")


def rates(chain: Chain, study: Study, play: Play) -> Iterator[tuple[Cell, float]]:
    """Yield the cells of a chain with their tuned rates, as far as `play` has outcomes."""
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + chain.tuning)
    place = 0
    for cell in chain.cells:

        def score(place: int, cell: Cell = cell) -> float | None:
            found = play(
                [Trial(cell, rate_at(chain.start, place), seed, study["held_out"]) for seed in seeds]
            )
            return None if found is None else statistics.fmean(outcome.accuracy for outcome in found)

        found = best_place(score, place)
        if found is None:
            return
        place = found
        yield cell, rate_at(chain.start, place)


def best_place(score: Callable[[int], float | None], place: int) -> int | None:
    """Return the place on the grid with the best score, searched from `place` on; None where a score is missing.

    The best place so far and both its neighbours are tried until no neighbour is better. A neighbour that is as good is
    not better, so that the search ends on a plateau.

    >>> best_place(lambda place: -abs(place - 3), 0), best_place(lambda place: 0.0, 5)
    (3, 5)
    """
    known: dict[int, float] = {}
    while missing := [near for near in (place - 1, place, place + 1) if near not in known]:
        for near in missing:
            found = score(near)
            if found is None:
                return None
            known[near] = found
        place = max((place, *sorted(known)), key=known.__getitem__)  # the first of equals
    return place
