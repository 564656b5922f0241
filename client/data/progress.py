"""How far a long preparation is, on stderr: a bar on a terminal, elsewhere one line; nothing where it is short."""

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

_PATIENCE = 2.0  # seconds after which something is said


class Preparation:
    """A context in which `advance` says that so much more of `total` was done."""

    def __init__(self, text: str, total: float) -> None:
        self._text, self._total, self._done = f"{text}, once", max(total, 1.0), 0.0
        self._began = time.monotonic()
        self._bar: tuple[Progress, TaskID] | None = None
        self._said = False

    def __enter__(self) -> "Preparation":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def advance(self, amount: float) -> None:
        """Show that `amount` more was done."""
        self._done += amount
        if not self._said and time.monotonic() - self._began > _PATIENCE:
            self._said = True
            if sys.stderr.isatty():
                self._bar = self._started()
            else:
                print(f"{self._text} ...", file=sys.stderr, flush=True)
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=self._done)

    def _started(self) -> tuple[Progress, TaskID]:
        """Return a bar that is shown, and the number of its only line."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True))
        bar.start()
        return bar, bar.add_task(self._text, total=self._total)
