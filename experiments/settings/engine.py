"""The group `engine`: who calls the clients, one frozen dataclass for each choice; and the faults of a rehearsal."""

from dataclasses import dataclass

from experiments.settings.values import Choice, Option
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting


@dataclass(frozen=True)
class Faults:
    """Probabilities, for each task: silence; a reply that comes a round late; an error reply; a second reply."""

    drop_out: float = setting(0.0, "probability that a client sends no reply", at_least=0, at_most=1)
    delay: float = setting(0.0, "probability that the reply comes a round late", at_least=0, at_most=1)
    error: float = setting(0.0, "probability of an error reply", at_least=0, at_most=1)
    duplicate: float = setting(0.0, "probability that the reply comes twice", at_least=0, at_most=1)

    def __post_init__(self) -> None:
        if (total := self.drop_out + self.delay + self.error) > 1:
            raise SettingError(f"faults.drop_out, delay and error sum to {total:g}; it must be at most 1.")

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
    """Our own grid on this machine: this process alone, or `workers` processes, each with one GPU where there are several."""

    workers: int = setting(1, "processes; 1: this one; several GPUs are given to them in turn", at_least=1)


@dataclass(frozen=True)
class RaySettings(EngineSettings):
    """A Ray cluster with `workers` processes, in the cluster at `address`, or in one of the run's own."""

    workers: int = setting(
        2, "worker processes that Ray starts, on whatever nodes of the cluster have room", at_least=1
    )
    address: str | None = setting(
        None,
        "of a running Ray cluster: HOST:PORT, or auto: the one on this machine; null: a cluster of "
        "the run's own on this machine, which ends with it",
    )
    cpus_per_worker: float = setting(
        1.0,
        "CPUs that Ray reserves for each worker, a whole number or a part of one; how many threads a "
        "worker computes with stays as in engine=local",
        at_least=0.0001,  # Ray's smallest part
    )
    gpus_per_worker: float = setting(
        0.0,
        "GPUs that Ray reserves for each worker and shows to it, a whole number or a part of one; 0: none",
        at_least=0,
    )

    def __post_init__(self) -> None:
        for name in ("cpus_per_worker", "gpus_per_worker"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise SettingError(f"{name} is {value}; above 1 it must be a whole number, as Ray wants it.")


@dataclass(frozen=True)
class DeploymentSettings(EngineSettings):
    """A SuperLink, whose server app `flwr run` starts; docs/deployment.md."""

    node_timeout: float = setting(
        600.0, "seconds to wait for population.min_available clients at the start of an epoch", above=0
    )
    query_timeout: float = setting(120.0, "seconds for a node to say how many clients it holds", above=0)
    round_timeout: float = setting(
        600.0, "seconds to wait for the replies of a round; who is later is silent", above=0
    )


EngineSettings.options = {
    "local": Option(LocalSettings, "this process alone, or worker processes of this machine"),
    "ray": Option(RaySettings, "workers of a Ray cluster; needs the extra ray"),
    "deployment": Option(DeploymentSettings, "a SuperLink, whose server app `flwr run` starts"),
}
