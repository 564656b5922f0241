"""How far a long preparation is, on stderr: a bar on a terminal, elsewhere one line; nothing where it is short."""

import logging
import sys
import time

messages = logging.getLogger("fedmf-messages")  # which fedmf's commands show

_PATIENCE = 2.0  # seconds after which something is said
_PAUSE = 0.2  # seconds between two looks of the bar
_WIDTH = 30


class Preparation:
    """A context in which `advance` says that so much more of `total` was done, after `patience` seconds."""

    def __init__(self, text: str, total: float, *, patience: float | None = None) -> None:
        self._text, self._total, self._done = f"{text}, once", max(total, 1.0), 0.0
        self._next = time.monotonic() + (_PATIENCE if patience is None else patience)
        self._terminal = sys.stderr.isatty()
        self._said = False

    def __enter__(self) -> "Preparation":
        return self

    def __exit__(self, *error: object) -> None:
        """End the bar's line."""
        if self._said and self._terminal:
            print(file=sys.stderr, flush=True)

    def advance(self, amount: float) -> None:
        """Show that `amount` more was done."""
        self._done += amount
        if time.monotonic() < self._next or (self._said and not self._terminal):
            return
        self._next = time.monotonic() + _PAUSE
        self._said = True
        if self._terminal:
            share = min(1.0, self._done / self._total)
            bar = ("#" * round(share * _WIDTH)).ljust(_WIDTH, ".")
            print(f"\r{self._text} [{bar}] {share:4.0%}", end="", file=sys.stderr, flush=True)
        else:
            messages.info(f"{self._text} ...")
