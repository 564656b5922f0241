"""Says on stderr where a computation of minutes stands, and about how long the rest of it takes."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

PAUSE = 2.0  # seconds between two lines, so that short steps say nothing

T = TypeVar("T")


def told(
    items: Sequence[T],
    words: Callable[[T], str],
    cost: Callable[[T], float],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """Yield the items of a table, and tell before each in `words` which it is, of how many, and about what time is left.

    That is what the items before it took, in proportion to `cost`, of any unit and above 0: an estimate, for what an
    iteration takes is not known beforehand.
    """
    costs = [cost(item) for item in items]
    started = last = clock()
    for index, item in enumerate(items):
        now = clock()
        if index == 0 or now - last >= PAUSE:
            last = now
            left = (now - started) * sum(costs[index:]) / sum(costs[:index]) if index else None
            print(line(index, len(items), words(item), left), file=sys.stderr, flush=True)
        yield item


def line(done: int, items: int, words: str, left: float | None) -> str:
    """Return where a table stands; `left` are seconds, None where nothing is known.

    >>> line(2, 7, "prefix sums, 512 rounds", 95.0)
    '2/7 | time left about 2 min | prefix sums, 512 rounds'
    >>> line(0, 7, "prefix sums, 256 rounds", None)
    '0/7 | time left unknown | prefix sums, 256 rounds'
    """
    minutes = "unknown" if left is None else f"about {left / 60:.0f} min" if left >= 60 else "under 1 min"
    return f"{done}/{items} | time left {minutes} | {words}"
