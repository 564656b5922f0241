"""Processes that run clients: those of this machine, and a pool of such processes or of a Ray cluster's (`ray.py`).

The import of torch, Flower and our own packages takes about three seconds of CPU. A fork server (see
`multiprocessing`) pays it once for all worker processes of a run: it imports and does nothing else, so that it has one
thread, no lock is held and no device in use when it forks, as would be the case in a fork of the run's own process.
"""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import forkserver, resource_tracker
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Message
from flwr.clientapp import ClientApp

from client.app import Task, pack, part_of, unpack
from experiments.engines.grid import Failure, Note, call_app, local_context, noted, set_identity, take_noted
from fedmf.errors import DeviceLostError, FedmfError, RunStoppedError, one_line
from fedmf.updates import wire

log = logging.getLogger(__name__)

TRIES = 3  # to begin a process that runs clients, before it is given up
PAUSE = 1.0  # seconds between two of them: what a dead process held may not be free at once
# Ctrl-C and a closed terminal reach every process of the terminal; they are for the command, which then ends its workers.
FOR_THE_COMMAND = (signal.SIGINT, signal.SIGHUP)

MakeApp = Callable[[], ClientApp]
# The reply to a message, and separately what was noted of its clients: a reply contains nothing of that.
Answer = tuple[Message, list[Note]]

_app: ClientApp | None = None  # of this worker process


class CannotBegin(Exception):
    """Why a worker process could not build what it runs clients with, as text: not every error can be pickled."""


