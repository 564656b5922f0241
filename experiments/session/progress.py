"""What a person sees on stderr while a run goes on.

A live view on a terminal, one output that changes in place in a notebook, lines now and then elsewhere.
"""

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

_PLAIN_PAUSE = 5.0  # seconds between two plain lines


@dataclass(frozen=True)
class Standing:
    """Where a run stands after a released round."""

    round: int
    rounds: int
    epoch: int
    epochs: int
    accuracy: float | None
    metrics: Mapping[str, float]  # further ones, by name
    epsilon: float
    epsilon_end: float
    delta: float
    whose: str  # unit of privacy and adjacency
    bytes_per_client: float
    private: bool

    def privacy(self) -> str:
        """Return the privacy spent, in words."""
        if not self.private:
            return "NOT private (no noise)"
        return f"epsilon {self.epsilon:.3f} of {self.epsilon_end:.3f} at delta {self.delta:g} ({self.whose})"


class View:
    """A context in which `show` displays the standing: in place where that can be, else as a line now and then."""

    def __init__(self, rounds: int, label: str = "") -> None:
        self._console = Console(stderr=True)
        self._label = label
        self._started = time.monotonic()
        self._first_round: int | None = None
        self._last_line = 0.0
        self._bar = Progress(
            BarColumn(bar_width=None), TextColumn("{task.completed:.0f}/{task.total:.0f} rounds")
        )
        self._task = self._bar.add_task("rounds", total=rounds)
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

    def show(self, standing: Standing) -> None:
        """Display where the run stands."""
        if self._first_round is None:
            self._first_round = standing.round - 1
        speed = (standing.round - self._first_round) / max(time.monotonic() - self._started, 1e-9)
        if self._live is not None:
            self._bar.update(self._task, completed=standing.round)
            self._live.update(Group(self._table(standing, speed), self._bar), refresh=True)
        elif self._cell is not None:
            self._cell.update({"text/plain": self._line(standing, speed)}, raw=True)
        elif standing.round == standing.rounds or time.monotonic() - self._last_line > _PLAIN_PAUSE:
            self._last_line = time.monotonic()
            print(self._line(standing, speed), file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Print a line on stderr, above what changes in place."""
        if self._live is not None:
            self._console.print(Text(text), soft_wrap=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _table(self, standing: Standing, speed: float) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, value in self._facts(standing, speed).items():
            table.add_row(f"[dim]{name}[/dim]", value)
        return table

    def _line(self, standing: Standing, speed: float) -> str:
        return " | ".join(f"{name} {value}" for name, value in self._facts(standing, speed).items())

    def _facts(self, standing: Standing, speed: float) -> dict[str, str]:
        facts = {
            "epoch": f"{standing.epoch}/{standing.epochs}",
            "round": f"{standing.round}/{standing.rounds}",
            "speed": f"{speed:.2g} rounds/s",
            "accuracy": "not evaluated yet" if standing.accuracy is None else f"{standing.accuracy:.1%}",
            **{
                name: "–" if math.isnan(value) else f"{value:.4g}" for name, value in standing.metrics.items()
            },
            "privacy": standing.privacy(),
            "uplink": f"{standing.bytes_per_client:,.0f} bytes a client and round, envelope included",
            "time left": f"{(standing.rounds - standing.round) / max(speed, 1e-9):.0f} s",
        }
        return {**facts, "secrets": self._label} if self._label else facts


def _output_cell() -> Any:
    """Return the handle of an output of the notebook's cell under way, which can be changed in place."""
    display = import_module("IPython.display").display  # there wherever a notebook is
    return display({"text/plain": ""}, raw=True, display_id=True)
