"""The group `engine`: who calls the clients, one frozen dataclass for each choice."""

import os
import re
import sys
from dataclasses import dataclass

from experiments.settings.frozen import Choice
from fedmf.checks import check_at_least, check_positive
from fedmf.errors import SettingError


@dataclass(frozen=True)
class EngineSettings(Choice):
    """What every engine is given: the name of its file in conf/engine."""

    name: str

    def __post_init__(self) -> None:
        if ENGINES.get(self.name) is not type(self):
            raise SettingError(
                f"engine.name is {self.name!r}; choose an engine as engine=NAME, one of {', '.join(ENGINES)}."
            )


@dataclass(frozen=True)
class LocalSettings(EngineSettings):
    """Our own grid on this machine: this process alone, or `workers` processes, which take `devices` in turn."""

    workers: int
    devices: tuple[str, ...] | None

    def __post_init__(self) -> None:
        super().__post_init__()
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
    """Flower's Ray engine with `workers` processes."""

    workers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("workers", self.workers, 1)


@dataclass(frozen=True)
class DeploymentSettings(EngineSettings):
    """A SuperLink, whose server app `flwr run` starts; docs/deployment.md.

    Timeouts in seconds: until enough clients are there at the start of an epoch, for a node to say how many clients
    it holds, and for the replies of a round.
    """

    node_timeout: float
    query_timeout: float
    round_timeout: float

    def __post_init__(self) -> None:
        super().__post_init__()
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


def warn_of_workers(key: str, workers: int) -> None:
    """Say on stderr that more processes are asked for than there are cores for this process."""
    cores = len(os.sched_getaffinity(0))
    if workers > cores:
        print(
            f"warning: {key} is {workers}, but there are {cores} cores here; more processes than cores are slower.",
            file=sys.stderr,
        )


ENGINES: dict[str, type[EngineSettings]] = {
    "local": LocalSettings,
    "ray": RaySettings,
    "deployment": DeploymentSettings,
}
