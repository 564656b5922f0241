"""A process that imports once and forks for each run that a SuperLink gives out.

As the executor of a node (`deployment.executor`), but a run takes hours: several may be in progress, each in a child of its
own, and further ones are asked for meanwhile. The parent imports and asks; it computes nothing, starts no thread and opens no
device, so that a child may do all of that.
"""

import contextlib
import gc
import logging
import os
import signal
import time
from collections.abc import Callable

from experiments.deployment.executor import CODE_CHANGED, forked, kill_group
from experiments.deployment.killing import KILLED, has_ended, still_there
from experiments.deployment.lifeline import is_cut

log = logging.getLogger(__name__)

GRACE = 6.0  # seconds for the runs in progress to end when this process does: Flower's own for its last words is 5
_LOOK = 0.05  # seconds between two looks at children that are ending


class RunExecutor:
    """Asks for runs and plays each in a fork of this process.

    `acquire` returns a run's token or None, `play` plays it in the child and returns the child's exit code, `has_changed`
    says whether the code on disk is still what was imported, `pause` waits until the next question.
    """

    def __init__(
        self,
        acquire: Callable[[], str | None],
        play: Callable[[str], int],
        has_changed: Callable[[], bool],
        pause: Callable[[], None],
        is_over: Callable[[], bool] = is_cut,
    ) -> None:
        self._acquire, self._play = acquire, play
        self._has_changed, self._pause, self._is_over = has_changed, pause, is_over
        self._children: set[int] = set()
        self._waits = False

    def run(self) -> bool:
        """Play runs until the starter of this process has ended; return whether that is why, or the code changed.

        Where it has changed, no further run is begun: those in progress go on to their end, and then it returns.
        """
        gc.collect()
        gc.freeze()  # a child's garbage collector then leaves the pages of what is here now shared
        try:
            while not self._is_over():
                self._reap()
                if self._waits or self._has_changed():
                    if not self._children:
                        return False
                    self._say_waiting()
                elif (token := self._acquire()) is not None:
                    self._children.add(forked(lambda token=token: self._play(token)))  # type: ignore[misc]
                self._pause()
            return True
        finally:
            self._end_children()

    def _reap(self) -> None:
        """Notice the children that have ended."""
        for child in list(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            self._children.discard(child)
            kill_group(child)  # what it may have left
            code = os.waitstatus_to_exitcode(status)
            if code == CODE_CHANGED:
                self._waits = True
            if code < 0:
                log.error(
                    "the server app of a run was killed by %s; flwr ls shows the run as failed within two minutes, and "
                    "submitted again with run.resume=true it goes on",
                    signal.Signals(-code).name,
                )

    def _say_waiting(self) -> None:
        if not self._waits:
            log.warning(
                "the code installed here has changed since it was imported: further runs wait until the %d in progress "
                "have ended",
                len(self._children),
            )
        self._waits = True

    def _end_children(self) -> None:
        """Ask the runs in progress to end, and after a while end them with everything that they started."""
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        while self._children and time.monotonic() < deadline:
            self._reap()
            time.sleep(_LOOK)
        for child in self._children:
            kill_group(child)
        deadline = time.monotonic() + KILLED
        if left := [child for child in self._children if not has_ended(child, deadline - time.monotonic())]:
            log.error("of the runs in progress were %s", still_there(left))
        self._children.clear()
