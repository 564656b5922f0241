"""One row of the benchmark: two things to run in turns, and the ratio of what they cost.

Machines are shared and noisy: times are CPU time of this process, with one thread; kernel and floor take
turns, so that a busy minute meets both; the medians are compared.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_SHORTEST_TURN = 2e-3  # seconds: shorter things are called several times a turn
_BUDGET = 20.0  # seconds of a row, after which it is content with _FEWEST turns
_FEWEST = 3


@dataclass(frozen=True)
class Row:
    """What we do, `run`, beside the least that any implementation of it would do, `floor`.

    `floor_is` says what the floor is. `goal` is the ratio to stay below, None where the floor is only a yardstick. One call of `run` does the
    work of `units` calls of `floor`.
    """

    run: Callable[[], object]
    floor: Callable[[], object]
    floor_is: str
    goal: float | None = None
    units: int = 1


def measure(row: Row, repeats: int) -> dict[str, Any]:
    """Return the row's ratio, floor and time in CPU seconds, medians over `repeats` turns.

    Of a slow row there are fewer turns, but not fewer than three.
    """
    begun = time.perf_counter()
    calls = [_calls_for(action) for action in (row.run, row.floor)]
    turns: list[tuple[float, float]] = []
    while len(turns) < repeats and (len(turns) < _FEWEST or time.perf_counter() - begun < _BUDGET):
        turns.append((_cpu_seconds(row.run, calls[0]), _cpu_seconds(row.floor, calls[1])))
    run, floor = (statistics.median(column) for column in zip(*turns, strict=True))
    seconds = run / row.units
    return {
        "ratio": seconds / floor,
        "goal": row.goal,
        "seconds": seconds,
        "floor": floor,
        "floor_is": row.floor_is,
        "turns": len(turns),
    }


def _calls_for(action: Callable[[], object]) -> int:
    """Return how many calls make a turn of sensible length; warms up on the way."""
    action()
    return max(1, math.ceil(_SHORTEST_TURN / max(_cpu_seconds(action, 1), 1e-7)))


def _cpu_seconds(action: Callable[[], object], calls: int) -> float:
    """Return the CPU seconds of one of `calls` calls."""
    begun = time.process_time()
    for _ in range(calls):
        action()
    return (time.process_time() - begun) / calls
