"""Processes of this machine that run clients: forked from one that has imported what they need.

The import of torch, Flower and our own packages takes about three seconds of CPU. A fork server (see
`multiprocessing`) pays it once for all worker processes of a run: it imports and does nothing else, so that it has one
thread, no lock is held and no device in use when it forks, as would be the case in a fork of the run's own process.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.reasons import one_line
from experiments.engines.grid import Failure, call_app, local_context, set_identity, take_noted
from fedmf.errors import DeviceLostError, FedmfError, RunStoppedError

# Ctrl-C and a closed terminal reach every process of the terminal; they are for the command, which then ends its workers.
FOR_THE_COMMAND = (signal.SIGINT, signal.SIGHUP)

MakeApp = Callable[[], ClientApp]
# The reply to a message, and separately the clients that failed: a reply contains nothing of that.
Played = tuple[Message, list[Failure]]

_app: ClientApp | None = None  # of this worker process


class CannotBegin(Exception):
    """Why a worker process could not build what it runs clients with, as text: not every error can be pickled."""


class LocalProcess:
    """A process of this machine that runs the app that `make_app` returns, found by its import path; see `Process`."""

    def __init__(self, make_app: MakeApp) -> None:
        self._make_app = make_app
        self._executor: ProcessPoolExecutor | None = None

    def begin(self) -> "Future[None]":
        """Start a new process in place of the last one."""
        self.end()
        self._executor = ProcessPoolExecutor(1, process_context())
        return self.call(begin_process, self._make_app, dict(os.environ))

    def run(self, message: Message) -> "Future[Played]":
        """Run the clients of `message` in the process."""
        return self.call(run_message, message)

    def call(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Call `function` in the process."""
        assert self._executor is not None
        return self._executor.submit(function, *arguments)

    def end(self) -> None:
        """End the process when it has finished what it runs."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


def begin_process(make_app: MakeApp, environment: Mapping[str, str] | None = None) -> None:
    """Make this a process that runs clients with `make_app()`, before it is given any.

    `environment` is that of the process that wants it; None: this process is set up already. Raises `CannotBegin`.
    """
    global _app
    if environment is not None:
        start_process(environment)
        end_with_starters()
    try:
        _app = make_app()
    except (Exception, SystemExit) as error:
        raise CannotBegin(why_not(error)) from None


def run_message(message: Message, context: Context | None = None) -> Played:
    """Return this process's reply.

    Ends the process where the device does not answer any more: another one begins, and runs each client alone.
    """
    if _app is None:  # a cluster started the process again by itself
        os._exit(1)
    take_noted()  # of a message that raised
    try:
        return call_app(_app, message, context or local_context()), take_noted()
    except DeviceLostError:
        os._exit(1)


def process_context() -> BaseContext:
    """Return how to start processes: from a fork server, which this process has for good."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.engines.engine"])  # builds the clients of a run
    _ensure_server()
    return context


def spawn_context() -> BaseContext:
    """Return how to start processes that inherit nothing, with what keeps their semaphores deaf to a closed terminal."""
    with unheard():
        resource_tracker.ensure_running()  # which by itself is deaf to Ctrl-C alone
    return multiprocessing.get_context("spawn")


def start_process(environment: Mapping[str, str] | None = None) -> None:
    """Prepare a new process for running clients; `environment` is that of the process that wants it."""
    if environment is not None:  # a fork server's is from when it began
        os.environ.clear()
        os.environ.update(environment)
    leave_to_the_command()
    torch.set_num_threads(1)
    keep_freed_memory()
    set_identity()
    np.random.seed()  # noqa: NPY002  # a custom model or loader may draw from it: not the same in every fork


def end_with_starters() -> None:
    """End this process, from a thread, when the run or the process that it was forked from has ended, however that ended.

    It would wait for its next call for good: a worker holds both ends of the pipe that brings them.
    """
    run, forked_from = multiprocessing.parent_process(), os.getppid()
    assert run is not None

    def watch() -> None:
        while run.is_alive() and os.getppid() == forked_from:
            run.join(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
    error = getattr(error, "cause", None) or error  # Ray's around it
    return str(error) if isinstance(error, (FedmfError, CannotBegin)) else one_line(error)


def stopped(why: str) -> RunStoppedError:
    """Return the error that stops a run whose clients no process can run, before anything of the round is released."""
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

    # With these a new interpreter finds the packages that this one has, and no folder of the current directory first.
    search = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in search if name in os.environ}
    os.environ.update(search)
    try:
        with unheard():
            resource_tracker.ensure_running()  # the server wants it, and starting it would let Ctrl-C through again
        with unheard():
            ensure_running()
    finally:
        for name in search:
            del os.environ[name]
        os.environ.update(before)
