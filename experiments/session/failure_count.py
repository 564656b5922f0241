"""Counts clients that could not train, for the person who runs the simulation alone.

Whether a client failed depends on its data alone. Its update counts as zero, with noise like any other; that it failed
is covered by no noise, so that the count goes to this machine's stderr and into no file (docs/privacy.md, section 5).
"""

import time
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console

from experiments.engines.failures import Failure
from experiments.settings.log import messages
from fedmf.errors import RunStoppedError

_PAUSE = 5.0  # seconds between two lines


class FailureCount:
    """The clients of this process's rounds that could not train; `stops` where that ends a run (run.stop_if_all_fail)."""

    def __init__(self, *, stops: bool = False) -> None:
        self._stops = stops
        self._failed: dict[str, Failure] = {}  # in the round in progress
        self._asked = self._zeros = self._errors = 0  # in all rounds
        self._rounds = self._rounds_with_failures = 0
        self._first = ""
        self._last_line = -_PAUSE

    def add(self, failure: Failure) -> None:
        """Take note of one client of the round in progress."""
        self._failed[failure.client] = failure

    def on_heard(self, number: int, asked: Sequence[str], answered: Sequence[str]) -> None:
        """Count round `number`, whose replies are in, and print a line if clients failed.

        Raises `RunStoppedError`, before anything of the round is released, where a run stops if all failed.
        """
        failed, self._failed = [self._failed[name] for name in asked if name in self._failed], {}
        self._rounds += 1
        self._asked += len(asked)
        if not failed:
            return
        errors = sum(not failure.has_sent for failure in failed)
        zeros = len(failed) - errors
        self._zeros, self._errors = self._zeros + zeros, self._errors + errors
        self._rounds_with_failures += 1
        why = "" if self._first else f"; the first: {failed[0].reason}"
        self._first = self._first or f"round {number}: {failed[0].reason}"
        if why or time.monotonic() - self._last_line > _PAUSE:
            self._last_line = time.monotonic()
            with suppress(OSError, ValueError):  # whether it can be said must not decide what is released
                messages.info(f"round {number}: {_counts(zeros, errors, len(asked))}{why}")
        if self._stops and set(answered) <= {failure.client for failure in failed}:
            raise RunStoppedError(
                f"round {number} is not released: {_counts(zeros, errors, len(asked))} (the first: {failed[0].reason}), "
                "nobody else answered, and run.stop_if_all_fail is true. No privacy statement covers that it stopped: "
                "that depends on the clients' data, and no noise is on it. Remove the cause, then go on with "
                "run.resume=true."
            )

    def say_total(self) -> None:
        """Print once more, in red, how many failed; nothing where none did."""
        if not self._first:
            return
        text = (
            f"{_counts(self._zeros, self._errors, self._asked)}, in {self._rounds_with_failures} of {self._rounds} rounds; "
            f"the first in {self._first}"
        )
        is_terminal = Console(stderr=True).is_terminal
        messages.info(f"\x1b[1;31m{text}\x1b[0m" if is_terminal else text)


def _counts(zeros: int, errors: int, asked: int) -> str:
    """Return how many of the clients asked failed, and how.

    >>> _counts(64, 0, 64)
    '64 of 64 clients failed in training and sent zeros'
    """
    said = [f"{zeros} of {asked} clients failed in training and sent zeros"] if zeros or not errors else []
    if errors:
        said.append(f"{errors} of {asked} clients answered with an error, which counts as zeros")
    return " and ".join(said)
