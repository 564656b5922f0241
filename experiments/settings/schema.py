"""The settings of a run: one frozen dataclass for each group, with each setting's type, default and meaning.

Where the library has a frozen class for a group, that class is the group: its checks are the settings' checks, and
`Settings` has the defaults in which a run differs from the class.

A setting belongs to the run, unless it is `of` the call or of the watching.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

from client.metrics import METRICS, check_metrics, check_optimized
from client.settings import TrainingSettings
from experiments.settings.data import DatasetSettings, ModelSettings, check_none_held_out
from experiments.settings.groups import (
    DeploymentSettings,
    EngineSettings,
    Faults,
    LocalSettings,
    MechanismSettings,
    OptimizerSettings,
    WorkloadName,
)
from experiments.settings.values import PRINTED, Choice, Output, is_group, keyed
from fedmf.clip_norm import RATE, AdaptiveClipping
from fedmf.errors import SettingError
from fedmf.plan import Compression, PrivacyTarget
from fedmf.setting import REQUIRED, setting
from server.cohort import UnreadyNodes

FOR_DEPLOYMENTS = ("min_available", "max_clients_per_node", "nodes", "unready_nodes")  # of the population


# Where metrics go in addition to the run directory.
LoggerName = Literal["none", "tensorboard", "mlflow", "wandb"]


@dataclass(frozen=True)
class PopulationSettings:
    cohort_size: int = setting(64, "clients in a round (n)")
    rounds_per_epoch: int | None = setting(
        None, "rounds in an epoch; null: as many as there are disjoint cohorts"
    )
    epochs: int = setting(
        8, "number of times that every client participates; the noise restarts in each epoch", at_most=100_000
    )
    min_replies: int = setting(
        0, "minimum number of replies for a round to be released; a public policy", at_least=0
    )
    max_attempts: int = setting(3, "maximum number of attempts at a round before the run stops", at_least=1)
    min_available: int | None = setting(
        None,
        "for deployments: number of clients whose nodes must be connected when an epoch begins; the N of the statement",
        at_least=1,
    )
    max_clients_per_node: int | None = setting(
        None,
        "for deployments: maximum number of clients that count for one node; null: 10,000",
        of="watching",
        at_least=1,
    )
    nodes: str | None = setting(
        None,
        "for deployments: YAML list of the nodes that may participate (docs/deployment.md); null: all registered nodes",
    )
    unready_nodes: UnreadyNodes | None = setting(
        None,
        "for deployments: whether an epoch waits for a connected node whose data could not be loaded, or begins without it; null: wait",
        of="watching",
    )
    parts: tuple[int, ...] | None = setting(
        None,
        "epochs of each part of an extended run, such as [8,2]; run.extend sets it, leave it null",
    )


@dataclass(frozen=True)
class ClippingSettings:
    """Bounds of one client's update; linf_norm null: the formula with rotation, l2_norm without.

    With `adapt` both are those of the first epoch (docs/privacy.md).
    """

    l2_norm: float | None = setting(
        1.0,
        "bound on the Euclidean norm of a client's update; null: no clipping, only with privacy.noise_multiplier=0",
    )
    linf_norm: float | None = setting(
        None,
        "bound on each rotated coordinate; null: l2_norm * sqrt(2 log(D n) / D) with the Hadamard "
        "rotation, l2_norm without",
    )
    adapt: float | None = setting(
        None,
        "quantile of the clients' norms, in (0, 1), that both bounds approach after each epoch by a private count; epsilon "
        "includes its cost; null: fixed bounds",
    )
    adapt_rate: float | None = setting(
        None,
        f"step size of adapt: the logarithm of both bounds changes by this times (quantile - share); null: {RATE:g}",
    )
    adapt_noise: float | None = setting(
        None,
        "standard deviation of the noise on the count of adapt, in clients; null: the one whose cost in epsilon equals 1 % more noise",
    )

    def __post_init__(self) -> None:
        if self.adapt is None and (self.adapt_rate, self.adapt_noise) != (None, None):
            raise SettingError(
                "adapt is null, without which adapt_rate and adapt_noise mean nothing; set it too."
            )
        _ = self.adaptive

    @property
    def adaptive(self) -> AdaptiveClipping | None:
        """How the clip norm moves, None where it stays."""
        rate = RATE if self.adapt_rate is None else self.adapt_rate
        return None if self.adapt is None else AdaptiveClipping(self.adapt, rate, self.adapt_noise)


@dataclass(frozen=True)
class RunSettings:
    """Where a run writes, how its secrets are made, and how often it scores and saves."""

    directory: str | None = setting(
        None,
        "folder of the run, new or empty; null: runs/DATE_TIME, or a folder in that of the sweep",
        of="call",
    )
    resume: bool = setting(False, "true: resume the run in directory, with its recorded settings", of="call")
    extend: int | None = setting(
        None,
        "number of epochs to add to the finished run in directory; the total must be within privacy.max_epsilon, or privacy.epsilon without it",
        of="call",
        at_least=1,
    )
    trust_code: bool = setting(
        False,
        "true: resume and extend may import code that only the directory's config.yaml names "
        "(loaders, models, metrics by an import path)",
        of="call",
    )
    accept_copy: bool = setting(
        False,
        "true: resume even in a copy of the run's directory or from an older state of it; docs/reliability.md explains when to",
        of="call",
    )
    allow_version_change: bool = setting(
        False,
        "true: resume and extend with another version of fedmf's code; the statement then names both",
        of="call",
    )
    reproducible: bool = setting(
        False, "true: derive the secrets from the seed, for tests; such a run is NOT private"
    )
    unprotected_metrics: bool = setting(
        False,
        "true: add numbers that no noise covers to metrics.jsonl, page and progress, in simulations only: share of clients "
        "clipped, norms before clipping, clients' loss, noise against signal, size of the values sent (docs/privacy.md)",
    )
    evaluations: int = setting(
        20,
        "number of rounds that are scored, evenly spread over the run, the last one included",
        at_least=1,
    )
    checkpoint_every: int = setting(
        16, "rounds between two full checkpoints; every release between them is saved", at_least=1
    )
    optimized_metric: str | None = setting(
        None,
        "metric whose last value a sweeper such as Optuna optimizes; no privacy statement covers that choice",
    )
    log: Literal["text", "json"] = setting(
        "text",
        "format of stderr: lines of text, or one JSON object a line with time, level, logger, run and message",
        of="watching",
    )
    metrics_port: int | None = setting(
        None,
        "port on 127.0.0.1 where Prometheus reads /metrics; 0: a free port, which the log names; null: none (docs/deployment.md)",
        of="watching",
        at_least=0,
        at_most=65535,
    )

    def __post_init__(self) -> None:
        if self.extend is not None and self.directory is None:
            raise SettingError(
                f"extend is {self.extend}, but run.directory is null; name the finished run that it adds epochs to."
            )


@dataclass(frozen=True)
class SweepSettings:
    resume: bool = setting(False, "true: skip the runs of this sweep that an earlier call finished")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A whole run, checked. Raises `SettingError` for a setting that the chosen engine would ignore."""

    dataset: DatasetSettings = setting(
        REQUIRED, "training data of the clients, and the public test set", chosen="digits"
    )
    model: ModelSettings = setting(
        REQUIRED, "model, built for the data's shape and classes", chosen="logistic"
    )
    mechanism: MechanismSettings = setting(
        REQUIRED, "factorization family that correlates the noise", chosen="optimal"
    )
    workload: WorkloadName = setting(
        "run",
        "workload that the noise is fitted to: the optimizer over the whole run, or one epoch alone",
    )
    population: PopulationSettings = setting(PopulationSettings(), "participation of the clients")
    clipping: ClippingSettings = setting(ClippingSettings(), "bounds on a client's update")
    compression: Compression = setting(Compression(keep_probability=0.1), "what a client sends of its update")
    privacy: PrivacyTarget = setting(
        PrivacyTarget(epsilon=8.0, delta=5e-5),
        "guarantee of the run; one of epsilon and noise_multiplier must be given, the other must be null",
    )
    optimizer: OptimizerSettings = setting(REQUIRED, "optimizer of the server (docs/extend.md)", chosen="sgd")
    client: TrainingSettings = setting(TrainingSettings(), "training of a client (docs/extend.md)")
    engine: EngineSettings = setting(
        REQUIRED, "processes that run the clients", chosen="local", of="watching"
    )
    faults: Faults = setting(Faults(), "fault injection, with engine=local")
    run: RunSettings = setting(
        RunSettings(),
        "files and secrets of the run, and how often it scores and saves",
    )
    sweep: SweepSettings = setting(SweepSettings(), "resuming a sweep (-m)", of="call")
    seed: int = setting(
        0, "public seed of cohorts, data order, rotation and initial model", at_least=0, at_most=2**63 - 1
    )
    metrics: tuple[str, ...] = setting(
        ("accuracy",),
        "metrics on the test split: accuracy (for regression r2, for multilabel label_accuracy) and loss always; "
        "top5, f1 (macro), perplexity; mse, mae; exact_match, f1; MODULE:FUNCTION (docs/extend.md)",
        METRICS,
    )
    logger: LoggerName = setting(
        "none", "destination of the metrics in addition to the run directory", of="watching"
    )
    output: Output = setting("text", PRINTED, of="call")

    def __post_init__(self) -> None:
        check_metrics(self.metrics)
        with keyed("run", RunSettings):
            check_optimized(self.run.optimized_metric, self.metrics)
        deployed = isinstance(self.engine, DeploymentSettings)
        if self.faults.any and not isinstance(self.engine, LocalSettings):
            raise SettingError("faults.* are for engine=local; set them to 0 or choose engine=local.")
        for name in FOR_DEPLOYMENTS:
            value = getattr(self.population, name)
            if not deployed and value is not None:
                raise SettingError(
                    f"population.{name} is {value}, which is for deployments; leave it null with engine={self.engine.name}."
                )
        if deployed:
            check_none_held_out(self.dataset)
        if deployed and self.run.unprotected_metrics:
            raise SettingError(
                "run.unprotected_metrics is true, which is for simulations; leave it false in a deployment."
            )
        if deployed and self.output == "json":
            raise SettingError(
                "output is json, but the server of a deployment only logs; leave it at text and read summary.json."
            )

    @property
    def resumes(self) -> bool:
        """Whether the run in the directory, if there is one, is continued."""
        return self.run.resume or self.sweep.resume


