"""Clients played by several processes of this machine, one thread each; replies as from the in-process player."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing.queues import SimpleQueue
from types import TracebackType
from typing import Any, Self

from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from experiments.players.failures import Failure, note_again, take_noted
from experiments.players.local_grid import CLIENT_APP_RAISED, call_app, local_context
from experiments.players.parts import Gathering, Part, guided
from experiments.players.processes import process_context, start_process
from experiments.players.shared_model import Place, SharedModel, model_at
from fedmf.errors import DeviceLostError
from fedmf.updates import wire

_client_app: ClientApp | None = None  # of this worker process

# The replies to a chunk, and beside them the clients that failed: nothing of that is in a reply.
_Played = tuple[list[Message], list[Failure]]


class WorkerPool:
    """A `Player` with `workers` processes, each with a ClientApp of its own, `resident_client_app(settings)`.

    With `devices` (torch's names) the app of each process is `resident_client_app(settings, device)`: each worker takes
    the next in turn.

    A client that kills its process (out of memory, say) counts as an error reply, and takes no other with it. So does
    one after which the device does not answer its process any more: that process ends itself, and another begins.
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
        self._context = process_context([resident_client_app.__module__])
        self._executor = self._start()
        self._running: dict[Future[_Played], list[Part]] = {}
        self._suspects: list[Part] = []
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
        for chunk in guided(messages, self._workers):
            try:
                self._running[self._executor.submit(_play, place, _packed(chunk, place))] = chunk
            except BrokenExecutor:  # a worker died since the last round
                self._suspects += chunk

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies to the next messages of which each client's part has ended."""
        replies: list[Message] = []
        while not replies and (self._running or self._suspects):
            done = wait(self._running, return_when=FIRST_COMPLETED).done if self._running else set()
            suspects, self._suspects = self._suspects, []
            for future in done:
                chunk = self._running.pop(future)
                try:
                    replies += self._taken(chunk, future.result())
                except BrokenExecutor:
                    suspects += chunk
            if suspects:
                replies += self._play_apart(suspects)
        return replies

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

    def _play_apart(self, suspects: list[Part]) -> list[Message]:
        """Play the clients of a broken pool again, each alone, and return as `_taken`; an error for who breaks it."""
        chunks = [suspects, *self._running.values()]
        self._running.clear()
        self._executor = self._start()
        replies = []
        for part in [client for chunk in chunks for several in chunk for client in several.alone()]:
            message = part.message(with_model=True)
            try:
                played = self._executor.submit(_play, None, [message]).result()
            except BrokenExecutor:
                error = Message(Error(CLIENT_APP_RAISED, "its process died"), reply_to=message)
                played = [error], []
                self._executor = self._start()
            replies += self._taken([part], played)
        return replies

    def _start(self) -> ProcessPoolExecutor:
        devices: SimpleQueue[str] | None = None
        if self._devices:
            devices = self._context.SimpleQueue()
            for number in range(self._workers):
                devices.put(self._devices[number % len(self._devices)])
        return ProcessPoolExecutor(
            self._workers,
            self._context,
            initializer=_start_worker,
            initargs=(self._make_app, self._settings, devices, dict(os.environ)),
        )


def _packed(chunk: Sequence[Part], place: Place | None) -> list[Message]:
    return [part.message(with_model=place is None) for part in chunk]


def _start_worker(
    resident_client_app: Callable[..., ClientApp],
    settings: object,
    devices: "SimpleQueue[Any] | None",
    environment: dict[str, str],
) -> None:
    global _client_app
    start_process(environment)
    device = () if devices is None else (devices.get(),)
    _client_app = resident_client_app(settings, *device)


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
