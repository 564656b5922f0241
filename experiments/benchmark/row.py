"""One row of the benchmark: things to run in turns, and the ratio of what they cost.

Machines are shared and noisy: times are CPU time, with one thread; kernel and floor take turns, so that a busy
minute meets both, and the turn whose ratio is the median is the one that counts. Compiling and loading compiled code
is in no turn: everything is warmed up before the first, and a turn in which numba worked is played again.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from experiments.benchmark.compilation import compiled_anything

_SHORTEST_TURN = 2e-3  # seconds: shorter things are called several times a turn
_BUDGET = 20.0  # seconds of a row, after which it is content with _FEWEST turns
_FEWEST = 3
_WARMING = 10  # calls within which everything has been compiled

Clock = Callable[[], float]
Cost = Callable[[], float]  # plays a round and returns its CPU seconds
Turn = tuple[float, dict[str, float]]  # what the floor cost, and each of the others


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


def cpu_clock() -> float:
    """Return the CPU seconds of this process."""
    return time.process_time()


def cuda_clock() -> float:
    """Return the seconds of the wall clock, once the CUDA device has done what it was asked: its work is no CPU time."""
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(
    row: Row, repeats: int, others: Mapping[str, Cost] | None = None, clock: Clock = cpu_clock
) -> dict[str, Any]:
    """Return the row's ratio, floor and time in seconds of `clock`, those of the turn with the median ratio.

    Of a slow row there are fewer than `repeats` turns, but not fewer than three. `others` are systems that do the work
    of a floor each, and say how many CPU seconds it took them; they play in the same turns, and each gets its own
    ratio, floor and seconds, under "others".
    """
    others = others or {}
    begun, budget = time.perf_counter(), _BUDGET * (1 + len(others))
    ours, floor = _Stopwatch(row.run, clock, row.units), _Stopwatch(row.floor, clock)
    turns: list[Turn] = []
    while len(turns) < repeats and (len(turns) < _FEWEST or time.perf_counter() - begun < budget):
        spent = {"": ours()} | {name: cost() for name, cost in others.items()}
        turns.append((floor(), spent))
    result = _median(turns, "") | {"goal": row.goal, "floor_is": row.floor_is, "turns": len(turns)}
    return result | ({"others": {name: _median(turns, name) for name in others}} if others else {})


def _median(turns: list[Turn], name: str) -> dict[str, Any]:
    """Return ratio, seconds and floor of the turn in which the ratio of `name` is the median."""
    by_ratio = sorted((spent[name] / floor, spent[name], floor) for floor, spent in turns)
    return dict(zip(("ratio", "seconds", "floor"), by_ratio[(len(by_ratio) - 1) // 2], strict=True))


class _Stopwatch:
    """Measures an action of this process, in turns of sensible length; warms it up first."""

    def __init__(self, action: Callable[[], object], clock: Clock, units: int = 1) -> None:
        """Call `action`, which does `units` units of work, until it compiles nothing any more."""
        self._action, self._clock = action, clock
        self._units, self._calls, self._seconds = 1, 1, 0.0
        for _ in range(_WARMING):
            if not compiled_anything(action):
                break
        self._calls = max(1, math.ceil(_SHORTEST_TURN / max(self(), 1e-7)))
        self._units = units

    def __call__(self) -> float:
        """Return the seconds of one unit, of a turn in which nothing was compiled."""
        for _ in range(_WARMING):
            if not compiled_anything(self._turn):
                return self._seconds / (self._calls * self._units)
        raise RuntimeError(f"{_WARMING} turns in a row compiled something: the row cannot be timed.")

    def _turn(self) -> None:
        begun = self._clock()
        for _ in range(self._calls):
            self._action()
        self._seconds = self._clock() - begun
