"""The schema of a run's configuration: one dataclass per group of conf/, values only. Meaning and checks are
in fedmf's settings.

Schema classes stay unfrozen because Hydra cannot override frozen ones.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from experiments.session.logger import LoggerName
from experiments.settings import data
from experiments.settings.data import Output

WorkloadName = Enum("WorkloadName", ["prefix_sum", "momentum"])
RotationName = Enum("RotationName", ["hadamard", "identity"])
ValueType = Enum("ValueType", ["float32", "int8"])
AdjacencyName = Enum("AdjacencyName", ["zero_out", "replace"])
AccountantName = Enum("AccountantName", ["rdp", "tight"])
ScheduleName = Enum("ScheduleName", ["constant", "decay", "cooldown"])
DeviceName = Enum("DeviceName", ["auto", "cpu", "cuda"])
EngineName = Enum("EngineName", ["local", "ray", "deployment"])


@dataclass
class MechanismConfig:
    """The factorization family that correlates the noise."""

    name: str = MISSING


@dataclass
class PopulationConfig:
    """Who takes part; rounds_per_epoch null: floor(clients / cohort_size).

    The last two are for deployments: `min_available` stands there for the number of clients.
    """

    cohort_size: int = 64
    rounds_per_epoch: int | None = None
    epochs: int = 8
    min_replies: int = 0
    max_attempts: int = 3
    min_available: int | None = None
    max_clients_per_node: int = 10_000


@dataclass
class ClippingConfig:
    """Bounds of one client's update; linf_norm null: the formula with rotation, l2_norm without."""

    l2_norm: float | None = 1.0
    linf_norm: float | None = None


@dataclass
class CompressionConfig:
    """What of an update travels."""

    keep_probability: float = 0.1
    rotation: RotationName = RotationName.hadamard
    value_type: ValueType = ValueType.float32


@dataclass
class PrivacyConfig:
    """delta, and exactly one of epsilon and noise_multiplier."""

    epsilon: float | None = MISSING
    noise_multiplier: float | None = None
    delta: float = MISSING
    adjacency: AdjacencyName = AdjacencyName.zero_out
    accountant: AccountantName = AccountantName.rdp
    max_epsilon: float | None = None


@dataclass
class OptimizerConfig:
    """The server optimizer: SGD with momentum."""

    learning_rate: float = 0.3
    momentum: float = 0.9
    schedule: ScheduleName = ScheduleName.constant


@dataclass
class ClientConfig:
    """Local training."""

    learning_rate: float = 1.0
    batch_size: int = 10
    epochs: int = 1
    device: DeviceName = DeviceName.auto


@dataclass
class EngineConfig:
    """Who calls the clients: our grid in this process, Flower's Ray engine, or a SuperLink.

    Timeouts in seconds, for deployments: until enough clients are there, for a node to say how many it holds,
    for the replies of a round.
    """

    name: EngineName = EngineName.local
    workers: int = 1
    node_timeout: float = 600
    query_timeout: float = 120
    round_timeout: float = 600


@dataclass
class FaultsConfig:
    """What goes wrong with clients, for rehearsals; engine=local only."""

    drop_out: float = 0.0
    delay: float = 0.0
    error: float = 0.0
    duplicate: float = 0.0


@dataclass
class RunConfig:
    """Where a run writes, and how its secrets are made."""

    directory: str | None = None
    resume: bool = False
    reproducible: bool = False
    unprotected_metrics: bool = False
    evaluate_every: int | None = None
    checkpoint_every: int = 16


@dataclass
class SweepConfig:
    """Whether jobs that an earlier call of this sweep finished are skipped."""

    resume: bool = False


@dataclass
class Config:
    """A whole run."""

    dataset: Any = MISSING
    model: Any = MISSING
    mechanism: MechanismConfig = field(default_factory=MechanismConfig)
    workload: WorkloadName = WorkloadName.prefix_sum
    population: PopulationConfig = field(default_factory=PopulationConfig)
    clipping: ClippingConfig = field(default_factory=ClippingConfig)
    compression: CompressionConfig = field(default_factory=CompressionConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    client: ClientConfig = field(default_factory=ClientConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)
    run: RunConfig = field(default_factory=RunConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    seed: int = 0
    logger: LoggerName = LoggerName.none
    output: Output = Output.text


def register() -> None:
    """Store the schemas in Hydra's config store; call it before a configuration is composed."""
    data.register()
    ConfigStore.instance().store(name="config_schema", node=Config)
