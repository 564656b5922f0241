"""New processes of this machine that play clients: forked from one that has imported what they need.

The import of torch, Flower and our own packages takes about three seconds of CPU. A fork server (see
`multiprocessing`) pays it once for all worker processes of a run: it imports and does nothing else, so that it has one
thread, no lock is held and no device in use when it forks, as would be the case in a fork of the run's own process.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext

import numpy as np
import torch

from client.reasons import one_line
from experiments.players.local_grid import set_identity
from fedmf.errors import FedmfError, RunStoppedError

TRIES = 3  # to begin a process that plays clients, before the run stops
PAUSE = 1.0  # seconds between two of them: what a dead process held may not be free at once

# Ctrl-C and a closed terminal reach every process of the terminal; they are for the command, which then ends its workers.
FOR_THE_COMMAND = (signal.SIGINT, signal.SIGHUP)

# With these a new interpreter finds the packages that this one has, and no folder of the current directory first.
_SEARCH = ("PYTHONPATH", "PYTHONSAFEPATH")


def process_context(preload: Sequence[str]) -> BaseContext:
    """Return how to start processes: from a fork server that has imported `preload`, or by spawning where there is none.

    This process has one server for good: what another call asks it to import, its processes then import themselves.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return spawn_context()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    _ensure_server()
    return context


def spawn_context() -> BaseContext:
    """Return how to start processes that inherit nothing, with what keeps their semaphores deaf to a closed terminal."""
    with unheard():
        resource_tracker.ensure_running()  # which by itself is deaf to Ctrl-C alone
    return multiprocessing.get_context("spawn")


def fork_server() -> int | None:
    """Return the id of this process's fork server, which may have ended by now; None: there is none."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    from multiprocessing import forkserver

    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return pid


def start_process(environment: Mapping[str, str] | None = None) -> None:
    """Make a new process one that can play clients; `environment` is that of the process that wants it."""
    if environment is not None:  # a fork server's is from when it began
        os.environ.clear()
        os.environ.update(environment)
    leave_to_the_command()
    torch.set_num_threads(1)
    keep_freed_memory()
    set_identity()
    # Nothing of ours draws from these, but a model or loader of one's own may: not the same in every fork.
    random.seed()
    np.random.seed()  # noqa: NPY002


def leave_to_the_command() -> None:
    """Let this worker process ignore Ctrl-C and a closed terminal."""
    for number in FOR_THE_COMMAND:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Block Ctrl-C and a closed terminal, in this thread until the end of the block, and for good in what it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_COMMAND)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def why_not(error: BaseException) -> str:
    """Return why a process cannot begin, in the words of an error that it raised before it was given any client."""
    return str(error) if isinstance(error, FedmfError) else one_line(error)


def stopped(why: str) -> RunStoppedError:
    """Return the error that stops a run whose clients nobody can play, before anything of the round is released."""
    return RunStoppedError(
        f"{why}; nothing of the round was released. Look at the memory of this machine and of its devices, and at "
        "the data that the workers load; the run can be resumed from its checkpoint."
    )


def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to 64 MiB, for its next arrays.

    glibc asks the system for every array larger than the largest that it has seen freed, and gives back what is free
    beyond twice that size: a client of a million parameters then touches some hundred new pages, over and over, which
    costs more than most kernels. An array that nobody writes to costs nothing; sizes up to 32 MiB are remembered.
    """
    np.empty(30 << 20, np.uint8)


def _ensure_server() -> None:
    """Start the fork server if there is none, deaf to Ctrl-C and to a closed terminal, and with this process's search path."""
    from multiprocessing.forkserver import ensure_running

    with unheard():
        resource_tracker.ensure_running()  # the server wants it, and starting it would let Ctrl-C through again
    before = {name: os.environ.get(name) for name in _SEARCH}
    try:
        os.environ.update(zip(_SEARCH, (os.pathsep.join(map(os.path.abspath, sys.path)), "1"), strict=True))
        with unheard():
            ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
