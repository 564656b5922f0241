"""Clients played by several processes of this machine, one thread each; replies as from the in-process player."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing.context import BaseContext
from multiprocessing.queues import SimpleQueue
from types import TracebackType
from typing import Any, Self

from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from experiments.players.failures import Failure, note_again, take_noted
from experiments.players.local_grid import CLIENT_APP_RAISED, call_app, local_context
from experiments.players.parts import Gathering, Part, guided
from experiments.players.processes import (
    PAUSE,
    TRIES,
    fork_server,
    process_context,
    start_process,
    stopped,
    why_not,
)
from experiments.players.shared_model import Place, SharedModel, model_at
from fedmf.errors import DeviceLostError, RunStoppedError
from fedmf.updates import wire

log = logging.getLogger(__name__)

_client_app: ClientApp | None = None  # of this worker process

_REASON = 1000  # characters at most: one write to a pipe, which no end of a process cuts

# What the submission to an executor, or a future of it, raises that lost its processes or could not begin one.
_LOST = (BrokenExecutor, OSError, EOFError)

# The replies to a chunk, and beside them the clients that failed: nothing of that is in a reply.
_Played = tuple[list[Message], list[Failure]]


class WorkerPool:
    """A `Player` with `workers` processes, each with a ClientApp of its own, `resident_client_app(settings)`.

    That is called before a process is given any client, and makes all that needs none: what it raises is nobody's data.
    With `devices` (torch's names) the app of each process is `resident_client_app(settings, device)`: each worker takes
    the next in turn.

    A client that kills its process (out of memory, say) counts as an error reply, and takes no other with it. So does
    one after which the device does not answer its process any more: that process ends itself, and another begins. Only
    a process that has played nobody else is taken as evidence against a client.

    Nobody else is at fault: clients whom the end of the fork server cuts off are played again, and where no worker can
    begin, `collect` raises `RunStoppedError` and answers nothing.
    """

    def __init__(
        self,
        resident_client_app: Callable[..., ClientApp],
        settings: object,
        workers: int,
        devices: Sequence[str] = (),
    ) -> None:
        self._workers = workers
        self._devices = devices
        self._make_app, self._settings = resident_client_app, settings
        self._reason: SimpleQueue[str] | None = None  # why a worker could not begin
        self._executor = self._start(workers)
        self._server = fork_server()  # that began the workers
        self._losses = 0  # of fork servers since the last reply
        self._has_played = False  # the single worker of `_begin_one`, since it began
        self._stop: RunStoppedError | None = None
        self._running: dict[Future[_Played], list[Part]] = {}
        self._lost: list[list[Part]] = []  # chunks whose worker ended, or was not there
        self._gathered: dict[str, Gathering] = {}
        self._model: SharedModel | None = None
        self._models = 0  # shared so far

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker processes."""
        self._executor.shutdown(cancel_futures=True)
        if self._model is not None:
            self._model.close()

    def submit(self, messages: list[Message]) -> None:
        """Hand the clients to the workers, in chunks that shrink as the round goes on."""
        place = self._share(messages)
        self._gathered |= {message.metadata.message_id: Gathering(message) for message in messages}
        self._hand_out(guided(messages, self._workers), place)

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to the next messages of which each client's part has ended.

        Raises `RunStoppedError` where no worker can begin, and from then on.
        """
        if self._stop is not None:
            raise self._stop
        replies: list[Message] = []
        while not replies and (self._running or self._lost):
            done = wait(self._running, return_when=FIRST_COMPLETED).done if self._running else set()
            for future in done:
                chunk = self._running.pop(future)
                try:
                    played = future.result()
                except Exception:  # a dead process, or what cannot travel: alone it is seen whose fault it is
                    self._lost.append(chunk)
                else:
                    self._losses = 0
                    replies += self._taken(chunk, played)
            if self._lost:
                replies += self._play_again()
        return replies

    def _hand_out(self, chunks: Iterable[list[Part]], place: Place | None) -> None:
        for chunk in chunks:
            if not self._lost:
                try:
                    self._running[self._submitted(place, _packed(chunk, place))] = chunk
                    continue
                except _LOST:  # since the last round, say
                    pass
            self._lost.append(chunk)

    def _submitted(self, place: Place | None, messages: list[Message]) -> "Future[_Played]":
        self._fork_context()  # a fork server that the executor had to start would lack what ours are given
        return self._executor.submit(_play, place, messages)

    def _share(self, messages: Sequence[Message]) -> Place | None:
        """Put the model of `messages` where the workers can read it; None: each chunk carries its own.

        The model before is given up, unless a worker may still need it.
        """
        models = [message.content.get(wire.MODEL) for message in messages]
        is_one = bool(models) and models[0] is not None and all(model is models[0] for model in models)
        if self._running or not is_one or not SharedModel.is_possible():
            return None
        if self._model is not None:
            self._model.close()
        self._models += 1
        self._model = SharedModel(models[0], self._models)  # type: ignore[arg-type]
        return self._model.place

    def _taken(self, chunk: Sequence[Part], played: _Played) -> list[Message]:
        """Return the messages that the replies to `chunk` complete, after noting here who failed in a worker."""
        replies, failures = played
        note_again(failures)
        complete: list[Message] = []
        for part, reply in zip(chunk, replies, strict=True):
            gathering = self._gathered[part.whole.metadata.message_id]
            if (whole := gathering.add(part, reply)) is not None:
                del self._gathered[part.whole.metadata.message_id]
                note_again(gathering.failures)
                complete.append(whole)
        return complete

    def _play_again(self) -> list[Message]:
        """Begin with new workers, and return as `_taken` from whom the old ones played; an error for who breaks one."""
        before = self._server
        self._executor.shutdown(cancel_futures=True)
        if said := self._said():
            log.warning("a worker could not begin (%s); its clients are played again", said)
        chunks, self._lost = [*self._lost, *self._running.values()], []
        self._running.clear()
        self._begin_one()
        if self._server == before:
            alone = [client for chunk in chunks for several in chunk for client in several.alone()]
            replies = [reply for part in alone for reply in self._taken([part], self._played_alone(part))]
            self._executor.shutdown()
            self._executor = self._start(self._workers)
            return replies
        self._note_lost_server()
        self._executor.shutdown()
        self._executor = self._start(self._workers)
        self._hand_out(chunks, None)
        return []

    def _played_alone(self, part: Part) -> _Played:
        """Return the reply to one client in a worker that is there."""
        message = part.message(with_model=True)
        while True:
            before, was_new, self._has_played = self._server, not self._has_played, True
            try:
                played = self._submitted(None, [message]).result()
            except _LOST:
                self._executor.shutdown(cancel_futures=True)
                self._begin_one()
                if self._server != before:
                    self._note_lost_server()
                elif was_new:  # the server was there all the time, as the worker was: the client is at fault
                    return [_failed("its process died", message)], []
            except Exception as error:
                return [_failed(type(error).__name__, message)], []
            else:
                self._losses = 0
                return played

    def _begin_one(self) -> None:
        """Replace the executor by one of a single worker that has begun. Raises `RunStoppedError` where none can."""
        tries = max(TRIES, len(self._devices))
        for number in range(tries):
            if number:
                time.sleep(PAUSE)
            try:
                self._executor = self._start(1, first_device=number)
                self._executor.submit(_is_there).result()
                self._server, self._has_played = fork_server(), False
                return
            except _LOST as error:
                said = self._said() or f"{type(error).__name__}: {error}"
                self._executor.shutdown()
        raise self._stopped(f"no worker process can begin ({said}); {tries} tries were made")

    def _said(self) -> str | None:
        assert self._reason is not None
        return None if self._reason.empty() else self._reason.get()

    def _note_lost_server(self) -> None:
        """Count a fork server that ended. Raises `RunStoppedError` where this happens again and again."""
        self._losses += 1
        if self._losses >= TRIES:
            raise self._stopped(
                f"the process that starts the workers ended {self._losses} times without a reply in between"
            )
        log.warning("the process that starts the workers ended; its clients are played again")

    def _stopped(self, why: str) -> RunStoppedError:
        self._stop = stopped(why)
        return self._stop

    def _fork_context(self) -> BaseContext:
        return process_context([self._make_app.__module__])

    def _start(self, workers: int, first_device: int = 0) -> ProcessPoolExecutor:
        context = self._fork_context()
        devices: SimpleQueue[str] | None = None
        if self._devices:
            devices = context.SimpleQueue()
            for number in range(workers):
                devices.put(self._devices[(first_device + number) % len(self._devices)])
        self._reason = context.SimpleQueue()
        return ProcessPoolExecutor(
            workers,
            context,
            initializer=_start_worker,
            initargs=(self._make_app, self._settings, devices, self._reason, dict(os.environ)),
        )


def _failed(reason: str, message: Message) -> Message:
    return Message(Error(CLIENT_APP_RAISED, reason), reply_to=message)


def _packed(chunk: Sequence[Part], place: Place | None) -> list[Message]:
    return [part.message(with_model=place is None) for part in chunk]


def _start_worker(
    resident_client_app: Callable[..., ClientApp],
    settings: object,
    devices: "SimpleQueue[Any] | None",
    reason: "SimpleQueue[str]",
    environment: dict[str, str],
) -> None:
    global _client_app
    start_process(environment)
    device = () if devices is None else (devices.get(),)
    try:
        _client_app = resident_client_app(settings, *device)
    except (Exception, SystemExit) as error:
        reason.put(why_not(error)[:_REASON])
        os._exit(1)  # without a traceback for each worker: the pool tells why once


def _is_there() -> None:
    """Do nothing, in a worker that has begun."""


def _play(place: Place | None, messages: list[Message]) -> _Played:
    assert _client_app is not None
    context = local_context()
    if place is not None:
        for message in messages:
            message.content[wire.MODEL] = model_at(place)
    try:
        return [call_app(_client_app, message, context) for message in messages], take_noted()
    except DeviceLostError:
        os._exit(1)  # the pool makes a new process, and finds the client at fault by playing each task alone
