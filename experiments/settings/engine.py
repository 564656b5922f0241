"""The group `engine`: who calls the clients, one frozen dataclass for each choice."""

import os
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
    """Our own grid on this machine: this process alone, or `workers` processes."""

    workers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("workers", self.workers, 1)


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
