"""The worker processes of a Ray cluster that play a run's clients, each at one message at a time."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, TypeVar

import torch
from flwr.app import Context, Error, Message

from experiments.players.failures import clients_of, with_failures, without_failures
from experiments.players.local_grid import CLIENT_APP_RAISED
from experiments.players.parts import Gathering, Part
from experiments.players.processes import PAUSE, TRIES, why_not
from experiments.players.ray_cluster import Reservation, joined
from fedmf.errors import RunStoppedError, SettingError

_PATIENCE = 120.0  # seconds for workers to start: Ray waits for ever where other jobs hold what they need
_PAUSE = 0.2  # seconds between two questions to a worker that is being started again

T = TypeVar("T")


class RayWorkers:
    """The workers of a run. One whose process dies, or whose node is lost, is started again where there is room.

    What it was at is then played again, client by client: one at which the process dies again counts as an error, and
    takes no other with it.
    """

    def __init__(self, ray: Any, workers: list[Any]) -> None:
        self._ray, self._workers = ray, list(workers)
        self._idle: SimpleQueue[Any] = SimpleQueue()
        self._lock = Lock()
        self._beginning: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        # Why a worker was given up that could be started but not begin, "" where none was.
        self.why = ""
        # Set when no worker is left.
        self.lost = Event()
        self._is_ending = Event()
        for worker in workers:
            self._idle.put(worker)

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    @property
    def has_idle(self) -> bool:
        """Whether a worker has nothing to do."""
        return not self._idle.empty()

    def ask_each(self, function: Callable[..., T], *arguments: Any) -> list[tuple[str, T]]:
        """Return what `function` returns in each worker, with the worker's name.

        Raises `SettingError` for a worker that cannot run it.
        """
        names = self._ray.get([worker.name.remote() for worker in self._workers])
        answers = [worker.call.remote(function, *arguments) for worker in self._workers]
        return [(name, self._answer(name, answer)) for name, answer in zip(names, answers, strict=True)]

    def begin(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call `function` in each worker, and again in one that was started again, before it is given a client.

        Raises `SettingError` for a worker in which it raises now; one in which it raises later is given up.
        """
        self.ask_each(function, *arguments)
        self._beginning = function, arguments

    def play(self, app: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
        """Return the reply of `app` in a worker that has nothing else to do, waiting for one.

        Raises `SystemExit` once the workers are being ended: the thread that asked has nobody to answer to.
        """
        try:
            try:
                return self._play_once(app, message, context)
            except self._ray.exceptions.RayTaskError:
                raise
            except self._ray.exceptions.RayError:  # the process or its node died
                return self._play_apart(app, message, context)
        except Exception:
            if self._is_ending.is_set():
                raise SystemExit from None
            raise

    def end(self) -> None:
        """End the workers, whatever they are at."""
        self._is_ending.set()
        self._idle.put(None)
        for worker in self._workers:
            with contextlib.suppress(Exception):  # the cluster may be gone
                self._ray.kill(worker)

    def _play_once(
        self, app: Callable[[Message, Context], Message], message: Message, context: Context
    ) -> Message:
        """Return the reply of the next worker that has nothing to do."""
        worker = self._next_idle()
        try:
            reply: Message = self._ray.get(worker.call.remote(app, message, context))
        except self._ray.exceptions.RayTaskError:
            self._idle.put(worker)
            raise
        except self._ray.exceptions.RayError:
            if self._is_ending.is_set():
                raise
            if self._is_there(worker):
                self._idle.put(worker)
            else:
                self._forget(worker)
            raise
        self._idle.put(worker)
        return reply

    def _play_alone(
        self, app: Callable[[Message, Context], Message], message: Message, context: Context
    ) -> Message | None:
        """Return a worker's reply to one client, None where two workers died at it that were known to be there.

        The second is the first begun anew, if that can be, which has played nobody else.
        """
        worker = None
        for _ in range(2):
            if worker is None:
                worker = self._next_there()
            try:
                reply: Message = self._ray.get(worker.call.remote(app, message, context))
            except self._ray.exceptions.RayTaskError:
                self._idle.put(worker)
                raise
            except self._ray.exceptions.RayError:
                if self._is_ending.is_set():
                    raise
                if not self._is_there(worker):
                    self._forget(worker)
                    worker = None
            else:
                self._idle.put(worker)
                return reply
        if worker is not None:
            self._idle.put(worker)
        return None

    def _next_idle(self) -> Any:
        """Wait for a worker that has nothing to do. Raises `RunStoppedError` when none is left."""
        worker = self._idle.get()
        if worker is None:  # whoever else waits is told too
            self._idle.put(None)
            raise RunStoppedError("no Ray worker is left.")
        return worker

    def _next_there(self) -> Any:
        """Wait for a worker that has nothing to do and has begun. Raises `RunStoppedError` when none is left."""
        while not self._is_there(worker := self._next_idle()):
            self._forget(worker)
        return worker

    def _is_there(self, worker: Any) -> bool:
        """Say whether a worker is there in time, and begins; one that died answers with an error until it is started again."""
        deadline, failed = time.monotonic() + _PATIENCE, 0
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._ray.get(worker.name.remote(), timeout=left)
                if self._beginning is not None:
                    function, arguments = self._beginning
                    self._ray.get(worker.call.remote(function, *arguments))  # it may load data for long
                return True
            except self._ray.exceptions.RayTaskError as error:  # started, and without what it needs
                failed += 1
                self.why = why_not(error.cause)
                if failed == TRIES:
                    return False
                if self._is_ending.wait(min(PAUSE, left)):
                    raise
            except self._ray.exceptions.RayError:
                if self._is_ending.wait(min(_PAUSE, left)):
                    raise
        return False

    def _forget(self, worker: Any) -> None:
        """Give up a worker that could not be started again; its messages go to the others."""
        with self._lock:
            self._workers.remove(worker)
            if not self._workers:
                self.lost.set()
                self._idle.put(None)

    def _play_apart(
        self, app: Callable[[Message, Context], Message], message: Message, context: Context
    ) -> Message:
        """Return the reply to `message` from each client played alone; one at which the process dies is an error."""
        whole = Gathering(message)
        for part in Part(message, range(max(1, len(clients_of(message))))).alone():
            alone = part.message(with_model=True)
            reply = self._play_alone(app, alone, context)
            if reply is None:
                reply = Message(Error(CLIENT_APP_RAISED, "its process died"), reply_to=alone)
            whole.failures += without_failures(reply)
            complete = whole.add(part, reply)
        assert complete is not None
        return with_failures(complete, whole.failures)

    def _answer(self, name: str, answer: Any) -> Any:
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise SettingError(f"{name} cannot play this run's clients: {why_not(cause)}") from error
        except self._ray.exceptions.RayError as error:
            raise SettingError(
                f"{name} ended while it loaded this run's clients; look at its memory and at Ray's logs there."
            ) from error


@contextlib.contextmanager
def ray_workers(wanted: Reservation) -> Iterator[RayWorkers]:
    """Start the workers that `wanted` asks for in its cluster, and end them and leave it afterwards.

    Raises `SettingError` for a cluster that cannot be joined, or that does not start them in time.
    """
    with joined(wanted) as ray:
        actor = ray.remote(_worker_class()).options(
            num_cpus=wanted.cpus,
            num_gpus=wanted.gpus,
            scheduling_strategy="SPREAD",
            max_restarts=-1,  # one that a client killed begins again
        )
        workers = [
            actor.remote(list(sys.path), os.getcwd(), torch.get_num_threads()) for _ in range(wanted.workers)
        ]
        started = [worker.name.remote() for worker in workers]
        up = len(ray.wait(started, num_returns=len(started), timeout=_PATIENCE)[0])
        if up < wanted.workers:
            raise SettingError(
                f"engine asks for {wanted}, of which Ray started {up} within {_PATIENCE:g} seconds; other jobs may hold the "
                "cluster's CPUs or GPUs (`ray status` tells). Wait for them, or lower engine.workers."
            )
        pool = RayWorkers(ray, workers)
        try:
            yield pool
        finally:
            pool.end()


def _worker_class() -> type:
    """Return the class of a worker, which travels as code: a node without this package can say so in its words."""

    class Worker:
        def __init__(self, search: list[str], directory: str, threads: int) -> None:
            # Ray looks for packages in the driver's current directory first, which this process may do without (`fedmf`).
            # Another machine may have its packages elsewhere: its own places stay, after those of this process.
            sys.path[:] = search + [place for place in sys.path if place not in (*search, "", directory)]
            if os.path.isdir(directory):  # for a relative dataset.path
                os.chdir(directory)
            for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
                os.environ[name] = str(threads)  # Ray says as many as it reserves CPUs
            self._threads = threads

        def name(self) -> str:
            import socket

            import ray

            node = ray.get_runtime_context().get_node_id()[:8]
            return f"the Ray worker {os.getpid()} on node {socket.gethostname()} ({node})"

        def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
            import torch

            if torch.get_num_threads() != self._threads:
                torch.set_num_threads(
                    self._threads
                )  # sums differ in their last bits by the number of threads
            return function(*arguments)

    return Worker
