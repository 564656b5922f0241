"""A `Worker` of several processes: those of this machine, or of a Ray cluster (`ray.py`)."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self

from flwr.app import ArrayRecord, Error, Message
from flwr.clientapp import ClientApp

from experiments.engines.failures import note_again
from experiments.engines.grid import CLIENT_APP_RAISED
from experiments.engines.messages import Gathering, Part, guided
from experiments.engines.processes import (
    LOST,
    PAUSE,
    TRIES,
    CannotBegin,
    LocalProcess,
    Played,
    run_messages,
    run_with_model,
    stopped,
    why_not,
)
from fedmf.errors import RunStoppedError
from fedmf.updates import wire

log = logging.getLogger(__name__)


class Process(Protocol):
    """A worker process, one call at a time; where it dies, the future raises one of `LOST`."""

    def begin(self) -> "Future[object]":
        """Start it, or start it again, without any client; the future gives what started it, or raises `CannotBegin`."""

    def submit(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Call `function` in it."""

    def end(self) -> None:
        """End it."""


@dataclass(frozen=True)
class _Chunk:
    parts: list[Part]
    model: ArrayRecord | None  # None: each message has its own

    def alone(self) -> "list[_Chunk]":
        return [_Chunk([client], self.model) for part in self.parts for client in part.alone()]


@dataclass(eq=False)
class _Seat:
    """A process and what is known of it."""

    process: Process
    tries: int = 0  # to begin, that failed in a row
    parent: object = None  # what started it
    has_run: bool = False  # any client, since it began
    lost: _Chunk | None = None  # what it ran when it died
    model: ArrayRecord | None = None  # that it has received


