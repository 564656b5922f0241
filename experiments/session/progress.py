"""What a run shows on stderr: how far it is, and how many clients could not train.

Whether a client failed depends on its data alone. Its update counts as zero, with noise like any other; that it failed is
covered by no noise, so that the count goes to this machine's stderr and into no file (docs/privacy.md).
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from client.metrics import ALWAYS
from experiments.engines.grid import Failure
from experiments.pages.wording import SHORT, text_of
from experiments.settings.log import is_on, messages
from experiments.settings.values import finite
from fedmf.accounting.caveats import LARGEST
from fedmf.checks import rounded_up
from fedmf.plan import Plan

NOT_PRIVATE = "NOT private"
_PAUSE = 5.0  # seconds between two lines, where there is no terminal


def standing(
    plan: Plan,
    number: int,
    spent: tuple[float, float],
    scored: int | None,
    values: Mapping[str, Any],
    *,
    reproducible: bool = False,
) -> str:
    """Return one line about a run after round `number`; `spent` are the epsilons so far and of all planned epochs.

    `values` are the headline of the task, first, and further metrics of the model of round `scored`, the last that was scored; None
    for one that is not defined. Epsilons are rounded up: no line may claim more privacy than the statement.
    """
    who, (epsilon, end) = plan.participation, spent
    epoch = (number - 1) // who.rounds_per_epoch + 1
    parts = [f"round {number}/{who.rounds}", f"epoch {epoch}/{who.epochs}"]
    if plan.sigma == 0:
        parts.append(f"{NOT_PRIVATE} (no noise)")
    elif reproducible:
        parts.append(f"epsilon {rounded_up(epsilon)}, {NOT_PRIVATE}")
    else:
        mark = f", {NOT_PRIVATE}" if end > LARGEST else ""
        parts.append(f"epsilon {rounded_up(epsilon)} of {rounded_up(end)}{mark}")
    if scored is not None:
        name = next(iter(values))
        parts.append(f"{SHORT[name]} {text_of(name, finite(values.get(name)))} (round {scored})")
    parts += [
        f"{name} {text_of(name, finite(value))}" for name, value in values.items() if name not in ALWAYS
    ]
    return " | ".join(parts)


class View:
    """Shows how far a run is: on a terminal by a bar while `display` is entered, else by a line every few seconds.

    `job` names the job of a sweep ("job 3/12"), whose last line is left to the sweep. `clock` gives seconds that never fall.
    """

    def __init__(self, rounds: int, job: str = "", clock: Any = time.monotonic) -> None:
        console = Console(stderr=True)
        self._is_live = console.is_terminal and not is_on()
        self._rounds, self._job, self._clock = rounds, job, clock
        self.display = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column()),  # wraps, is never cut
            BarColumn(20),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            speed_estimate_period=math.inf,
            get_time=clock,
            disable=not self._is_live,
        )
        self._task = self.display.add_task(job, total=rounds)
        self._shown = clock()

    def begin(self, released: int) -> None:
        """Count from now on: a session begins after `released` rounds."""
        self.display.reset(self._task, completed=released)

    def show(self, number: int, text: str) -> None:
        """Display the line `text` about the run after round `number`, unless another was displayed a moment ago."""
        if self._job:
            text = f"{self._job} | {text}"
        self.display.update(self._task, completed=number, description=text)
        is_last = number == self._rounds and not self._job
        if self._is_live or (not is_last and self._clock() - self._shown <= _PAUSE):
            return
        self._shown = self._clock()
        left = self.display.tasks[0].time_remaining
        messages.info(f"{text} | time left {timedelta(seconds=left)}" if left else text)


class FailureCount:
    """The clients of this process's rounds that could not train."""

    def __init__(self) -> None:
        self._failed: dict[str, str] = {}  # client -> reason, in the round in progress
        self._asked = self._all = 0  # in all rounds
        self._first = ""

    def add(self, failure: Failure) -> None:
        self._failed[failure.client] = failure.reason

    def on_heard(self, number: int, asked: Sequence[str]) -> None:
        """Count round `number`, whose replies are in, and log the first failure of the run."""
        reasons = [self._failed[client] for client in asked if client in self._failed]
        self._failed.clear()
        self._asked, self._all = self._asked + len(asked), self._all + len(reasons)
        if reasons and not self._first:
            self._first = f"the first in round {number}: {reasons[0]}"
            with suppress(OSError, ValueError):  # whether it can be printed must not decide what is released
                messages.info(f"round {number}: {_zeros(len(reasons), len(asked))}; {self._first}")

    def log_total(self) -> None:
        """Log how many failed in all rounds; nothing where none did."""
        if self._first:
            messages.info(f"{_zeros(self._all, self._asked)}; {self._first}")


def _zeros(failed: int, asked: int) -> str:
    return f"{failed} of {asked} clients failed and count as zeros"
