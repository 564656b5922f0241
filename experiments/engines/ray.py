"""A Ray cluster, and workers in it: one of a run's own on this machine, or one that is running and that a run joins.

Ray's ports have no secret by themselves, and they listen on every interface of a machine: who reaches one can run code
there. A cluster of a run's own therefore asks for a token that only its own processes know. One that is running has
what it was started with (docs/cluster.md).
"""

import contextlib
import logging
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import torch

from experiments.engines import ray_private
from experiments.engines.processes import CannotBegin, MakeApp, begin_process, why_not
from fedmf.errors import SettingError

ROOT = Path(__file__).resolve().parents[2]  # the folder of our packages
AUTO = "auto"
_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
_PATIENCE = 120.0  # seconds for workers to start: Ray waits for ever where other jobs hold what they need
_PAUSE = 0.2  # seconds between two questions to a worker that is being started again

T = TypeVar("T")


@dataclass(frozen=True)
class Reservation:
    """How many workers a run asks a cluster for, and what Ray reserves for each.

    `address` is HOST:PORT or `AUTO`; None: a cluster of the run's own.
    """

    workers: int
    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    def __str__(self) -> str:
        each = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
        return f"{self.workers} workers of {each} each"


def import_ray() -> Any:
    """Return Ray. Raises `SettingError` where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise SettingError(
            "engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'."
        ) from error
    return ray


@contextlib.contextmanager
def joined(wanted: Reservation) -> Iterator[Any]:
    """Join the cluster that `wanted` names, or start one, and leave it at the end; yields Ray.

    Raises `SettingError` for an address at which no cluster answers, and for one without room for the workers.
    """
    ray = import_ray()
    if ray.is_initialized():
        raise SettingError(
            "engine is ray, but this process has joined a Ray cluster already; call ray.shutdown() first."
        )
    on_signal = signal.getsignal(signal.SIGTERM)
    with _token_of_its_own() if wanted.address is None else contextlib.nullcontext():
        try:
            _start(ray, wanted) if wanted.address is None else _join(ray, wanted.address)
            _let_signals_be(on_signal)
            refuse_without_room(ray.nodes(), wanted)
            yield ray
        finally:
            ray.shutdown()


def _let_signals_be(on_signal: Any) -> None:
    """Give SIGTERM back to who had it: Ray's own handler would end the process with its own code."""
    if on_signal is not None and signal.getsignal(signal.SIGTERM) is not on_signal:
        signal.signal(signal.SIGTERM, on_signal)


@contextlib.contextmanager
def _token_of_its_own() -> Iterator[None]:
    """Let clusters that are started in the block ask for a token that only their own processes know."""
    if "RAY_AUTH_MODE" in os.environ:  # the user has said how
        yield
        return
    try:
        os.environ.update(zip(_TOKEN, ("token", secrets.token_hex(32)), strict=True))
        ray_private.read_environment()
        yield
    finally:
        for name in _TOKEN:
            os.environ.pop(name, None)
        ray_private.read_environment()


def _start(ray: Any, wanted: Reservation) -> None:
    """Start a cluster with room for the workers on this machine."""
    _init(
        ray,
        address="local",  # without it Ray would join a cluster that happens to run here
        num_cpus=math.ceil(wanted.workers * wanted.cpus),
        include_dashboard=False,
    )


def _init(ray: Any, **options: Any) -> None:
    """Call ray.init in the folder of our packages: its workers look for modules where that is done."""
    with contextlib.chdir(ROOT):
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)


def _join(ray: Any, address: str) -> None:
    """Join the running cluster at `address`."""
    at = _running_here() if address == AUTO else address
    refuse_if_silent(at)
    try:
        _init(ray, address=at)
    except (
        ConnectionError,
        RuntimeError,
        ValueError,
    ) as error:  # none is there; or it has another Python or Ray
        said = " ".join(str(error).split())
        raise SettingError(
            f"engine.address is {address}, but that Ray cluster could not be joined: {said}"
        ) from error


def _running_here() -> str:
    """Return the address of a cluster on this machine. Raises `SettingError` for none."""
    try:
        return ray_private.address_here()
    except ConnectionError as error:
        raise SettingError(
            "engine.address is auto, but no Ray cluster runs on this machine; start one with `ray start --head`, or leave it "
            "null for a cluster of the run's own."
        ) from error


def refuse_if_silent(address: str) -> None:
    """Raise `SettingError` unless the head of a Ray cluster answers at `address`, HOST:PORT, within seconds."""
    import grpc

    try:
        ray_private.ask_head(address)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            raise SettingError(
                f"engine.address is {address}, but that Ray cluster asks for another token; set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN_PATH as where it was started (docs/cluster.md)."
            ) from error
        raise SettingError(
            f"engine.address is {address}, but no Ray cluster answers there ({error.code().name.lower()}); give the "
            "address that `ray start --head` printed, or leave it null for a cluster of the run's own."
        ) from error


