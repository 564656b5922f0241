"""Clients played by several processes of this machine, one thread each; replies as from the in-process player."""

import math
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

import torch
from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from experiments.players.failures import Failure, note_again, take_noted
from experiments.players.local_grid import CLIENT_APP_RAISED, call_app, local_context, set_identity
from fedmf.errors import DeviceLostError

# Tasks travel in chunks that share one copy of the model: several, so that no worker waits long.
_CHUNKS_A_WORKER = 4

_client_app: ClientApp | None = None  # of this worker process

# The replies to a chunk, and beside them the clients that failed: nothing of that is in a reply.
_Played = tuple[list[Message], list[Failure]]


class WorkerPool:
    """A `Player` with `workers` processes, each with a ClientApp of its own, `resident_client_app(settings)`.

    A client that kills its process (out of memory, say) counts as an error reply, and takes no other with it. So does
    one after which the device does not answer its process any more: that process ends itself, and another begins.
    """

    def __init__(
        self, resident_client_app: Callable[[Any], ClientApp], settings: object, workers: int
    ) -> None:
        self._workers = workers
        self._initial = (resident_client_app, settings)
        self._executor = self._start()
        self._running: dict[Future[_Played], list[Message]] = {}
        self._suspects: list[Message] = []

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker processes."""
        self._executor.shutdown(cancel_futures=True)

    def submit(self, messages: list[Message]) -> None:
        """Hand the tasks to the workers, in chunks."""
        size = max(1, math.ceil(len(messages) / (_CHUNKS_A_WORKER * self._workers)))
        for start in range(0, len(messages), size):
            chunk = messages[start : start + size]
            try:
                self._running[self._executor.submit(_play, chunk)] = chunk
            except BrokenExecutor:  # a worker died since the last round
                self._suspects += chunk

    def collect(self, message_ids: list[str]) -> list[Message]:
        """Return the replies of the next chunks to end."""
        if not self._running and not self._suspects:
            return []
        done = wait(self._running, return_when=FIRST_COMPLETED).done if self._running else set()
        replies: list[Message] = []
        suspects, self._suspects = self._suspects, []
        for future in done:
            chunk = self._running.pop(future)
            try:
                replies += _noting(future.result())
            except BrokenExecutor:
                suspects += chunk
        return replies + (self._play_apart(suspects) if suspects else [])

    def _play_apart(self, suspects: list[Message]) -> list[Message]:
        """Return the replies to tasks of a broken pool, each played alone; error replies for those that break it."""
        suspects = suspects + [message for chunk in self._running.values() for message in chunk]
        self._running.clear()
        self._executor = self._start()
        replies = []
        for message in suspects:
            try:
                replies += _noting(self._executor.submit(_play, [message]).result())
            except BrokenExecutor:
                replies.append(Message(Error(CLIENT_APP_RAISED, "its process died"), reply_to=message))
                self._executor = self._start()
        return replies

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            multiprocessing.get_context("spawn"),  # a fork would inherit torch's threads and the run's locks
            initializer=_start_worker,
            initargs=self._initial,
        )


def _start_worker(resident_client_app: Callable[[Any], ClientApp], settings: object) -> None:
    global _client_app
    start_process()
    _client_app = resident_client_app(settings)


def start_process() -> None:
    """Make a new process one that can play clients."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends its workers
    torch.set_num_threads(1)
    set_identity()


def _noting(played: _Played) -> list[Message]:
    """Return the replies, after noting in this process who failed in a worker's."""
    replies, failures = played
    note_again(failures)
    return replies


def _play(messages: list[Message]) -> _Played:
    assert _client_app is not None
    context = local_context()
    try:
        return [call_app(_client_app, message, context) for message in messages], take_noted()
    except DeviceLostError:
        os._exit(1)  # the pool makes a new process, and finds the client at fault by playing each task alone
