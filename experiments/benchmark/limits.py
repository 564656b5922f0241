"""The ratio that each row must stay below: limits.json, beside this file, with when and how they were set.

A limit is `ROOM` times the ratio measured when it was set, so that noise stays within it and a row that became 1.5
times as slow does not. Ratios depend on the machine less than times do, but they do: limits hold for the machine
that they were set on, and for runs with the same compiled code.
"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.run_files.provenance import processor
from fedmf.errors import RunStoppedError, SettingError
from fedmf.mechanisms.compiled import available

LIMITS = Path(__file__).parent / "limits.json"
ROOM = 1.25  # a slip of 1.5 is above it
LOOKS = 3  # a limit is set from the median of so many measurements; a row above its limit is measured again till then


def read(path: Path = LIMITS) -> dict[str, float]:
    """Return {row: limit}. Raises `SettingError` where they were set for runs with other compiled code than ours."""
    if not path.exists():
        return {}
    document = json.loads(path.read_text())
    if document["numba"] != available():
        raise SettingError(
            f"check is true, but the limits were set {'with' if document['numba'] else 'without'} numba, which is "
            f"{'' if available() else 'not '}installed here: rows without it are slower. "
            f"{'Install the extra fast' if document['numba'] else 'Set them anew with limits=write'}."
        )
    limits: dict[str, float] = document["limits"]
    return limits


def refuse_unlimited(names: list[str], limits: Mapping[str, float]) -> None:
    """Raise `SettingError` where a row that is to be checked has no limit: it would never be said to slip."""
    missing = [name for name in names if name not in limits]
    if missing:
        raise SettingError(
            f"check is true, but no limit is set for {', '.join(missing)}; limits=write sets those of the rows chosen."
        )


def write(ratios: Mapping[str, float], command: str, path: Path = LIMITS) -> None:
    """Set the limits of the rows measured, and say of each when it was set.

    Those of other rows stay, unless they were set for runs with other compiled code than ours.
    """
    old = json.loads(path.read_text()) if path.exists() else {}
    if old.get("numba") != available():
        old = {"limits": {}, "measured": {}}
    today = date.today().isoformat()
    measured = old["measured"] | {
        name: {"ratio": round(ratio, 5), "date": today} for name, ratio in ratios.items()
    }
    document = {
        "how": f"{ROOM} times the ratio measured, the median of {LOOKS} measurements, by `{command}`",
        "machine": processor(),
        "numba": available(),
        "versions": {name: version(name) for name in ("numpy", "torch")},
        "limits": old["limits"] | {name: float(f"{ROOM * ratio:.3g}") for name, ratio in ratios.items()},
        "measured": measured,
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def median_of_looks(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement with the median ratio of `LOOKS` measurements."""
    return sorted((look() for _ in range(LOOKS)), key=_ratio)[LOOKS // 2]


def least_of_looks(name: str, look: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any]:
    """Return the first measurement within `limit`, or of `LOOKS` the one with the least ratio.

    A busy second makes a row slow once; a row that has become slow stays so.
    """
    best = look()
    for _ in range(LOOKS - 1):
        if best["ratio"] <= limit:
            break
        print(f"  {name}: {best['ratio']:.3g} is above {limit:.3g}; again", file=sys.stderr, flush=True)
        best = min(best, look(), key=_ratio)
    return best


def refuse_slips(ratios: Mapping[str, float], limits: Mapping[str, float]) -> None:
    """Raise `RunStoppedError` that names the rows above their limits, if there are any."""
    slipped = [
        f"{name} (ratio {ratio:.3g}, limit {limits[name]:.3g})"
        for name, ratio in ratios.items()
        if ratio > limits[name]
    ]
    if slipped:
        raise RunStoppedError(
            f"slower than their limits, {LOOKS} times of {LOOKS}: {', '.join(slipped)}. {LIMITS.name} says how and when "
            "the limits were set."
        )


def _ratio(measured: Mapping[str, Any]) -> float:
    return float(measured["ratio"])
