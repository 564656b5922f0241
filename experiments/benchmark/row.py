"""One row of the benchmark: two things to run in turns, the ratio of what they cost, and the limit that it must not exceed.

Machines are shared and noisy: times are CPU time, with one thread; a row and its floor take turns, so that a busy
minute meets both, and the turn with the median ratio counts. What is compiled or loaded at first calls is in no turn.

A row whose time became 1.5 times as long never passes `check=true`: a ratio must stay within `ROOM` times the one that was
measured when its limit was set; where its floor took more than `SAME` times as long as then, or as short, the machine is in
another state, and the row is undecided.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.reproduce.tools import processor
from fedmf.compiling import loops
from fedmf.errors import RunStoppedError, SettingError
from server.files import write_atomically

LIMITS = Path(__file__).with_name("limits.json")
ROOM = 1.25
SAME = 1.15  # below 1.5 / ROOM, so that a slip of 1.5 is above its limit or undecided
UNDECIDED = 3  # exit code

_SHORTEST_TURN = 2e-3  # seconds: shorter things are called several times a turn
_BUDGET = 20.0  # seconds of a row, after which it is content with _FEWEST turns
_FEWEST = 3
_WARMING = 2  # calls before the first turn

Clock = Callable[[], float]
Results = Mapping[str, Mapping[str, Any]]


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


def cuda_clock() -> float:
    """Return the wall clock once the CUDA device has finished: its work is no CPU time."""
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(row: Row, repeats: int, clock: Clock = time.process_time) -> dict[str, Any]:
    """Return the row's ratio, seconds and floor, those of the turn with the median ratio.

    A slow row gets fewer than `repeats` turns, but not fewer than three.
    """
    begun = time.perf_counter()
    ours, floor = warmed(row.run, clock), warmed(row.floor, clock)
    turns: list[tuple[float, float, float]] = []
    while len(turns) < repeats and (len(turns) < _FEWEST or time.perf_counter() - begun < _BUDGET):
        spent, least = ours() / row.units, floor()
        turns.append((spent / least, spent, least))
    ratio, seconds, least = sorted(turns)[(len(turns) - 1) // 2]
    return {
        "ratio": ratio,
        "seconds": seconds,
        "floor": least,
        "goal": row.goal,
        "floor_is": row.floor_is,
        "turns": len(turns),
    }


def warmed(action: Callable[[], object], clock: Clock) -> Clock:
    """Return what measures a call of `action`, in turns of sensible length, after a few calls that are not measured."""

    def seconds(calls: int) -> float:
        begun = clock()
        for _ in range(calls):
            action()
        return (clock() - begun) / calls

    least = max(1e-7, min(seconds(1) for _ in range(_WARMING)))
    return partial(seconds, max(1, math.ceil(_SHORTEST_TURN / least)))


def read_limits(rows: Iterable[str]) -> Results:
    """Return {row: what was measured when its limit was set}. Raises `SettingError` where a row has no limit here."""
    known: dict[str, Any] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    is_compiled = loops() is not None
    measured: Results = known["measured"] if known.get("numba") == is_compiled else {}
    if missing := [row for row in rows if row not in measured]:
        compiled = "with" if is_compiled else "without"
        raise SettingError(
            f"check is true, but {missing[0]} has no limit {compiled} numba. Set it with limits=true."
        )
    return measured


def write_limits(results: Results) -> None:
    """Set the limits of the rows measured; those of other rows stay, unless set with other compiled code than ours."""
    today = {"date": date.today().isoformat(), "machine": processor()}
    new = {row: {"ratio": found["ratio"], "floor": found["floor"], **today} for row, found in results.items()}
    document = {"numba": loops() is not None, "measured": {**read_limits(()), **new}}
    write_atomically(LIMITS, (json.dumps(document, indent=2) + "\n").encode())


def check_limits(results: Results, measured: Results) -> None:
    """Raise `RunStoppedError` that names the rows above their limits, and else exit with `UNDECIDED` if some are undecided."""
    slow, undecided = [], []
    for row, found in results.items():
        busy, limit = found["floor"] / measured[row]["floor"], ROOM * measured[row]["ratio"]
        if not 1 / SAME <= busy <= SAME:
            undecided.append(f"{row} (floor {busy:.2f} times as long)")
        elif found["ratio"] > limit:
            slow.append(f"{row} (ratio {found['ratio']:.3g}, limit {limit:.3g})")
    if undecided:
        print(
            f"undecided, as the machine is busier or another than when limits were set: {', '.join(undecided)}.",
            file=sys.stderr,
        )
    if slow:
        raise RunStoppedError(
            f"slower than their limits: {', '.join(slow)}. {LIMITS.name} has when they were set."
        )
    if undecided:
        sys.exit(UNDECIDED)
