"""Limits of the rows in limits.json: a row whose time became 1.5 times as long never passes `check=true`.

A ratio must stay within `ROOM` times the one that was measured when its limit was set; where its floor took more than `SAME`
times as long as then, or as short, the machine is in another state, and the row is undecided.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from experiments.reproduce.page import processor
from fedmf.compiling import available
from fedmf.errors import RunStoppedError, SettingError
from server.files import write_atomically

FILE = Path(__file__).with_name("limits.json")
ROOM = 1.25
SAME = 1.15  # below 1.5 / ROOM, so that a slip of 1.5 is above its limit or undecided
UNDECIDED = 3  # exit code

Results = Mapping[str, Mapping[str, Any]]


def read(rows: Sequence[str], path: Path = FILE) -> Results:
    """Return {row: what was measured when its limit was set}. Raises `SettingError` where a row has no limit here."""
    known = json.loads(path.read_text()) if path.exists() else {}
    if known and known["numba"] != available():
        raise SettingError(
            f"check is true, but the limits were set {'with' if known['numba'] else 'without'} numba, which "
            f"{'can' if available() else 'cannot'} be used here. Set them with limits=true."
        )
    if missing := [row for row in rows if row not in known.get("measured", {})]:
        raise SettingError(f"check is true, but {missing[0]} has no limit. Set it with limits=true.")
    measured: Results = known["measured"]
    return measured


def write(results: Results, path: Path = FILE) -> None:
    """Set the limits of the rows measured; those of other rows stay, unless set with other compiled code than ours."""
    old = json.loads(path.read_text()) if path.exists() else {}
    kept = old["measured"] if old.get("numba") == available() else {}
    today = {"date": date.today().isoformat(), "machine": processor()}
    new = {row: {"ratio": found["ratio"], "floor": found["floor"], **today} for row, found in results.items()}
    write_atomically(
        path, (json.dumps({"numba": available(), "measured": kept | new}, indent=2) + "\n").encode()
    )


def check(results: Results, measured: Results) -> None:
    """Raise `RunStoppedError` that names the rows above their limits, and else exit with `UNDECIDED` if some are undecided."""
    times = {row: found["floor"] / measured[row]["floor"] for row, found in results.items()}
    unlike = {row: factor for row, factor in times.items() if not 1 / SAME <= factor <= SAME}
    limits = {row: ROOM * measured[row]["ratio"] for row in results}
    slow = [row for row, found in results.items() if row not in unlike and found["ratio"] > limits[row]]
    if unlike:
        named = ", ".join(f"{row} (floor {factor:.2f} times as long)" for row, factor in unlike.items())
        print(
            f"undecided, as the machine is busier or another than when limits were set: {named}.",
            file=sys.stderr,
        )
    if slow:
        named = ", ".join(
            f"{row} (ratio {results[row]['ratio']:.3g}, limit {limits[row]:.3g})" for row in slow
        )
        raise RunStoppedError(f"slower than their limits: {named}. {FILE.name} has when they were set.")
    if unlike:
        sys.exit(UNDECIDED)
