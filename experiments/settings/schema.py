"""The settings of a run: one frozen dataclass for each group of conf/, values only.

Where the library has a frozen class for a group, that class is the group: its checks are the settings' checks. A
default stands once: in the library's class if it has one, else in conf/. (Loaders and models have keyword defaults of
their own for programs; a test holds that conf/ says the same.)
"""

from dataclasses import dataclass
from enum import StrEnum

from client.metric_names import check_metrics, check_optimized
from client.settings import TrainingSettings
from experiments.settings.data import DatasetSettings, ModelSettings
from experiments.settings.engine import DeploymentSettings, EngineSettings, Faults, LocalSettings, RaySettings
from experiments.settings.keys import keyed
from experiments.settings.mechanism import MechanismSettings, WorkloadName
from experiments.settings.optimizer import OptimizerSettings
from experiments.settings.output import LogForm, Output
from fedmf.checks import check_at_least, check_positive
from fedmf.errors import SettingError
from fedmf.plan import Compression, PrivacyTarget
from fedmf.randomness import PublicSeed
from server.cohort import ReplyPolicy, UnreadyNodes

FOR_DEPLOYMENTS = ("min_available", "max_clients_per_node", "nodes", "unready_nodes")  # of the population


class LoggerName(StrEnum):
    """Where metrics go besides the run directory."""

    none = "none"
    tensorboard = "tensorboard"
    mlflow = "mlflow"
    wandb = "wandb"


@dataclass(frozen=True)
class PopulationSettings:
    """Who takes part; rounds_per_epoch null: floor(clients / cohort_size).

    `min_available`, `max_clients_per_node`, `nodes` and `unready_nodes` are for deployments: the first stands there for the number of
    clients.
    `parts` is what run.extend recorded: the epochs of each part of a run that was extended.
    """

    cohort_size: int
    rounds_per_epoch: int | None
    epochs: int
    min_replies: int
    max_attempts: int
    min_available: int | None
    max_clients_per_node: int | None
    nodes: str | None
    unready_nodes: UnreadyNodes | None
    parts: tuple[int, ...] | None

    def __post_init__(self) -> None:
        self.replies.check_fits(self.cohort_size)
        for name in ("min_available", "max_clients_per_node"):
            if (value := getattr(self, name)) is not None:
                check_at_least(name, value, 1)
        for epochs in self.parts or ():
            check_at_least("parts", epochs, 1)

    @property
    def replies(self) -> ReplyPolicy:
        """When a round may be released."""
        return ReplyPolicy(self.min_replies, self.max_attempts)


@dataclass(frozen=True)
class ClippingSettings:
    """Bounds of one client's update; linf_norm null: the formula with rotation, l2_norm without."""

    l2_norm: float | None
    linf_norm: float | None


@dataclass(frozen=True)
class RunSettings:
    """Where a run writes, how its secrets are made, and how often it scores and saves.

    `extend`: epochs to add to the finished run in `directory`.
    `trust_code`: whether a resume may import code that only the directory's own config.yaml names.
    `accept_copy`: whether a run may be resumed in a copy of its directory, or from an older state of it.
    `allow_version_change`: whether other code than that which played a run so far may go on with it.
    `optimized_metric`: which metric's last value a sweeper is given to choose by.
    `keep_releases`: whether the noisy sum of every round stays in the directory, for an audit.
    `evaluate_every`, where it is given, counts in place of `evaluations`; before the last round `evaluation_examples` of
    a larger test set are scored.
    `stop_if_all_fail`: whether it stops before a round in which no client could train, which no statement covers.
    `metrics_port`: where on the loopback interface it tells Prometheus of itself, 0 for a free port. It calls itself healthy
    while a round has ended within `health_seconds`.
    """

    directory: str | None
    resume: bool
    extend: int | None
    trust_code: bool
    accept_copy: bool
    allow_version_change: bool
    reproducible: bool
    unprotected_metrics: bool
    stop_if_all_fail: bool
    keep_releases: bool
    evaluations: int
    evaluate_every: int | None
    evaluation_examples: int | None
    checkpoint_every: int
    optimized_metric: str | None
    log: LogForm
    metrics_port: int | None
    health_seconds: float

    def __post_init__(self) -> None:
        check_at_least("checkpoint_every", self.checkpoint_every, 1)
        check_at_least("evaluations", self.evaluations, 1)
        check_positive("health_seconds", self.health_seconds)
        if self.metrics_port is not None and not 0 <= self.metrics_port < 65536:
            raise SettingError(
                f"metrics_port is {self.metrics_port}; it must be between 0 and 65535, or null."
            )
        for name in ("evaluate_every", "evaluation_examples", "extend"):
            if (value := getattr(self, name)) is not None:
                check_at_least(name, value, 1)
        if self.extend is not None and self.directory is None:
            raise SettingError(
                f"extend is {self.extend}, but directory is null; name the finished run that it adds epochs to."
            )


@dataclass(frozen=True)
class SweepSettings:
    """Whether jobs that an earlier call of this sweep finished are skipped."""

    resume: bool


@dataclass(frozen=True)
class Settings:
    """A whole run, checked. Raises `SettingError` for a setting that the chosen engine would ignore."""

    dataset: DatasetSettings
    model: ModelSettings
    mechanism: MechanismSettings
    workload: WorkloadName
    population: PopulationSettings
    clipping: ClippingSettings
    compression: Compression
    privacy: PrivacyTarget
    optimizer: OptimizerSettings
    client: TrainingSettings
    engine: EngineSettings
    faults: Faults
    run: RunSettings
    sweep: SweepSettings
    seed: int
    metrics: tuple[str, ...]
    logger: LoggerName
    output: Output

    def __post_init__(self) -> None:
        PublicSeed(self.seed)  # refuses what is no seed
        check_metrics(self.metrics)
        with keyed("run", RunSettings):
            check_optimized(self.run.optimized_metric, self.metrics)
        deployed = isinstance(self.engine, DeploymentSettings)
        if self.faults.any and not isinstance(self.engine, LocalSettings):
            raise SettingError("faults.* are for engine=local; set them to 0 or choose engine=local.")
        if (
            isinstance(self.engine, RaySettings)
            and self.engine.gpus_per_worker
            and self.client.device == "cpu"
        ):
            raise SettingError(
                f"engine.gpus_per_worker is {self.engine.gpus_per_worker:g}, but client.device is cpu; set client.device "
                "to cuda, or engine.gpus_per_worker to 0."
            )
        for name in FOR_DEPLOYMENTS:
            value = getattr(self.population, name)
            if not deployed and value is not None:
                raise SettingError(
                    f"population.{name} is {value}, which is for deployments; leave it null with engine={self.engine.name}."
                )
        if deployed and self.run.stop_if_all_fail:
            raise SettingError(
                "run.stop_if_all_fail is true, but the server of a deployment cannot know who failed: a client that could "
                "not train sends masked zeros; leave it false and read the log of a node."
            )
        if deployed and self.output is Output.json:
            raise SettingError(
                "output is json, but the server of a deployment only logs; leave it at text and read summary.json."
            )

    @property
    def resumes(self) -> bool:
        """Whether the run in the directory, if there is one, is to be gone on with."""
        return self.run.resume or self.sweep.resume
