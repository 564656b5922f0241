"""What a person sees on stderr while a run goes on.

A live view on a terminal, one output that changes in place in a notebook, short lines now and then elsewhere."""

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from client.metric_names import ALWAYS
from experiments.pages.wording import whole_duration
from fedmf.accounting.caveats import LARGEST
from fedmf.rounding import rounded_up

LONGEST_LINE = 120  # characters
NOT_PRIVATE = "NOT private"


@dataclass(frozen=True)
class Standing:
    """Where a run stands after a released round.

    `values` are accuracy and further metrics of the model of round `scored`, the last that was scored; None for one that
    is not defined. `epsilon_end` is the epsilon of all epochs that are planned.
    """

    round: int
    rounds: int
    epoch: int
    epochs: int
    scored: int | None
    values: Mapping[str, Any]
    epsilon: float
    epsilon_end: float
    delta: float
    bytes_per_client: float
    has_noise: bool
    reproducible: bool = False

    def facts(self, seconds_a_round: float | None, left: str) -> dict[str, str]:
        """Return what a live view shows, by its name."""
        facts = {"epoch": f"{self.epoch}/{self.epochs}", "round": f"{self.round}/{self.rounds}"}
        if seconds_a_round is not None:
            facts["speed"] = _speed(seconds_a_round)
        facts["accuracy"] = self._accuracy(of=True)
        facts |= {name: _metric(value) for name, value in self._further()}
        facts["privacy"] = self._privacy(delta=True)
        facts["uplink"] = f"{self.bytes_per_client:,.0f} bytes a client and round, envelope included"
        return {**facts, "time left": left.removesuffix(" left") or "not known yet"}

    def line(self, left: str, *, clients: str = "", job: str = "") -> str:
        """Return the standing in at most `LONGEST_LINE` characters.

        What does not fit is left out: further metrics from the last on, then the epoch, then the round of the score.
        """
        return next(
            (line for line in self._lines(left, clients, job) if len(line) <= LONGEST_LINE),
            f"{[*self._lines(left, clients, job)][-1][: LONGEST_LINE - 1]}…",
        )

    def _lines(self, left: str, clients: str, job: str) -> Iterator[str]:
        further = [f"{name} {_metric(value)}" for name, value in self._further()]
        epoch = f"epoch {self.epoch}/{self.epochs}"
        for kept in range(len(further), -1, -1):
            yield self._line(job, clients, left, epoch, self._accuracy(), further[:kept])
        yield self._line(job, clients, left, "", self._accuracy(), [])
        yield self._line("", clients, left, "", self._accuracy().partition(" (")[0], [])

    def _line(self, job: str, clients: str, left: str, epoch: str, accuracy: str, further: list[str]) -> str:
        parts = [
            job,
            f"round {self.round}/{self.rounds}",
            clients,
            epoch,
            self._privacy(),
            accuracy if self.scored is None else f"accuracy {accuracy}",
            *further,
            left,
        ]
        return " | ".join(part for part in parts if part)

    def _accuracy(self, *, of: bool = False) -> str:
        if self.scored is None:
            return "not scored yet"
        value = self.values.get("accuracy")
        share = "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"
        return f"{share} ({'after ' if of else ''}round {self.scored})"

    def _further(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self.values.items() if name not in ALWAYS]

    def _privacy(self, *, delta: bool = False) -> str:
        """Return the privacy spent, rounded up: no line may claim more of it than the statement."""
        if not self.has_noise:
            return f"{NOT_PRIVATE} (no noise)"
        spent = f"epsilon {rounded_up(self.epsilon)}"
        if delta:
            spent += f" of {rounded_up(self.epsilon_end)} at delta {rounded_up(self.delta)}"
        elif not self.reproducible:
            spent += f" of {rounded_up(self.epsilon_end)}"
        if not self.reproducible and self.epsilon_end <= LARGEST:
            return spent
        why = "reproducible" if self.reproducible else f"epsilon above {LARGEST:g}"
        return f"{spent}, {NOT_PRIVATE}{f' ({why})' if delta else ''}"


def _metric(value: Any) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _speed(seconds_a_round: float) -> str:
    if seconds_a_round >= 1:
        return f"{seconds_a_round:.1f} s a round"
    return f"{1 / max(seconds_a_round, 1e-9):.3g} rounds/s"


_SLOW_ROUND = 1.0  # seconds from which on the clients of a round are counted
_REFRESH = 0.1  # seconds between two changes of a live view within a round; in a notebook ten times as many
_LEAST_PAUSE, _LARGEST_PAUSE = (
    5.0,
    300.0,
)  # seconds between two plain lines, between them a share of the time so far
_SHARE = 1 / 60
_LATEST = 30  # rounds, whose mean is what each of the others is expected to take
_FEW, _PATIENCE = 3, 30.0  # rounds, or seconds, before which no time left is shown