def keys_of(what: str) -> tuple[str, ...]:
    """Return the keys, or groups with a dot behind them, that are of the "call" or of the "watching" and not of the run.

    >>> keys_of("call")
    ('run.directory', 'run.resume', 'run.extend', 'run.trust_code', 'run.accept_copy', 'run.allow_version_change', 'sweep.', 'output')
    """
    found: list[str] = []
    hints = get_type_hints(Settings)
    for item in fields(Settings):
        group = hints[item.name]
        if item.metadata.get("of") == what:
            found.append(f"{item.name}." if is_group(group) else item.name)
        elif is_group(group) and not issubclass(group, Choice):
            found += [f"{item.name}.{own.name}" for own in fields(group) if own.metadata.get("of") == what]
    return tuple(found)


# Settings of a call and not of its run.
OF_THE_CALL = keys_of("call")
# Settings that may differ between the calls of one run: they change speed and output, not the run.
FREE = (*OF_THE_CALL, *keys_of("watching"))


def of_the_run(values: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    """Return the settings of a run as nested values, without those of the call."""
    return {
        name: of_the_run(value, f"{group}{name}.") if isinstance(value, Mapping) else value
        for name, value in values.items()
        if not {f"{group}{name}", f"{group}{name}."} & set(OF_THE_CALL)
    }
