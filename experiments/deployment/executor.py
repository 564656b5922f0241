"""A process that imports once and forks for each task of a SuperNode.

Flower starts a process for every message, which imports Python's packages, Flower and torch anew: 4 seconds of CPU. Here
one process has imported them, holds the node's data where they are a file that has not changed
(`deployment.resident`), and forks: the child plays one message and ends.

What a child shares with its siblings is read only in effect, because a fork copies what it writes: imported modules,
composed settings, the data set. What it has for itself: the message, its connections, its threads, the model it trains.
The parent has one thread (OMP_NUM_THREADS=1, torch one thread), opens no CUDA context and never trains, so that no lock is
held and no device in use when it forks. Generators that are global would be the same in every child: those of Python,
numpy and torch are seeded anew from the operating system in each (`fresh_generators`). Nothing of ours draws from
them: the order of data, and what a model draws while it trains, follow from the run's public seed and the
client (`client.drawing`), a mask from its key.
"""

import contextlib
import ctypes  # noqa: F401  imported before any fork: `end_with_parent` needs it in the child
import gc
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

from experiments.deployment.killing import has_ended, still_there
from experiments.deployment.lifeline import code_of, end_with_parent, is_cut

log = logging.getLogger(__name__)

CODE_CHANGED = 3  # exit code of a child that found other code on disk than was imported
IN_VAIN = 4  # the same, of one that was ended because nobody waited for its answer any more
_NOTICE = 1 << 16  # the most bytes that a child tells its parent
_LOOK = 0.01  # seconds between two looks at a child
_ASK = 5.0  # seconds between two questions whether anybody waits for what a child does
_LEAVING = (
    15.0  # seconds for a child to end by itself that nobody waits for: it may just have sent its answer
)

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)

Play = Callable[[str, Callable[[str], None]], int]
"""Plays the task of a token in a child, may tell the parent a text, and returns the child's exit code."""

InVain = Callable[[str, str, float], str]
"""Says why nobody waits any longer for the answer to the task of a token, "" while somebody may.

It is given what the task's child has told so far, and for how many seconds the child has been there.
"""


class Executor:
    """Asks for tasks and plays each in a fork of this process.

    A child that hangs would hold up all tasks after its own. It is ended, with a word in the log, when `in_vain` says that
    nobody waits for it, and never before: how long honest training takes, nobody knows.

    `acquire` returns a task's token or None, `notice` takes what a child told, after its end; `pause` waits until the next
    question and is told whether there was a task.
    """

    def __init__(
        self,
        acquire: Callable[[], str | None],
        play: Play,
        notice: Callable[[str], None],
        pause: Callable[[bool], None],
        is_over: Callable[[], bool] = is_cut,
        in_vain: InVain = lambda token, told, seconds: "",
    ) -> None:
        self._acquire, self._play, self._notice = acquire, play, notice
        self._pause, self._is_over, self._in_vain = pause, is_over, in_vain
        self._child: int | None = None

    def run(self) -> bool:
        """Play tasks until the starter of this process has ended; return whether that is why, or the code changed."""
        gc.collect()
        gc.freeze()  # a child's garbage collector then leaves the pages of what is here now shared
        try:
            while not self._is_over():
                token = self._acquire()
                if token is not None and self._played(token) == CODE_CHANGED:
                    return False
                self._pause(token is not None)
            return True
        finally:
            self._end_child()

    def _played(self, token: str) -> int:
        """Play one task in a child and return its exit code."""
        hears, tells = os.pipe()
        self._child = forked(lambda: self._play(token, lambda text: _tell(tells, text)))
        os.close(tells)
        try:
            code, text = self._awaited(self._child, token, hears)
        finally:
            os.close(hears)
        if code < 0:
            log.error("a task's process was killed by %s; Flower answers for it", signal.Signals(-code).name)
        self._notice(text)
        return code

    def _awaited(self, child: int, token: str, hears: int) -> tuple[int, str]:
        """Return the exit code of the task's child when it has ended, and what it told through the pipe `hears`."""
        began = asked = time.monotonic()
        text, idle_since = "", None
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self._child = None
                kill_group(child)  # what it may have left
                return os.waitstatus_to_exitcode(status), text + _heard(hears)
            if self._is_over():
                self._end_child()
                sys.exit()
            if (now := time.monotonic()) - asked >= _ASK:
                asked, text = now, text + _heard(hears)
                why = self._in_vain(token, text, now - began)
                idle_since = (now if idle_since is None else idle_since) if why else None
                if idle_since is not None and now - idle_since >= _LEAVING:
                    log.error("a task's process is ended, after %.0f s: %s", now - began, why)
                    self._end_child()
                    return IN_VAIN, text
            time.sleep(_LOOK)

    def _end_child(self) -> None:
        if self._child is not None:
            kill_group(self._child)
            if not has_ended(self._child):
                log.error("a task's process was %s", still_there([self._child]))
            self._child = None