class TimeLeft:
    """The time left of a session of a run of `rounds`, by the mean of its latest rounds, scoring included.

    The first round of a session counts only until another is known: processes start in it. `clock` gives seconds that never
    fall.
    """

    def __init__(self, rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rounds, self._clock = rounds, clock
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._is_first, self._part, self._released = True, 0.0, 0
        self.begin()

    def begin(self) -> None:
        """Count from now on: the session's first round begins."""
        self._began = self._round_began = self._clock()

    def clients(self, done: int, asked: int) -> None:
        """Note that `done` of the `asked` clients of the current round have been run."""
        self._part = done / asked if asked else 0.0

    def released(self, number: int) -> None:
        """Note that round `number` is over."""
        if len(self._latest) == 1 and self._is_first:
            self._latest.clear()
            self._is_first = False
        now = self._clock()
        self._latest.append(now - self._round_began)
        self._released, self._round_began, self._part = number, now, 0.0

    @property
    def in_round(self) -> float:
        """Seconds since the current round began."""
        return self._clock() - self._round_began

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._began

    @property
    def round_seconds(self) -> float | None:
        """Seconds that a round takes, None before one is over."""
        return statistics.mean(self._latest) if self._latest else None

    def text(self) -> str:
        """Return what is shown, "" where too little is known."""
        seconds = self.round_seconds
        if seconds is None or (len(self._latest) < _FEW and self.elapsed < _PATIENCE):
            return ""
        return f"{whole_duration(seconds * (self._rounds - self._released - self._part))} left"


class View:
    """A context in which `show` displays the standing: in place where that can be, else as a line now and then.

    `job` names the job of a sweep, whose last line is left to the sweep. `clock` gives seconds that never fall.
    """

    def __init__(self, rounds: int, job: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(stderr=True)
        self._job = job
        self._clock = clock
        self._left = TimeLeft(rounds, clock)
        self._rounds, self._released = rounds, 0
        self._standing: Standing | None = None
        self._clients = ""
        self._last_line = self._last_change = clock()
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}")
        )
        self._task = self._bars.add_task("rounds", total=rounds)
        self._in_round = self._bars.add_task("clients of this round", total=1, visible=False)
        self._live = (
            Live(console=self._console, transient=True, auto_refresh=False)
            if self._console.is_terminal
            else None
        )
        self._cell: Any = _output_cell() if self._console.is_jupyter else None

    def __enter__(self) -> Self:
        """Start the display."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the display."""
        if self._live is not None:
            self._live.stop()

    def begin(self, released: int) -> None:
        """Count from now on, behind `released` rounds."""
        self._released = released
        self._left.begin()
        self._bars.update(self._task, completed=released)

    def show(self, standing: Standing) -> None:
        """Display where the run stands after a round."""
        self._left.released(standing.round)
        self._standing, self._clients = standing, ""
        self._bars.update(self._in_round, visible=False)
        self._bars.update(self._task, completed=standing.round)
        if not self._changes_in_place():
            is_last = standing.round == standing.rounds and not self._job
            self._print_now_and_then(always=is_last)

    def on_clients(self, done: int, asked: int) -> None:
        """Take note that `done` of the `asked` clients of the round under way have been played, and show it if it is slow."""
        self._left.clients(done, asked)
        if self._left.in_round < _SLOW_ROUND:
            return
        self._clients = f"clients {done}/{asked}"
        self._bars.update(self._in_round, completed=done, total=asked, visible=True)
        pause = _REFRESH if self._live is not None else 10 * _REFRESH
        if self._live is None and self._cell is None:
            self._print_now_and_then()
        elif self._clock() - self._last_change >= pause:
            self._changes_in_place()

    def say(self, text: str) -> None:
        """Print a line on stderr, above what changes in place."""
        if self._live is not None:
            self._console.print(Text(text), soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _changes_in_place(self) -> bool:
        """Show what is known now in place of what was shown, and return True, where that can be."""
        self._last_change = self._clock()
        if self._live is not None:
            shown = [self._table(), self._bars] if self._facts() else [self._bars]
            self._live.update(Group(*shown), refresh=True)
        elif self._cell is not None:
            self._cell.update({"text/plain": self._line()}, raw=True)
        else:
            return False
        return True

    def _print_now_and_then(self, *, always: bool = False) -> None:
        """Print a line, unless the last one was a short while ago."""
        pause = min(_LARGEST_PAUSE, max(_LEAST_PAUSE, self._left.elapsed * _SHARE))
        if always or self._clock() - self._last_line > pause:
            self._last_line = self._clock()
            print(self._line(), file=sys.stderr, flush=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, value in self._facts().items():
            table.add_row(f"[dim]{name}[/dim]", Text(value))
        return table

    def _facts(self) -> dict[str, str]:
        facts = {"job": self._job} if self._job else {}
        if self._standing is not None:
            facts |= self._standing.facts(self._left.round_seconds, self._left.text())
        return facts

    def _line(self) -> str:
        if self._standing is None:  # in the first round of a session
            return " | ".join(
                part for part in (self._job, f"round {self._released}/{self._rounds}", self._clients) if part
            )
        return self._standing.line(self._left_unless_done(), clients=self._clients, job=self._job)

    def _left_unless_done(self) -> str:
        assert self._standing is not None
        return "" if self._standing.round == self._rounds else self._left.text()


def _output_cell() -> Any:
    """Return the handle of an output of the notebook's cell under way, which can be changed in place."""
    display = import_module("IPython.display").display  # there wherever a notebook is
    return display({"text/plain": ""}, raw=True, display_id=True)
