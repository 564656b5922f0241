"""Processes that are kept running: started, started again when they end, and ended together."""

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from experiments.deployment.killing import KILLED, still_there
from experiments.deployment.lifeline import undisturbed

log = logging.getLogger(__name__)

RESTART = 75  # exit code of a process that asks to be started again at once
GRACE = 10.0  # seconds for a process to end by itself
_STEADY = 60.0  # seconds: a process that lived so long and ends has no fault of its start
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0  # seconds before a start
_PAUSE = 0.2  # seconds between two looks

Start = Callable[[], subprocess.Popen[bytes]]


@dataclass
class _Kept:
    """A process that is kept running: since when, or from when on it may be started again."""

    start: Start
    process: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    due: float = 0.0
    wait: float = field(default=_FIRST_WAIT)
    said: int | None = None  # the exit code whose meaning was logged last


class Supervisor:
    """Keeps processes running, each by name; a context, at whose end none is left.

    `meanings` of exit codes are logged in place of the code, once for as often as a process ends with it in a row.
    """

    def __init__(self, starts: Mapping[str, Start], meanings: Mapping[int, str] | None = None) -> None:
        self._meanings = meanings or {}
        self._kept = {name: _Kept(start) for name, start in starts.items()}

    def __enter__(self) -> "Supervisor":
        """Return the supervisor, which has started nothing yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """End every process with all that is in its group; what else interrupts meanwhile waits."""
        with undisturbed():
            self.end()

    def run(self) -> None:
        """Keep the processes running until something is raised, such as `KeyboardInterrupt` by a signal."""
        while True:
            self.look()
            time.sleep(_PAUSE)

    def look(self) -> None:
        """Start what is not running and due; notice what has ended."""
        now = time.monotonic()
        for name, kept in self._kept.items():
            if kept.process is not None and kept.process.poll() is not None:
                self._has_ended(name, kept, now)
            if kept.process is None and now >= kept.due:
                kept.process, kept.since = kept.start(), now

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes by name."""
        return {name: kept.process.pid for name, kept in self._kept.items() if kept.process is not None}

    def end(self) -> None:
        """Ask every process to end, and after a while end it with everything in its group."""
        running = [kept.process for kept in self._kept.values() if kept.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _kill_group(process)
            _close(process)
        for kept in self._kept.values():
            kept.process = None

    def _has_ended(self, name: str, kept: _Kept, now: float) -> None:
        assert kept.process is not None
        code = kept.process.returncode
        _kill_group(kept.process)  # what it may have left
        _close(kept.process)
        kept.process = None
        if code == RESTART:
            kept.due = now
            return
        if now - kept.since >= _STEADY:
            kept.wait, kept.said = _FIRST_WAIT, None
        if code not in self._meanings:
            log.warning("the %s ended (%s); it starts again in %g s", name, _how(code), kept.wait)
            kept.said = None
        elif kept.said != code:
            log.error("%s (it is tried again until it works)", self._meanings[code])
            kept.said = code
        kept.due, kept.wait = now + kept.wait, min(2 * kept.wait, _LONGEST_WAIT)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILLED)
    except subprocess.TimeoutExpired:
        log.error("%s", still_there([process.pid]))


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe of a process that has ended: to one that has not, its end means that of its starter."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