def fresh_generators() -> None:
    """Seed the global generators from the operating system, as in a new process: a fork begins with its parent's."""
    random.seed()
    np.random.seed()  # noqa: NPY002  what a model or loader of one's own may draw from
    torch.seed()


def shared_generators() -> list[str]:
    """Return the generators at the top of the imported modules, as MODULE.NAME: every child draws the same from them.

    Left out are the global ones, which `fresh_generators` seeds.
    """
    seeded = [torch.default_generator, getattr(random, "_inst", None), np.random.mtrand._rand]
    found = []
    for name, module in sorted(sys.modules.items()):
        for called, value in sorted(vars(module).items()) if type(module) is ModuleType else ():
            # by type: some modules hold objects that do things when they are asked with isinstance
            is_one = issubclass(type(value), _GENERATORS) and not issubclass(type(value), random.SystemRandom)
            if is_one and not any(value is one for one in seeded):
                found.append(f"{name}.{called}")
    return found


def warn_of_shared_generators(known: set[str]) -> None:
    """Log the generators that are not in `known` yet, and put them there."""
    for name in sorted({*shared_generators()} - known):
        log.warning(
            "%s is a generator that was made when its module was imported: whatever draws from it draws the same in every "
            "message; make it in the function that draws",
            name,
        )
        known.add(name)


def forked(play: Callable[[], int]) -> int:
    """Return the id of a child that plays, dies with this process and never returns from here."""
    parent = os.getpid()
    sys.stderr.flush()
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):  # both do it: whichever is first
            os.setpgid(child, child)
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        end_with_parent(parent, signal.SIGKILL)
        fresh_generators()
        code = play()
    except SystemExit as end:
        code = code_of(end)
    except BaseException:
        log.exception("a task's process failed")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # no handler of the parent's, and no wait for its threads


def exit_code(play: Callable[[], None]) -> int:
    """Return the exit code with which `play` ends a process, 0 where it returns."""
    try:
        play()
    except SystemExit as end:
        return code_of(end)
    return 0


def succeeds(check: Callable[[], bool], what: str) -> bool:
    """Return what `check` returns in a fork of this process; False where it does not come back.

    A fork that was killed, or that code of somebody's own ended, can say nothing itself: the log says so of `what` it did.
    """
    _, status = os.waitpid(forked(lambda: 0 if check() else 1), 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name} (for want of memory, say: journalctl -k)"
        log.error("%s: the process that did it %s", what, how)
    elif code > 1:
        log.error("%s: the process that did it ended with exit code %d", what, code)
    return code == 0


def _tell(pipe: int, text: str) -> None:
    """Write `text` into `pipe` if it fits without anyone reading; it only saves the parent's children work."""
    data = text.encode()
    os.set_blocking(pipe, False)
    if len(data) < _NOTICE:
        with contextlib.suppress(BlockingIOError):
            os.write(pipe, data)


def _heard(pipe: int) -> str:
    """Return what a child that has ended told, "" for nothing; waits for nobody.

    A process that it started in a session of its own outlives it, and may hold the other end open for ever.
    """
    os.set_blocking(pipe, False)
    try:
        return os.read(pipe, _NOTICE).decode()
    except BlockingIOError:
        return ""


def kill_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
