"""One row of the benchmark: two things to run in turns, and the ratio of what they cost.

Machines are shared and noisy: times are CPU time, with one thread; a row and its floor take turns, so that a busy
minute meets both, and the turn with the median ratio counts. Compiling, and loading compiled code, is in no turn:
everything is warmed up before the first, and a turn in which numba worked is played again.
"""

import importlib
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

_SHORTEST_TURN = 2e-3  # seconds: shorter things are called several times a turn
_BUDGET = 20.0  # seconds of a row, after which it is content with _FEWEST turns
_FEWEST = 3
_WARMING = 10  # calls within which everything has been compiled

Clock = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """What we do, `run`, and the least that any implementation of it would do, `floor`.

    `floor_is` describes the floor. `goal` is the ratio to stay below, None where the floor is for orientation only. One
    call of `run` does the work of `units` calls of `floor`.
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
    """Return the wall clock once the CUDA device has finished: its work is no CPU time."""
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(row: Row, repeats: int, clock: Clock = cpu_clock) -> dict[str, Any]:
    """Return the row's ratio, seconds and floor, those of the turn with the median ratio.

    A slow row gets fewer than `repeats` turns, but not fewer than three.
    """
    begun = time.perf_counter()
    ours, floor = _Stopwatch(row.run, clock, row.units), _Stopwatch(row.floor, clock)
    turns: list[tuple[float, float, float]] = []
    while len(turns) < repeats and (len(turns) < _FEWEST or time.perf_counter() - begun < _BUDGET):
        spent, least = ours(), floor()
        turns.append((spent / least, spent, least))
    ratio, seconds, least = sorted(turns)[(len(turns) - 1) // 2]
    found = {"ratio": ratio, "seconds": seconds, "floor": least}
    return found | {"goal": row.goal, "floor_is": row.floor_is, "turns": len(turns)}


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


def compiled_anything(action: Callable[[], object]) -> bool:
    """Run `action` and return whether numba was loaded, or compiled or loaded a function, while it ran."""
    if "numba" not in sys.modules:
        action()
        return "numba" in sys.modules
    event = importlib.import_module("numba.core.event")
    with event.install_recorder("numba:compiler_lock") as recorder:
        action()
    return bool(recorder.buffer)