def refuse_without_room(nodes: list[dict[str, Any]], wanted: Reservation) -> None:
    """Raise `SettingError` unless the nodes, as `ray.nodes()` lists them, have room for the workers at all."""
    held = [node["Resources"] for node in nodes if node["Alive"]]
    if (room := sum(_fits(each, wanted) for each in held)) < wanted.workers:
        cpus, gpus = (sum(each.get(kind, 0) for each in held) for kind in ("CPU", "GPU"))
        raise SettingError(
            f"engine asks for {wanted}, but the Ray cluster has room for {room}: {cpus:g} CPUs and {gpus:g} GPUs on "
            f"{len(held)} nodes. Lower engine.workers, engine.cpus_per_worker or engine.gpus_per_worker, or add nodes."
        )


def _fits(held: dict[str, float], wanted: Reservation) -> int:
    """Return how many workers a node has room for."""
    rooms = [held.get("CPU", 0) / wanted.cpus]
    if wanted.gpus:
        rooms.append(held.get("GPU", 0) / wanted.gpus)
    return int(min(rooms) + 1e-9)  # 0.3 / 0.1 is 3, whatever the rounding of its parts says


class RayProcess:
    """An actor of the cluster: a `Process` of a `Pool`. Ray starts its process again where it died and there is room."""

    def __init__(self, ray: Any, actor: Any, name: str, make_app: MakeApp) -> None:
        self._ray, self._actor = ray, actor
        self.name = name  # with its node, when the run began
        self._make_app = make_app
        self._thread = ThreadPoolExecutor(1)
        self._has_ended = Event()

    def begin(self) -> "Future[object]":
        """Build the app in the process once it is there; the future raises `CannotBegin` where it is not in time."""
        return self._thread.submit(self._begin)

    def submit(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        """Call `function` in the process."""
        return self._thread.submit(self._call, function, *arguments)

    def end(self) -> None:
        """End the process, whatever it does."""
        self._has_ended.set()
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._actor)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._ray.get(self._actor.name.remote(), timeout=max(0.0, deadline - time.monotonic()))
                break
            except self._ray.exceptions.RayError as error:  # it is being started again
                if time.monotonic() >= deadline or self._has_ended.wait(_PAUSE):
                    raise CannotBegin(f"Ray started it not again within {_PATIENCE:g} seconds") from error
        self._call(begin_process, self._make_app)

    def _call(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            answer: T = self._ray.get(self._actor.call.remote(function, *arguments))
            return answer
        except self._ray.exceptions.RayTaskError as error:
            raise (error.cause or error) from None
        except self._ray.exceptions.RayError as error:
            raise BrokenExecutor(str(error)) from None


def ask_each(
    processes: Sequence[RayProcess], function: Callable[..., T], *arguments: object
) -> list[tuple[str, T]]:
    """Return what `function` returns in each process, with its name. Raises `SettingError` for one that cannot run it."""
    answers = [process.submit(function, *arguments) for process in processes]
    return [
        (process.name, _answer(process.name, answer))
        for process, answer in zip(processes, answers, strict=True)
    ]


def _answer(name: str, answer: "Future[T]") -> T:
    try:
        return answer.result()
    except BrokenExecutor as error:
        raise SettingError(
            f"{name} ended while it loaded this run's clients; look at its memory and at Ray's logs there."
        ) from error
    except Exception as error:
        raise SettingError(f"{name} cannot run this run's clients: {why_not(error)}") from error


@contextlib.contextmanager
def ray_processes(wanted: Reservation, make_app: MakeApp) -> Iterator[list[RayProcess]]:
    """Start the workers that `wanted` asks for in its cluster, to run the app of `make_app`, and end them afterwards.

    Raises `SettingError` for a cluster that cannot be joined, or that does not start them in time.
    """
    with joined(wanted) as ray:
        actor = ray.remote(_worker_class()).options(
            num_cpus=wanted.cpus,
            num_gpus=wanted.gpus,
            scheduling_strategy="SPREAD",
            max_restarts=-1,  # one that a client killed begins again
        )
        actors = [
            actor.remote(list(sys.path), os.getcwd(), torch.get_num_threads()) for _ in range(wanted.workers)
        ]
        started = [one.name.remote() for one in actors]
        up = len(ray.wait(started, num_returns=len(started), timeout=_PATIENCE)[0])
        if up < wanted.workers:
            raise SettingError(
                f"engine asks for {wanted}, of which Ray started {up} within {_PATIENCE:g} seconds; other jobs may hold the "
                "cluster's CPUs or GPUs (`ray status` tells). Wait for them, or lower engine.workers."
            )
        names = ray.get(started)
        processes = [RayProcess(ray, one, name, make_app) for one, name in zip(actors, names, strict=True)]
        try:
            yield processes
        finally:
            for process in processes:
                process.end()


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