class Pool:
    """A `Worker` whose `processes` take clients in chunks that shrink towards the end of a round.

    A client that kills its process (out of memory, say) counts as an error reply, and costs no other client anything. So
    does one after which the device does not answer its process any more: that process ends itself, and another begins.
    A process counts as evidence against a client only if it had run no other client. Where the process that starts the
    workers ended, their clients are run again; where no worker can begin, `collect` raises `RunStoppedError` and nothing
    is answered.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        self._seats = [_Seat(process) for process in processes]
        self._idle: list[_Seat] = []
        self._running: dict[Future[Any], tuple[_Seat, _Chunk | None]] = {}  # None: it begins
        self._queue: deque[_Chunk] = deque()
        self._gathered: dict[str, Gathering] = {}
        self._parents: set[object] = set()  # all that have started workers
        self._losses = 0  # of these, since the last reply
        self._stop: RunStoppedError | None = None
        for seat in self._seats:
            self._begin(seat)

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        for seat in self._seats:
            seat.process.end()

    def submit(self, messages: list[Message]) -> None:
        """Hand the clients to the processes."""
        models = [message.content.array_records.get(wire.MODEL) for message in messages]
        model = models[0] if models and all(model is models[0] for model in models) else None
        self._gathered |= {message.metadata.message_id: Gathering(message) for message in messages}
        self._queue.extend(_Chunk(parts, model) for parts in guided(messages, max(1, len(self._seats))))
        self._hand_out()

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to the next messages of which each client has been run.

        Raises `RunStoppedError` where no process can begin, and from then on.
        """
        replies: list[Message] = []
        while self._gathered and not replies:
            if self._stop is not None:
                raise self._stop
            self._hand_out()
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                seat, chunk = self._running.pop(future)
                replies += self._begun(seat, future) if chunk is None else self._ended(seat, chunk, future)
        return replies

    def _hand_out(self) -> None:
        while self._idle and self._queue:
            self._run(self._idle.pop(0), self._queue.popleft())

    def _run(self, seat: _Seat, chunk: _Chunk) -> None:
        messages = [part.message(with_model=chunk.model is None) for part in chunk.parts]
        if chunk.model is None:
            future = seat.process.submit(run_messages, messages)
        else:  # a process receives a round's model once
            future = seat.process.submit(
                run_with_model, None if seat.model is chunk.model else chunk.model, messages
            )
            seat.model = chunk.model
        self._running[future] = seat, chunk

    def _begin(self, seat: _Seat) -> None:
        self._running[seat.process.begin()] = seat, None

    def _begun(self, seat: _Seat, future: "Future[object]") -> list[Message]:
        """Give a process that has begun its next clients; returns the reply of a client that killed the last one."""
        try:
            parent = future.result()
        except (CannotBegin, *LOST) as error:
            seat.tries += 1
            if seat.tries < TRIES:
                time.sleep(PAUSE)  # what a dead process held may not be free at once
                self._begin(seat)
            else:
                self._give_up(seat, why_not(error))
            return []
        if seat.parent is not None and parent != seat.parent and parent not in self._parents:
            self._note_lost_parent()
        self._parents.add(parent)
        lost, is_same, was_new = seat.lost, parent == seat.parent, not seat.has_run
        seat.tries, seat.parent, seat.has_run, seat.lost, seat.model = 0, parent, False, None, None
        if lost is not None and is_same and len(alone := lost.alone()) == 1:
            if not was_new:
                self._run(seat, lost)
                return []
            self._idle.append(seat)
            return self._taken(lost, ([_failed("its process died", lost.parts[0])], []))
        if lost is not None:  # what started it had ended, or nobody knows which client it was
            self._queue.extendleft(alone if is_same else [lost])
        self._idle.append(seat)
        return []

    def _ended(self, seat: _Seat, chunk: _Chunk, future: "Future[Played]") -> list[Message]:
        """Return the messages that the replies to `chunk` complete; where its process died, it begins again."""
        try:
            played = future.result()
        except LOST:
            seat.lost = chunk
            self._begin(seat)
            return []
        except Exception as error:  # a reply that cannot be pickled
            seat.has_run, seat.model = True, None  # whether the call reached the process is unknown
            self._idle.append(seat)
            if len(alone := chunk.alone()) > 1:
                self._queue.extendleft(alone)
                return []
            played = [_failed(type(error).__name__, chunk.parts[0])], []
        else:
            seat.has_run, self._losses = True, 0
            self._idle.append(seat)
        return self._taken(chunk, played)

    def _taken(self, chunk: _Chunk, played: Played) -> list[Message]:
        """Return the messages that the replies to `chunk` complete, and note in this process which clients failed."""
        replies, failures = played
        note_again(failures)
        complete: list[Message] = []
        for part, reply in zip(chunk.parts, replies, strict=True):
            message_id = part.whole.metadata.message_id
            if (whole := self._gathered[message_id].add(part, reply)) is not None:
                note_again(self._gathered.pop(message_id).failures)
                complete.append(whole)
        return complete

    def _give_up(self, seat: _Seat, why: str) -> None:
        """Go on without a process that cannot begin; no client is charged for it."""
        seat.process.end()
        self._seats.remove(seat)
        if seat.lost is not None:
            self._queue.appendleft(seat.lost)
        if not self._seats:
            self._stop = stopped(f"no worker process can begin ({why}); {TRIES} tries were made")
        else:
            log.warning("a worker process cannot begin (%s); the others run its clients", why)

    def _note_lost_parent(self) -> None:
        """Count a process that starts workers and has ended: where that repeats, the run stops."""
        self._losses += 1
        log.warning("the process that starts the workers ended; its clients are run again")
        if self._losses >= TRIES:
            self._stop = stopped(
                f"the process that starts the workers ended {self._losses} times without a reply in between"
            )


class WorkerPool(Pool):
    """`workers` processes of this machine, one thread each, whose app is `resident_client_app(settings)`.

    With `devices` (torch's names) it is `resident_client_app(settings, device)`: each worker takes the next in turn.
    """

    def __init__(
        self,
        resident_client_app: Callable[..., ClientApp],
        settings: object,
        workers: int,
        devices: Sequence[str] = (),
    ) -> None:
        given = [[devices[number % len(devices)]] if devices else [] for number in range(workers)]
        super().__init__([LocalProcess(partial(resident_client_app, settings, *device)) for device in given])


def _failed(reason: str, part: Part) -> Message:
    return Message(Error(CLIENT_APP_RAISED, reason), reply_to=part.message(with_model=False))
