"""provenance.json of a run: with what, where and when each of its sessions ran, and the time that it took.

A session is one call that began the run or went on with it. Its entry is written when it begins and brought up to date
while it runs, so that one that is killed leaves all but its last seconds. Nothing that a resume compares lies in it.
"""

import contextlib
import math
import os
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from client.training import pick_device
from experiments.run_files.directory import PRIVACY, PROVENANCE, RunDirectory
from experiments.run_files.provenance import PACKAGES, machine, software
from experiments.run_files.values import PROVENANCE as KINDS
from experiments.run_files.values import read_json
from fedmf.errors import RunDirectoryError
from server.state import Release, ServerState

ACCEPT_COPY, WITHOUT_UNREADY = "accept_copy", "unready_nodes=without"  # permissions that a statement names
_EVERY = 10.0  # seconds between two records
_COUNTS = {
    "local": "this process and the worker processes that it started",
    "ray": "this process alone, not Ray's, in which the clients train",
    "deployment": "the server's process alone, not the nodes, on which the clients train",
}


class Clock:
    """When a session began, and what it has taken since; `engine` says which processes play its clients."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._began, self._wall, self._cpu = datetime.now(UTC), time.perf_counter(), self._cpu_now()

    def read(self) -> dict[str, Any]:
        """Return the times of the session so far."""
        return {
            "started": _text(self._began),
            "until": _text(datetime.now(UTC)),
            "wall_seconds": time.perf_counter() - self._wall,
            "cpu_seconds": max(0.0, self._cpu_now() - self._cpu),
            "cpu_counts": _COUNTS[self._engine],
        }

    def _cpu_now(self) -> float:
        """Return the CPU seconds of this process, and of its workers, ended or running, where it has any."""
        own = _used(resource.RUSAGE_SELF)
        return own + _used(resource.RUSAGE_CHILDREN) + _running() if self._engine == "local" else own


class Provenance:
    """The entry of a session in provenance.json, and those before it; `first_round` is the first that it plays."""

    def __init__(
        self,
        directory: RunDirectory,
        clock: Clock,
        accelerator: str | None,
        first_round: int,
        bundle: str | None = None,
        allows: Sequence[str] = (),
    ) -> None:
        self._directory, self._clock = directory, clock
        self._earlier = _earlier_sessions(directory.path / PROVENANCE)
        if (first := _first_round(self._earlier)) > 1 and first_round > 1:
            print(
                f"warning: {PROVENANCE} does not say with what rounds 1 to {min(first, first_round) - 1} were played; {PRIVACY} "
                "will say so.",
                file=sys.stderr,
            )
        used = software() | {"bundle": bundle}
        self._fixed = {
            "first_round": first_round,
            "allows": list(allows),
            "software": used,
            "machine": machine(accelerator),
        }
        if first_round > 1:
            _say_other_arithmetic(self._earlier, used)
            _say_other_libraries(self._earlier, used)
        self._recorded = 0.0
        self._ended: dict[str, Any] | None = None

    def write(self) -> None:
        """Write the entry as it is now, after those of earlier sessions."""
        session = {**(self._ended or self._clock.read()), **self._fixed}
        self._directory.write_json(PROVENANCE, {"sessions": [*self._earlier, session]})
        self._recorded = time.perf_counter()

    def end(self) -> float:
        """Stop the session's clock; return the wall seconds of all recorded sessions, which then agree with the record."""
        self._ended = self._clock.read()
        return sum(float(session.get("wall_seconds") or 0) for session in (*self._earlier, self._ended))

    def allowed(self, what: str) -> bool:
        """Return whether any session of the run was started with this permission."""
        return any(what in (session.get("allows") or ()) for session in (*self._earlier, self._fixed))

    def code(self) -> list[dict[str, Any]]:
        """Return with what each recorded session played, from which round on, as the statement names it."""
        sessions = [*self._earlier, self._fixed]
        unknown = [{"first_round": 1, "code": None}] if _first_round(sessions) > 1 else []
        named = [
            {"first_round": session.get("first_round"), **(session.get("software") or {})}
            for session in sessions
        ]
        return [*unknown, *named]

    def on_release(self, state: ServerState, release: Release) -> None:
        """Bring the entry up to date, if it has not been for a while."""
        if time.perf_counter() - self._recorded >= _EVERY:
            self.write()


def accelerator_name(device: str) -> str | None:
    """Return the kind of accelerator that the setting `client.device` means on this machine, None for none."""
    chosen = pick_device(device)
    return torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else None


def _first_round(sessions: list[Any]) -> float:
    """Return the first round that any of the sessions played, infinity where there is none."""
    return min((int(session.get("first_round") or 1) for session in sessions), default=math.inf)


def _earlier_sessions(file: Path) -> list[Any]:
    """Return the entries of earlier sessions. A damaged file keeps nobody from going on with a run: it is put aside."""
    if not file.exists():
        return []
    try:
        sessions: list[Any] = read_json(file, KINDS)["sessions"]
    except (OSError, RunDirectoryError) as error:
        aside = file.with_name(f"{file.name}.damaged")
        file.replace(aside)
        print(
            f"warning: {file} cannot be read ({error}); it is kept as {aside.name}, and another one is begun.",
            file=sys.stderr,
        )
        return []
    return sessions


def _say_other_arithmetic(earlier: list[Any], software: Mapping[str, Any]) -> None:
    """Say that bits may differ from here on, where numba computed and cannot now, or the other way round."""
    recorded = [entry["software"] for entry in earlier if "numba" in (entry.get("software") or {})]
    if recorded and (recorded[-1]["numba"] is None) != (software["numba"] is None):
        kinds = ("with", "without") if software["numba"] is None else ("without", "with")
        print(
            f"warning: the rounds before were played {kinds[0]} numba and these are {kinds[1]} it: sums are rounded otherwise, "
            "so that bits may differ from those of a run of one kind; masks, the law of the noise, the bounds and epsilon "
            "are the same.",
            file=sys.stderr,
        )


def _say_other_libraries(earlier: list[Any], software: Mapping[str, Any]) -> None:
    """Say which libraries have another version than when the run was played last; the record and the statement name both."""
    before: Mapping[str, Any] = next(
        (entry["software"] for entry in reversed(earlier) if entry.get("software")), {}
    )
    others = [
        f"{name} {before[name]} before, {software[name]} now"
        for name in ("python", *PACKAGES)
        if name in before and before[name] != software[name]
    ]
    if others:
        print(
            f"warning: other libraries than before go on with this run: {'; '.join(others)}. What clients compute may differ in "
            f"its last bits; {PROVENANCE} and {PRIVACY} name both.",
            file=sys.stderr,
        )


def _used(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def _running() -> float:
    """Return the CPU seconds of the child processes that still run, 0 where the system does not tell."""
    total, tick = 0, os.sysconf("SC_CLK_TCK")
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or a child that has just ended
            for child in children.read_text().split():
                # utime, stime, cutime and cstime come after the name in brackets, which may hold anything.
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15]))
    return total / tick


def _text(moment: datetime) -> str:
    """Return a time in UTC as ISO 8601 writes it, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
