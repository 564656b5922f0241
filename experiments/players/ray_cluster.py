"""A Ray cluster: one of a run's own on this machine, or one that is running and that a run joins.

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmf.errors import SettingError

ROOT = Path(__file__).resolve().parents[2]  # what holds this package
AUTO = "auto"
_PATIENCE = (
    10.0  # seconds for a cluster to answer; Ray by itself tries for minutes, and ends the process then
)
_CLUSTER_ID = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # which every head answers, and nobody else
_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


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
        import flwr.simulation  # what it adds to Ray comes with the same extra
        import ray
    except ImportError as error:
        raise SettingError(
            "engine is ray, but Ray is not installed; install the extra: pip install 'fedmf[ray]'."
        ) from error
    assert flwr.simulation
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
        _read_environment()
        yield
    finally:
        for name in _TOKEN:
            os.environ.pop(name, None)
        _read_environment()


def _read_environment() -> None:
    """Let Ray read again what the environment says of tokens: it reads that once, when it is imported."""
    inside = _inside()
    inside.AuthenticationTokenLoader.instance().reset_cache()
    inside.Config.initialize("")


def _token() -> tuple[tuple[str, str], ...]:
    """Return the header by which this process shows its token, if it has one."""
    return tuple(_inside().AuthenticationTokenLoader.instance().get_token_for_http_header().items())


def _inside() -> Any:
    """Return the part of Ray that knows of tokens, of which its public interface says nothing."""
    import ray._raylet

    return ray._raylet


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
    """Return the address of a cluster that runs on this machine, or of the one that RAY_ADDRESS names.

    Ray itself would not notice that it has ended since, and try for minutes. Raises `SettingError` for none.
    """
    import ray._private.services

    inside: Any = ray._private.services
    try:
        return str(inside.canonicalize_bootstrap_address(AUTO))
    except ConnectionError as error:
        raise SettingError(
            "engine.address is auto, but no Ray cluster runs on this machine; start one with `ray start --head`, or leave it "
            "null for a cluster of the run's own."
        ) from error


def refuse_if_silent(address: str) -> None:
    """Raise `SettingError` unless the head of a Ray cluster answers at `address`, HOST:PORT, within seconds."""
    import grpc

    with grpc.insecure_channel(address) as channel:
        cluster_id = channel.unary_unary(_CLUSTER_ID)
        try:
            cluster_id(b"", timeout=_PATIENCE, metadata=_token())
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
    room = {name: _fits(held, wanted) for name, held in _resources(nodes)}
    if sum(room.values()) >= wanted.workers:
        return
    has = "; ".join(
        f"{name} has {held.get('CPU', 0):g} CPUs and {held.get('GPU', 0):g} GPUs"
        for name, held in _resources(nodes)
    )
    raise SettingError(
        f"engine asks for {wanted}, but the Ray cluster has room for {sum(room.values())}: {has}. Lower engine.workers, "
        "engine.cpus_per_worker or engine.gpus_per_worker, or add nodes."
    )


def _resources(nodes: list[dict[str, Any]]) -> list[tuple[str, dict[str, float]]]:
    """Return the name and what it has of each node that is there."""
    return [
        (f"node {node['NodeManagerHostname']} ({node['NodeID'][:8]})", node["Resources"])
        for node in nodes
        if node["Alive"] and node["Resources"]
    ]


def _fits(held: dict[str, float], wanted: Reservation) -> int:
    """Return how many workers a node has room for."""
    rooms = [held.get("CPU", 0) / wanted.cpus]
    if wanted.gpus:
        rooms.append(held.get("GPU", 0) / wanted.gpus)
    return int(min(rooms) + 1e-9)  # 0.3 / 0.1 is 3, whatever the rounding of its parts says
