"""The ratio that each row must stay below: limits.json, beside this file, with when and how they were set.

A limit is `ROOM` times the ratio measured when it was set, and holds for a machine in the state that it was set in: a
measurement whose floor took `SAME` times as long, or as short, as then decides nothing. So a row that takes 1.5 times as
long is never passed, whatever the noise: with its floor at most 1.15 times as long its ratio is at least 1.5 / 1.15 = 1.3
times what it was, which is above the limit. And what is said to be slower took at least 1.25 / 1.15 = 1.08 times as long.
"""

import json
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.benchmark.tables import Results
from fedmf.compiling import available
from fedmf.errors import RunStoppedError, SettingError
from server.files import write_atomically

LIMITS = Path(__file__).parent / "limits.json"
ROOM = 1.25
SAME = 1.15  # below 1.5 / ROOM, so that a slip of 1.5 is above its limit or decides nothing
LOOKS = 3  # measurements, of which the one with the median ratio sets a limit or is held to it
UNDECIDED = 3  # the exit code where nothing is slower as far as can be told, and not all can be told


@dataclass(frozen=True)
class Limit:
    """What a row's ratio must not exceed, and the seconds that its floor took when that was set."""

    ratio: float
    floor: float


def read(path: Path = LIMITS) -> dict[str, Limit]:
    """Return {row: limit}. Raises `SettingError` where they were set for runs with other compiled code than ours."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    if document["numba"] != available():
        raise SettingError(
            f"check is true, but the limits were set {'with' if document['numba'] else 'without'} numba, which "
            f"{'can' if available() else 'cannot'} be used here: rows without it are slower. "
            f"{'Install the extra fast' if document['numba'] else 'Set them anew with limits=write'}."
        )
    measured = document["measured"]
    return {name: Limit(ratio, measured[name]["floor"]) for name, ratio in document["limits"].items()}


def refuse_unlimited(names: list[str], limits: Mapping[str, Limit]) -> None:
    """Raise `SettingError` where a row that is to be checked has no limit: it would never be said to slip."""
    missing = [name for name in names if name not in limits]
    if missing:
        raise SettingError(
            f"check is true, but no limit is set for {', '.join(missing)}; limits=write sets those of the rows chosen."
        )


def write(results: Results, command: str, path: Path = LIMITS) -> None:
    """Set the limits of the rows measured, and say of each when it was set.

    Those of other rows stay, unless they were set for runs with other compiled code than ours.
    """
    old = json.loads(path.read_text()) if path.exists() else {}
    if old.get("numba") != available():
        old = {"limits": {}, "measured": {}}
    today = date.today().isoformat()
    measured = {
        name: {"ratio": round(row["ratio"], 5), "floor": float(f"{row['floor']:.4g}"), "date": today}
        for name, row in results.items()
    }
    document = {
        "how": f"{ROOM} times the ratio measured, the median of {LOOKS} measurements, by `{command}`; floor in CPU seconds",
        "machine": processor(),
        "numba": available(),
        "versions": {name: version(name) for name in ("numpy", "torch")},
        "limits": old["limits"]
        | {name: float(f"{ROOM * row['ratio']:.3g}") for name, row in results.items()},
        "measured": old["measured"] | measured,
    }
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode())


def median_of_looks(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement with the median ratio of `LOOKS` measurements."""
    return sorted((look() for _ in range(LOOKS)), key=lambda row: float(row["ratio"]))[LOOKS // 2]


def undecided(results: Results, limits: Mapping[str, Limit]) -> dict[str, float]:
    """Return the rows whose floors took longer or shorter than when their limits were set, and how many times as long."""
    times = {name: row["floor"] / limits[name].floor for name, row in results.items()}
    return {name: factor for name, factor in times.items() if not 1 / SAME <= factor <= SAME}


def hold(results: Results, limits: Mapping[str, Limit]) -> None:
    """Hold all rows to their limits, as far as can be told.

    Raises `RunStoppedError` that names the rows above their limits, and else `SystemExit` with `UNDECIDED` where rows are
    undecided, which are named on stderr.
    """
    unlike = undecided(results, limits)
    slipped = [
        f"{name} (ratio {row['ratio']:.3g}, limit {limits[name].ratio:.3g})"
        for name, row in results.items()
        if name not in unlike and row["ratio"] > limits[name].ratio
    ]
    if unlike:
        print(
            f"undecided, as their floors took other times than when their limits were set: {_factors(unlike)}. The machine is "
            f"busy, or another one, or was busy then. Check again on a quiet machine, or set the limits anew on it "
            f"with limits=write; {LIMITS.name} says how and when they were set.",
            file=sys.stderr,
        )
    if slipped:
        raise RunStoppedError(
            f"slower than their limits: {', '.join(slipped)}. {LIMITS.name} says how and when the limits were set."
        )
    if unlike:
        sys.exit(UNDECIDED)


def _factors(unlike: Mapping[str, float]) -> str:
    return ", ".join(f"{name} (floor {factor:.2f} times as long)" for name, factor in unlike.items())


def processor() -> str:
    """Return the model of the processor, its architecture where the system does not say more."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine()
    )
