"""The protocol between the benchmark and another system: one line asks for a round, one line answers what it cost.

On stdin each line "turn" asks for a round. Answered is one JSON object a line: first {"parameters": d, "examples": n} of
a round that warmed up, then after each turn {"seconds": CPU seconds, "examples": n}, where n counts the examples that the
round trained on. The end of stdin ends the process. Answers go to the file descriptor in the environment variable
`ANSWERS`, so that stdout and stderr are free for what a library prints.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

ANSWERS = "FEDMF_BENCHMARK_ANSWERS"
_TICK = os.sysconf("SC_CLK_TCK")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


class Turns:
    """Where a system waits between rounds: call it after every round, and play the next when it returns true."""

    def __init__(self, parameters: int) -> None:
        """Open the way for answers. `parameters` is the dimension of the model that is trained."""
        # An orphan of a child becomes a child of this process, so that its time is found below it.
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
        self._answers = os.fdopen(int(os.environ[ANSWERS]), "w")
        self._parameters = parameters
        self._begun: float | None = None

    def __call__(self, examples: int) -> bool:
        """Report the round just played on `examples` examples, and return whether another is asked for."""
        if self._begun is None:
            answer: dict[str, float] = {"parameters": self._parameters, "examples": examples}
        else:
            answer = {"seconds": cpu_seconds() - self._begun, "examples": examples}
        print(json.dumps(answer), file=self._answers, flush=True)
        if sys.stdin.readline() != "turn\n":
            return False
        self._begun = cpu_seconds()
        return True


def cpu_seconds() -> float:
    """Return the CPU seconds that this process and all processes below it have used, those that have ended included.

    The time of this process is exact, that of others is counted by the system in hundredths of a second.
    """
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system + _below(os.getpid())


def _below(process: int) -> float:
    """Return the CPU seconds of the living descendants of `process` and of the children that they waited for."""
    children: dict[int, list[tuple[int, float]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _status(folder)):
            ticks = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
            children.setdefault(int(fields[1]), []).append((int(folder.name), ticks / _TICK))
    total, todo = 0.0, [process]
    while todo:
        for child, seconds in children.get(todo.pop(), []):
            total += seconds
            todo.append(child)
    return total


def _status(folder: Path) -> list[str]:
    """Return the fields of a process behind its name, from its state on; none of one that has just ended."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
