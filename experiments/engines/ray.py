"""A Ray cluster, and workers in it: one of a run's own on this machine, or one that is running and that a run joins.

Ray's ports have no secret by themselves, and they listen on every interface of a machine: who reaches one can run code
there. A cluster of a run's own therefore asks for a token that only its own processes know. One that is running has
what it was started with (docs/scale.md).
"""

import contextlib
import logging
import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from client.imports import need
from experiments.engines.processes import CannotBegin, MakeApp, begin_process
from experiments.settings.groups import RaySettings
from experiments.settings.reference import CONF
from fedmf.errors import SettingError, one_line

_PATIENCE = 120.0  # seconds for workers to start: Ray waits for ever where other jobs hold what they need
_ANSWER = 10.0  # seconds for a cluster to answer: Ray tries for minutes, and ends the process then


def import_ray(engine: RaySettings) -> Any:
    """Return Ray, with a token for a cluster of the run's own unless the user or an earlier run has chosen one.

    Ray has no public way to take another token after its import. Raises `SettingError` where it cannot be used.
    """
    if engine.address is None and "RAY_AUTH_MODE" not in os.environ:
        if "ray" in sys.modules:
            raise SettingError(
                "engine.address is null, but this process has imported Ray already, without a token for a cluster of the "
                "run's own; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before (docs/scale.md)."
            )
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    ray: Any = need("ray", "engine=ray", extra="ray")
    if ray.is_initialized():
        raise SettingError(
            "engine is ray, but this process has joined a Ray cluster already; call ray.shutdown() first."
        )
    return ray


def join(ray: Any, engine: RaySettings) -> None:
    """Join the cluster that the settings name, or start one with room for the workers.

    Raises `SettingError` for an address at which no cluster answers, or one that cannot be joined.
    """
    own = {
        "address": "local",
        "num_cpus": math.ceil(engine.workers * engine.cpus_per_worker),
        "include_dashboard": False,
    }  # "local" joins no cluster that happens to run here
    options: dict[str, Any] = own if engine.address is None else {"address": engine.address}
    on_signal = signal.getsignal(signal.SIGTERM)
    try:
        if engine.address not in (None, "auto"):
            host, _, port = str(engine.address).rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
        with contextlib.chdir(CONF.parent):  # where workers look for modules
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise SettingError(
            f"engine.address is {engine.address}, but that Ray cluster could not be joined ({one_line(error)}); look at "
            "the address, the token and the versions of both (docs/scale.md)."
        ) from error
    if signal.getsignal(signal.SIGTERM) is not on_signal:
        signal.signal(signal.SIGTERM, on_signal)  # Ray's would end the process with a code of its own


class RayProcess:
    """An actor of the cluster: a `Process` of a `Pool`. Ray starts its process again where it died and there is room."""

    def __init__(self, ray: Any, actor: Any, make_app: MakeApp, name: str) -> None:
        self._ray, self._actor, self._make_app = ray, actor, make_app
        self.name = name  # with its node, when the run began

    def begin(self) -> "Future[None]":
        if not self._ray.wait([self._actor.name.options(max_task_retries=-1).remote()], timeout=_PATIENCE)[0]:
            raise CannotBegin(f"Ray started it not again within {_PATIENCE:g} seconds")
        return self.call(begin_process, self._make_app)

    def call(self, function: Callable[..., Any], *arguments: object) -> "Future[Any]":
        answer: Future[Any] = self._actor.call.remote(function, *arguments).future()
        return answer

    def end(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.kill(self._actor)


@contextlib.contextmanager
def ray_processes(engine: RaySettings, make_app: MakeApp) -> Iterator[list[RayProcess]]:
    """Start the workers that the settings ask for, to run the app of `make_app`, and leave their cluster at the end.

    Raises `SettingError` for a cluster that cannot be joined, or that does not start them in time.
    """
    ray = import_ray(engine)
    try:
        join(ray, engine)
        yield started(ray, engine, make_app)
    finally:
        ray.shutdown()


def started(ray: Any, engine: RaySettings, make_app: MakeApp) -> list[RayProcess]:
    """Return the workers, once Ray has started them. Raises `SettingError` where it does not in time."""
    actor = ray.remote(worker_class()).options(
        num_cpus=engine.cpus_per_worker,
        num_gpus=engine.gpus_per_worker,
        scheduling_strategy="SPREAD",
        max_restarts=-1,  # one that a client killed begins again
    )
    given = list(sys.path), os.getcwd(), torch.get_num_threads()
    actors = [actor.remote(*given) for _ in range(engine.workers)]
    names = [one.name.remote() for one in actors]
    has = ray.cluster_resources()
    wants = {"CPU": engine.workers * engine.cpus_per_worker, "GPU": engine.workers * engine.gpus_per_worker}
    has_room = all(has.get(kind, 0) >= amount - 1e-6 for kind, amount in wants.items())
    up = ray.wait(names, num_returns=len(names), timeout=_PATIENCE if has_room else 0)[0]
    if len(up) < engine.workers:
        raise SettingError(
            f"engine asks for {engine.workers} workers of {engine.cpus_per_worker:g} CPUs and {engine.gpus_per_worker:g} "
            f"GPUs each, of which the Ray cluster, with {has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs, started "
            f"{len(up)}; other jobs may hold them (`ray status` tells). Lower engine.workers, or wait."
        )
    return [RayProcess(ray, one, make_app, name) for one, name in zip(actors, ray.get(names), strict=True)]


def worker_class() -> type:
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
            import ray

            return f"the Ray worker {os.getpid()} on node {socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"

        def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
            import torch

            torch.set_num_threads(self._threads)  # by their number sums differ in their last bits
            return function(*arguments)

    return Worker