class Process(Protocol):
    """A process that runs clients, of this machine (`LocalProcess`) or of a cluster (`ray.RayProcess`)."""

    def begin(self) -> "Future[None]":
        """Start a process in place of the last one, and make its app."""

    def call(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Call `function` in the process."""

    def end(self) -> None:
        """End the process."""


class LocalProcess:
    """A process of this machine that runs the app that `make_app` returns, found by its import path; see `Process`.

    `environment` is added to the environment of this process.
    """

    def __init__(self, make_app: MakeApp, environment: Mapping[str, str] | None = None) -> None:
        self._make_app, self._environment = make_app, environment or {}
        self._executor: ProcessPoolExecutor | None = None

    def begin(self) -> "Future[None]":
        self.end()
        context, environment = process_context(), {**os.environ, **self._environment}
        # Unheard until it is forked: it needs what their error would free.
        with unheard(*FOR_THE_COMMAND, signal.SIGTERM):
            self._executor = ProcessPoolExecutor(1, context, start_process, (environment,))
            return self.call(begin_process, self._make_app)

    def call(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        assert self._executor is not None
        return self._executor.submit(function, *arguments)

    def end(self) -> None:
        """End the process when it has finished what it runs."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


class Pool:
    """A `Worker` whose `processes`, which its caller ends, take the messages of a round one by one.

    A process that dies begins again, and runs the clients of its message one by one. A client at which it dies twice (out of
    memory, say, or of a device that does not answer it any more), the second time as the first client of a new process,
    counts as an error, and costs no other client anything. A process that cannot begin is given up, and the others run its
    clients; where none is left, `collect` raises `RunStoppedError` and nothing is answered.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = list(processes)
        self._idle: list[Process] = []
        self._queue: deque[Message] = deque()
        self._running: dict[Future[Answer], tuple[Process, Message]] = {}
        self._why = ""  # the last process was given up
        for process, begun in [(process, attempt(process.begin)) for process in processes]:
            try:
                begin(process, begun)
                self._idle.append(process)
            except CannotBegin as error:
                self._give_up(process, error)

    def submit(self, messages: list[Message]) -> None:
        self._queue.extend(messages)
        self._hand_out()

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to the next messages of which each client has been run.

        Raises `RunStoppedError` where no process can begin, and from then on.
        """
        while self._queue or self._running:
            if not self._processes:
                raise stopped(f"no worker process can begin ({self._why}); {TRIES} tries were made")
            reply = self._answered(wait(self._running, return_when=FIRST_COMPLETED).done.pop())
            self._hand_out()
            if reply is not None:
                return [reply]
        return []

    def _hand_out(self) -> None:
        while self._idle and self._queue:
            process, message = self._idle.pop(0), self._queue.popleft()
            self._running[attempt(process.call, run_message, message)] = process, message

    def _answered(self, future: "Future[Answer]") -> Message | None:
        """Return the reply to a message, and have its process at hand again; None where that was given up."""
        process, message = self._running.pop(future)
        try:
            try:
                reply = _heard(future)
            except Exception:  # it died, or its reply cannot be pickled
                begin(process)
                tasks, _ = unpack(message)
                reply = pack([_values_alone(process, message, task) for task in tasks], message)
        except CannotBegin as error:
            self._give_up(process, error)
            self._queue.appendleft(message)
            return None
        self._idle.append(process)
        return reply

    def _give_up(self, process: Process, error: CannotBegin) -> None:
        """Continue without a process that cannot begin; no client is charged for it."""
        process.end()
        self._processes.remove(process)
        self._why = str(error)
        if self._processes:
            log.warning("a worker process cannot begin (%s); the others run its clients", error)


def _values_alone(process: Process, message: Message, task: Task) -> bytes:
    """Return what one client of `message` sends, nothing where two processes die, the second of which had run no other."""
    for _ in range(2):
        try:
            reply = _heard(process.call(run_message, part_of(message, [task])))
            return bytes(*reply.content.config_records[wire.UPDATE][wire.VALUES])  # type: ignore[misc]
        except Exception:
            begin(process)
    noted.append(Failure(task.turn.client, "its process died"))
    return wire.NO_VALUES


def begin(process: Process, begun: "Future[None] | None" = None) -> None:
    """Begin a process, `begun` being the first try. Raises `CannotBegin` after `TRIES` of them."""
    for number in range(TRIES):
        time.sleep(PAUSE if number else 0)
        try:
            (begun or process.begin()).result()
            return
        except Exception as error:
            begun, why = None, why_not(error)
    raise CannotBegin(why)


def attempt(start: "Callable[..., Future[Any]]", *arguments: object) -> "Future[Any]":
    """Return the future that `start` returns, or one that raises what it raises: a process may have ended before."""
    try:
        return start(*arguments)
    except Exception as error:
        future: Future[Any] = Future()
        future.set_exception(error)
        return future


def _heard(future: "Future[Answer]") -> Message:
    reply, notes = future.result()
    noted.extend(notes)
    return reply


def begin_process(make_app: MakeApp) -> None:
    """Make this a process that runs clients with `make_app()`, before it is given any. Raises `CannotBegin`."""
    global _app
    try:
        _app = make_app()
    except (Exception, SystemExit) as error:
        raise CannotBegin(why_not(error)) from None


def run_message(message: Message) -> Answer:
    """Return this process's reply.

    Ends the process where the device does not answer any more: another one begins, and runs each client alone.
    """
    if _app is None:  # a cluster started the process again by itself
        os._exit(1)
    take_noted()  # of a message that raised
    try:
        return call_app(_app, message, local_context()), take_noted()
    except DeviceLostError:
        os._exit(1)


def process_context() -> multiprocessing.context.BaseContext:
    """Return how to start processes: from a fork server, which this process has for good.

    The server is deaf to Ctrl-C and to a closed terminal, and has this process's search path.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.engines.engine"])  # builds the clients of a run
    # With these a new interpreter finds the packages that this one has, and no folder of the current directory first.
    search = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "PYTHONSAFEPATH": "1"}
    before = {name: os.environ[name] for name in search if name in os.environ}
    os.environ.update(search)
    try:
        with unheard():
            resource_tracker.ensure_running()  # the server wants it, and starting it would let Ctrl-C through again
        with unheard():
            forkserver.ensure_running()
    finally:
        for name in search:
            del os.environ[name]
        os.environ.update(before)
    return context


def spawn_context() -> multiprocessing.context.BaseContext:
    """Return how to start processes that inherit nothing, with what keeps their semaphores deaf to a closed terminal."""
    with unheard():
        resource_tracker.ensure_running()  # which by itself is deaf to Ctrl-C alone
    return multiprocessing.get_context("spawn")


def start_process(environment: Mapping[str, str]) -> None:
    """Prepare a new process for running clients; `environment` is that of the process that wants it."""
    logging.getLogger("client.data").setLevel(logging.ERROR)  # of unreadable data the session has warned
    os.environ.clear()  # a fork server's is from when it began
    os.environ.update(environment)
    end_with_starters()
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
def unheard(*signals: signal.Signals) -> Iterator[None]:
    """Block Ctrl-C and a closed terminal, or `signals`, in this thread until the end of the block, and for good in what it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals or FOR_THE_COMMAND)
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
    costs more than most kernels. An array that is never written to costs nothing; sizes up to 32 MiB are remembered.
    """
    np.empty(30 << 20, np.uint8)
