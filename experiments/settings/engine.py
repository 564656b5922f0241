"""The group `engine`: who calls the clients, one frozen dataclass for each choice."""

import os
import re
from dataclasses import dataclass

from experiments.settings.log import messages
from experiments.settings.values import Choice, Option
from fedmf.checks import check_at_least, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class Faults:
    """Probabilities, for each task: silence; a reply that comes a round late; an error reply; a second reply."""

    drop_out: float = setting(0.0, "probability that a client sends no reply")
    delay: float = setting(0.0, "probability that the reply comes a round late")
    error: float = setting(0.0, "probability of an error reply")
    duplicate: float = setting(0.0, "probability that the reply comes twice")

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise SettingError(f"faults.{name} is {value}; it must lie in [0, 1].")
        if (total := self.drop_out + self.delay + self.error) > 1:
            raise SettingError(
                f"faults.drop_out + faults.delay + faults.error is {total}; it must be at most 1."
            )

    @property
    def any(self) -> bool:
        """Whether anything goes wrong at all."""
        return any(vars(self).values())

    def outcome(self, draw: float) -> str:
        """Return what a uniform draw in [0, 1) decides: "silent", "late", "error" or "answer"."""
        if draw < self.drop_out:
            return "silent"
        if draw < self.drop_out + self.delay:
            return "late"
        return "error" if draw < self.drop_out + self.delay + self.error else "answer"


@dataclass(frozen=True)
class EngineSettings(Choice):
    """What every engine is given: its name."""

    name: str = setting(REQUIRED, "name of the engine")


@dataclass(frozen=True)
class LocalSettings(EngineSettings):
    """Our own grid on this machine: this process alone, or `workers` processes, which take `devices` in turn."""

    workers: int = setting(1, "processes; 1: this one")
    devices: tuple[str, ...] | None = setting(
        None,
        "what the workers compute on, in turn, such as [cuda:0,cuda:1] or [cpu]; null: on each GPU in "
        "turn where there are several, else as client.device says",
    )

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers, 1)
        if self.devices is None:
            return
        for name in self.devices:
            if not _DEVICE.fullmatch(name):
                raise SettingError(
                    f"engine.devices names {name!r}; a device is cpu or cuda:N, N counted from 0."
                )
        if self.workers == 1:
            raise SettingError(
                f"engine.devices is {_listed(self.devices)}, but engine.workers is 1, and one process computes on "
                "client.device; set engine.workers to 2 or more, or leave out engine.devices."
            )
        if not 1 <= len(self.devices) <= self.workers:
            raise SettingError(
                f"engine.devices is {_listed(self.devices)} for engine.workers={self.workers}; each worker takes one "
                "device, so name at least one and at most as many as workers."
            )


@dataclass(frozen=True)
class RaySettings(EngineSettings):
    """A Ray cluster with `workers` processes, in the cluster at `address`, or in one of the run's own.

    Ray reserves `cpus_per_worker` and `gpus_per_worker` for each.
    """

    workers: int = setting(2, "worker processes that Ray starts, on whatever nodes of the cluster have room")
    address: str | None = setting(
        None,
        "of a running Ray cluster: HOST:PORT, or auto: the one on this machine; null: a cluster of "
        "the run's own on this machine, which ends with it",
    )
    cpus_per_worker: float = setting(
        1.0,
        "CPUs that Ray reserves for each worker, a whole number or a part of one; how many threads a "
        "worker computes with stays as in engine=local",
    )
    gpus_per_worker: float = setting(
        0.0,
        "GPUs that Ray reserves for each worker and shows to it, a whole number or a part of one; 0: none",
    )

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers, 1)
        check_positive("cpus_per_worker", self.cpus_per_worker)
        check_non_negative("gpus_per_worker", self.gpus_per_worker)
        for name in ("cpus_per_worker", "gpus_per_worker"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise SettingError(f"{name} is {value}; above 1 it must be a whole number, as Ray wants it.")
            if 0 < value < _SMALLEST_PART:
                raise SettingError(f"{name} is {value}; Ray's smallest part of one is {_SMALLEST_PART}.")
        if self.address not in (None, "auto") and not _is_host_and_port(str(self.address)):
            raise SettingError(
                f"address is {self.address!r}; it must be HOST:PORT of a Ray cluster, auto for the one on this machine, or "
                "null for a cluster of the run's own."
            )


_SMALLEST_PART = 0.0001


def _is_host_and_port(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return (
        re.fullmatch(r"[\w.-]+|\[[0-9a-fA-F:.]+\]", host) is not None
        and port.isdecimal()
        and 0 < int(port) < 65536
    )


@dataclass(frozen=True)
class DeploymentSettings(EngineSettings):
    """A SuperLink, whose server app `flwr run` starts; docs/deployment.md.

    Timeouts in seconds: until enough clients are there at the start of an epoch, for a node to say how many clients
    it holds, and for the replies of a round.
    """

    node_timeout: float = setting(
        600.0, "seconds to wait for population.min_available clients at the start of an epoch"
    )
    query_timeout: float = setting(120.0, "seconds for a node to say how many clients it holds")
    round_timeout: float = setting(
        600.0, "seconds to wait for the replies of a round; who is later is silent"
    )

    def __post_init__(self) -> None:
        for name in ("node_timeout", "query_timeout", "round_timeout"):
            check_positive(name, getattr(self, name))


_DEVICE = re.compile(r"cpu|cuda:\d+")


def _listed(devices: tuple[str, ...]) -> str:
    return f"[{','.join(devices)}]"


def worker_devices(settings: LocalSettings, device: str, found: int) -> tuple[str, ...]:
    """Return the devices that the workers take in turn; (): each computes on client.device, `device`.

    `found` is how many CUDA devices this machine has: without engine.devices each is given a worker, and the next in
    turn. Raises `SettingError` for a device that it has not, or that contradicts client.device.
    """
    if settings.workers == 1:
        return ()
    if settings.devices is None:
        return tuple(f"cuda:{number}" for number in range(found)) if device != "cpu" and found > 1 else ()
    for name in settings.devices:
        if device not in ("auto", name.partition(":")[0]):
            raise SettingError(
                f"engine.devices names {name}, but client.device is {device}; set client.device to auto."
            )
        if name != "cpu" and int(name.removeprefix("cuda:")) >= found:
            has = f"{found} CUDA devices, counted from 0" if found else "no CUDA device"
            raise SettingError(
                f"engine.devices names {name}, but torch sees {has} on this machine; name others, or leave it out."
            )
    return settings.devices


def warn_of_many_workers(engine: EngineSettings) -> None:
    """Say on stderr that an engine asks for more processes of this machine than there are cores for this process."""
    if not isinstance(engine, RaySettings) or engine.address is None:  # a cluster knows its own room
        warn_of_workers("engine.workers", getattr(engine, "workers", 1))


def warn_of_workers(key: str, workers: int) -> None:
    """Say on stderr that more processes are asked for than there are cores for this process."""
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        messages.warning(
            f"{key} is {workers}, but there are {cores} cores here; more processes than cores are slower."
        )


EngineSettings.options = {
    "local": Option(LocalSettings, "this process alone, or worker processes of this machine"),
    "ray": Option(RaySettings, "workers of a Ray cluster; needs the extra ray"),
    "deployment": Option(DeploymentSettings, "a SuperLink, whose server app `flwr run` starts"),
}
