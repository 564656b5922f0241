"""The end of processes that are killed, which nobody waits for without an end.

A process that waits for a device or a file system that does not answer ends at no signal, SIGKILL neither, before that does
(Linux: state D). Whoever waited for it would hang as well.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.deployment.process_list import processes_at

KILLED = 10.0  # seconds after SIGKILL: the kernel needs some to give much memory back
_LOOK = 0.05  # seconds between two looks


def kill_at(homes: Iterable[Path], limit: float = KILLED) -> list[int]:
    """Kill every process of this user whose Flower home is one of `homes`, also those that they start meanwhile.

    Returns those that are still there after `limit` seconds; see `still_there`.
    """
    homes, deadline = list(homes), time.monotonic() + limit
    while left := [number for home in homes for number in processes_at(home)]:
        if time.monotonic() >= deadline:
            break
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        time.sleep(_LOOK)
    return left


def has_ended(child: int, limit: float = KILLED) -> bool:
    """Wait for the end of a killed child of this process, `limit` seconds at most; return whether it has come."""
    deadline = time.monotonic() + limit
    with contextlib.suppress(ChildProcessError):
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK)
    return True


def still_there(processes: Sequence[int]) -> str:
    """Return the sentence about killed processes that have not ended in time.

    >>> still_there([12, 14])
    'killed, and still there: process 12, 14; no signal ends what waits for a device or file system that does not answer'
    """
    return (
        f"killed, and still there: process {', '.join(map(str, processes))}; no signal ends what waits for a device or file "
        "system that does not answer"
    )
