"""Progress of a run on stderr: a live view on a terminal, one output that changes in place in a notebook, lines now and then in a log."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from client.metric_names import ALWAYS
from experiments.settings.log import is_on, messages
from fedmf.accounting.caveats import LARGEST
from fedmf.rounding import rounded_up

LONGEST_LINE = 120  # characters
NOT_PRIVATE = "NOT private"
_SLOW_ROUND = 1.0  # seconds after which the clients of a round are counted
_IN_PLACE = 0.1  # seconds between two changes of a live view; in a notebook ten times as many
_LEAST_PAUSE, _LARGEST_PAUSE = 5.0, 300.0  # seconds between two lines of a log
_SHARE = 1 / 60  # of the time so far, the pause between those limits
# What a line must have, the most important first, before further metrics; and what only a live view has.
_IN_A_LINE = ("round", "epsilon", "privacy", "accuracy", "time left", "clients", "job", "epoch")
_LIVE_ONLY = {"delta", "uplink", "speed"}


def facts(
    number: int,
    rounds: int,
    epoch: int,
    epochs: int,
    *,
    scored: int | None,
    values: Mapping[str, Any],
    epsilon: float,
    epsilon_end: float,
    delta: float,
    bytes_per_client: float,
    has_noise: bool,
    reproducible: bool = False,
) -> dict[str, str]:
    """Return what is shown of a run after round `number`, by name.

    `values` are accuracy and further metrics of the model of round `scored`, the last that was scored; None for one that
    is not defined. `epsilon_end` is the epsilon of all planned epochs. Epsilons are rounded up: no line may claim more
    privacy than the statement.
    """
    shown = {"round": f"{number}/{rounds}", "epoch": f"{epoch}/{epochs}"}
    if has_noise:
        end = "" if reproducible else f" of {rounded_up(epsilon_end)}"
        mark = f", {NOT_PRIVATE}" if reproducible or epsilon_end > LARGEST else ""
        shown |= {"epsilon": f"{rounded_up(epsilon)}{end}{mark}", "delta": rounded_up(delta)}
    else:
        shown["privacy"] = f"{NOT_PRIVATE} (no noise)"
    shown["accuracy"] = "not scored yet"
    if scored is not None:
        shown["accuracy"] = f"{_number(values.get('accuracy'), '.1%')} (round {scored})"
    shown |= {name: _number(value, ".4g") for name, value in values.items() if name not in ALWAYS}
    return shown | {"uplink": f"{bytes_per_client:,.0f} bytes a client and round, envelope included"}


def line(shown: Mapping[str, str]) -> str:
    """Return facts in at most `LONGEST_LINE` characters; without further metrics, from the last on, and then others that do not fit."""
    names = [*_IN_A_LINE, *(name for name in shown if name not in {*_IN_A_LINE, *_LIVE_ONLY})]
    while len(text := " | ".join(f"{name} {shown[name]}" for name in shown if name in names)) > LONGEST_LINE:
        names.pop()
    return text


def _number(value: Any, form: str) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:{form}}".replace("%", " %")


class View:
    """A context in which `show` displays how far a run is.

    `job` names the job of a sweep ("job 3/12"), whose last line is left to the sweep. `clock` gives seconds that never fall.
    """

    def __init__(self, rounds: int, job: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        console = Console(stderr=True)
        is_terminal = console.is_terminal and not console.is_jupyter and not is_on()
        self._live = Live(console=console, transient=True, auto_refresh=False) if is_terminal else None
        # IPython is there wherever a notebook is.
        display = import_module("IPython.display").display if console.is_jupyter and not is_on() else None
        self._cell: Any = display and display({"text/plain": ""}, raw=True, display_id=True)
        self._rounds, self._job, self._clock = rounds, job.removeprefix("job "), clock
        self._facts: Mapping[str, str] = {}
        self._bars = Progress(  # which also estimates speed and time left, of at most its last 1,000 changes
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            speed_estimate_period=math.inf,
            get_time=clock,
            disable=True,  # shown below the facts
        )
        self._all = self._bars.add_task("rounds", total=rounds)
        self._in_round = self._bars.add_task("clients of this round", visible=False)
        self._last_change = clock()
        self.begin(0)

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
        """Count from now on: a session begins after `released` rounds."""
        self._began = self._round_began = self._clock()
        self._released, self._clients = released, ""
        self._bars.reset(self._all, completed=released)

    def show(self, number: int, shown: Mapping[str, str]) -> None:
        """Display the facts after round `number`."""
        self._round_began = self._clock()
        self._released, self._facts, self._clients = number, shown, ""
        self._bars.update(self._all, completed=number)
        self._bars.update(self._in_round, visible=False)
        self._change(always=number == self._rounds and not self._job)

    def on_clients(self, done: int, asked: int) -> None:
        """Take note that `done` of the `asked` clients of the round in progress have been run, and show it if it is slow."""
        if self._clock() - self._round_began >= _SLOW_ROUND:
            self._clients = f"{done}/{asked}"
            self._bars.update(self._in_round, completed=done, total=asked, visible=True)
            self._change(part=done / asked)

    def shown(self) -> dict[str, str]:
        """Return everything that is known now."""
        task = self._bars.tasks[0]
        start = {"job": self._job, "round": f"{self._released}/{self._rounds}", "clients": self._clients}
        times = {
            "speed": f"{1 / task.speed:.3g} s a round" if task.speed else "",
            "time left": str(timedelta(seconds=task.time_remaining)) if task.time_remaining else "",
        }
        return {name: text for name, text in {**start, **self._facts, **times}.items() if text}

    def _change(self, part: float = 0.0, *, always: bool = False) -> None:
        """Display what is known, unless the last change was a short while ago; `part` of the round in progress is over."""
        now = self._clock()
        pause = min(_LARGEST_PAUSE, max(_LEAST_PAUSE, (now - self._began) * _SHARE))
        if self._live is not None or self._cell:
            pause = 10 * _IN_PLACE if self._cell else _IN_PLACE
        if not always and now - self._last_change <= pause:
            return
        self._last_change = now
        self._bars.update(self._all, completed=self._released + part)
        if self._live is not None:
            table = Table.grid(padding=(0, 2))
            for name, value in self.shown().items():
                table.add_row(f"[dim]{name}[/dim]", Text(value))
            self._live.update(Group(table, self._bars), refresh=True)
        elif self._cell:
            self._cell.update({"text/plain": line(self.shown())}, raw=True)
        else:
            messages.info(line(self.shown()))
