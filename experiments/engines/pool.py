"""A `Worker` of several processes: those of this machine, or of a Ray cluster (`ray.py`)."""

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from types import TracebackType
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from client.app import Task, pack, part_of, unpack
from experiments.engines.grid import Failure, noted
from experiments.engines.processes import CannotBegin, LocalProcess, Played, run_message, stopped, why_not
from experiments.engines.ray import RayProcess
from fedmf.updates import wire

log = logging.getLogger(__name__)

TRIES = 3  # to begin a process that runs clients, before it is given up
PAUSE = 1.0  # seconds between two of them: what a dead process held may not be free at once
MESSAGES_A_WORKER = 4  # in a round: what is answered is added up while others still train


Process = LocalProcess | RayProcess


class Pool(contextlib.AbstractContextManager["Pool"]):
    """A `Worker` whose `processes` take the messages of a round one by one.

    A process that dies begins again, and runs the clients of its message alone. A client at which it dies (out of memory,
    say, or of a device that does not answer it any more) though it had run no other counts as an error, and costs no
    other client anything. A process that cannot begin is given up, and the others run its clients; where none is left,
    `collect` raises `RunStoppedError` and nothing is answered.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = list(processes)
        self._idle: list[Process] = []
        self._used: set[Process] = set()  # that have run a client since they began
        self._queue: deque[Message] = deque()
        self._running: dict[Future[Played], tuple[Process, Message]] = {}
        self._why = ""  # the last process was given up
        for process, begun in [(process, attempt(process.begin)) for process in processes]:
            try:
                begin(process, begun)
                self._idle.append(process)
            except CannotBegin as error:
                self._give_up(process, error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        for process in self._processes:
            process.end()

    def submit(self, messages: list[Message]) -> None:
        """Hand the messages to the processes."""
        self._queue.extend(messages)
        self._hand_out()

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to the next messages of which each client has been run.

        Raises `RunStoppedError` where no process can begin, and from then on.
        """
        while self._queue or self._running:
            if not self._processes:
                raise stopped(f"no worker process can begin ({self._why}); {TRIES} tries were made")
            done = wait(self._running, return_when=FIRST_COMPLETED).done
            replies = [reply for future in done for reply in self._answered(future)]
            self._hand_out()
            if replies:
                return replies
        return []

    def _hand_out(self) -> None:
        while self._idle and self._queue:
            process, message = self._idle.pop(0), self._queue.popleft()
            self._used.add(process)
            self._running[attempt(process.run, message)] = process, message

    def _answered(self, future: "Future[Played]") -> list[Message]:
        """Return the reply to a message, and have its process at hand again; nothing where that was given up."""
        process, message = self._running.pop(future)
        try:
            try:
                reply = _heard(future)
            except Exception:  # it died, or its reply cannot be pickled
                self._begin_again(process)
                tasks, _ = unpack(message)
                reply = pack([self._values_alone(process, message, task) for task in tasks], message)
        except CannotBegin as error:
            self._give_up(process, error)
            self._queue.appendleft(message)
            return []
        self._idle.append(process)
        return [reply]

    def _values_alone(self, process: Process, message: Message, task: Task) -> bytes:
        """Return what one client of `message` sends, nothing where a process dies that had run no other client."""
        for _ in range(2):
            was_new = process not in self._used
            self._used.add(process)
            try:
                reply = _heard(process.run(part_of(message, [task])))
                return bytes(*wire.entries(reply.content.config_records[wire.UPDATE], wire.VALUES))
            except Exception:
                self._begin_again(process)
            if was_new:
                break
        noted.append(Failure(task.client, "its process died"))
        return wire.NO_VALUES

    def _begin_again(self, process: Process) -> None:
        begin(process)
        self._used.discard(process)

    def _give_up(self, process: Process, error: CannotBegin) -> None:
        """Continue without a process that cannot begin; no client is charged for it."""
        process.end()
        self._processes.remove(process)
        self._why = str(error)
        if self._processes:
            log.warning("a worker process cannot begin (%s); the others run its clients", error)


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


def _heard(future: "Future[Played]") -> Message:
    """Return a process's reply, and note in this process which clients failed."""
    reply, failures = future.result()
    noted.extend(failures)
    return reply


def clients_a_message(cohort_size: int, workers: int, most: int) -> int:
    """Return how many clients of a round share a message, at most `most`, for `MESSAGES_A_WORKER`."""
    return min(most, math.ceil(cohort_size / (MESSAGES_A_WORKER * workers)))


def in_another_process(
    make: Callable[[Message, Context], ClientApp], message: Message, context: Context
) -> Message:
    """Return the reply of the app `make(message, context)` from a new process, for one that has lost its device.

    `make` is found by its import path and reads no client's data: where it raises, or no process begins, `RunStoppedError`
    is raised and no client has been run. Where the process dies after that, this raises what its future does. A message
    costs the start of a process: this is for the rare case only.
    """
    process = LocalProcess(partial(make, message, context))
    try:
        begin(process)
        return _heard(process.call(run_message, message, context))
    except CannotBegin as error:
        raise stopped(
            f"no process can begin that runs the clients after a lost device ({error}); {TRIES} tries were made"
        ) from error
    finally:
        process.end()
