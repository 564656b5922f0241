"""The groups `engine`, `optimizer` and `mechanism`: one frozen dataclass for each choice, and the objects that a run makes of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, make_dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Literal

from client.imports import calling, check_takes, import_maker, import_path
from experiments.settings.data import arguments
from experiments.settings.values import Choice, Option, keyed
from fedmf.errors import SettingError
from fedmf.mechanisms import (
    Family,
    RunFactorization,
    Workload,
    design,
    design_run,
    momentum,
    of_run,
    run_lower_bound,
)
from fedmf.mechanisms.family import resolve
from fedmf.mechanisms.run_factorization import as_run
from fedmf.mechanisms.schedules import rates
from fedmf.setting import REQUIRED, setting
from server.checked import Checked
from server.optimizer import Adagrad, Adam, Optimizer, Sgd, Yogi


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
        """Return the outcome of a uniform draw in [0, 1): "silent", "late", "error" or "answer"."""
        ends = zip(
            accumulate((self.drop_out, self.delay, self.error)), ("silent", "late", "error"), strict=True
        )
        return next((outcome for end, outcome in ends if draw < end), "answer")


@dataclass(frozen=True)
class EngineSettings(Choice):
    name: str = setting(REQUIRED, "name of the engine")


@dataclass(frozen=True)
class LocalSettings(EngineSettings):
    """The local grid: this process alone, or `workers` processes, each with one GPU if there are several."""

    workers: int = setting(
        1, "number of processes; 1: this process alone; several GPUs are assigned in turn", at_least=1
    )


@dataclass(frozen=True)
class RaySettings(EngineSettings):
    """A Ray cluster with `workers` processes, in the cluster at `address`, or in a new one for this run."""

    workers: int = setting(2, "number of worker processes, on any nodes of the cluster with room", at_least=1)
    address: str | None = setting(
        None,
        "address of a running Ray cluster: HOST:PORT, or auto for the one on this machine; null: a new "
        "cluster on this machine, which ends with the run",
    )
    cpus_per_worker: float = setting(
        1.0,
        "CPUs that Ray reserves for each worker, a whole number or a fraction of one; the number of threads "
        "is that of engine=local",
        at_least=0.0001,  # Ray's smallest part
    )
    gpus_per_worker: float = setting(
        0.0,
        "GPUs that Ray reserves for each worker, a whole number or a fraction of one; 0: none",
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
    query_timeout: float = setting(
        120.0, "seconds to wait for a node to report its number of clients", above=0
    )
    round_timeout: float = setting(
        600.0, "seconds to wait for the replies of a round; later ones are ignored", above=0
    )


EngineSettings.options = {
    "local": Option(LocalSettings, "this process alone, or worker processes on this machine"),
    "ray": Option(RaySettings, "workers of a Ray cluster; needs the extra ray"),
    "deployment": Option(DeploymentSettings, "a SuperLink, whose server app `flwr run` starts"),
}


_OWN_OPTIMIZER = "custom optimizer, package.module:function that returns a server.Optimizer (docs/extend.md)"


@dataclass(frozen=True)
class OptimizerSettings(Choice):
    name: str = setting(REQUIRED, _OWN_OPTIMIZER)


def _settings_of(name: str, own: type[Optimizer], **defaults: float) -> type[OptimizerSettings]:
    """Return the settings of the library's optimizer `own`, which are its fields with these defaults."""
    fields_ = {item.name: item for item in fields(own)}  # type: ignore[arg-type]
    changed = [
        (key, fields_[key].type, setting(value, **fields_[key].metadata)) for key, value in defaults.items()
    ]
    return make_dataclass(
        f"{name}_settings",
        changed,
        bases=(own, OptimizerSettings),
        namespace={"__module__": __name__},
        frozen=True,
    )


@dataclass(frozen=True)
class CustomOptimizerSettings(OptimizerSettings):
    """A custom optimizer: `name` is its import path package.module:function, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(
        None, "arguments of it, such as {learning_rate: 0.1}; null: none"
    )


OptimizerSettings.options = {
    "sgd": Option(
        _settings_of("sgd", Sgd, learning_rate=0.3, momentum=0.9), "gradient descent with momentum"
    ),
    "adam": Option(_settings_of("adam", Adam, learning_rate=0.2, momentum=0.9), "Adam"),
    "yogi": Option(_settings_of("yogi", Yogi, learning_rate=0.2, momentum=0.9), "Yogi"),
    "adagrad": Option(_settings_of("adagrad", Adagrad, learning_rate=0.6), "Adagrad"),
    "custom": Option(CustomOptimizerSettings, _OWN_OPTIMIZER),
}
globals().update(
    {option.settings.__name__: option.settings for option in OptimizerSettings.options.values()}
)  # for pickle


def build_optimizer(settings: OptimizerSettings) -> Optimizer:
    """Return the server optimizer of a run; a custom one is imported, called and wrapped in `Checked`.

    Raises `SettingError` for a function that makes no optimizer, that does not take its settings or that raises.
    """
    if isinstance(settings, Optimizer):
        return settings
    given: dict[str, Any] = arguments(settings)
    name = given.pop("name")
    maker = import_maker(name, "optimizer.name", Optimizer)
    with keyed("optimizer.settings", given.keys()):
        check_takes(maker, given, who=name)
    return Checked(partial(_make, maker, given, name), name)


def _make(maker: Callable[..., Any], given: Mapping[str, Any], name: str) -> Optimizer:
    own = calling(f"optimizer.name is {name!r}, which cannot be made", maker, **deepcopy(dict(given)))
    if not isinstance(own, Optimizer):
        raise SettingError(
            f"optimizer.name is {name!r}, which returned an object of type {type(own).__name__}, not an Optimizer."
        )
    return own


# What the mechanism is fitted to: the optimizer over the whole run, or one epoch of prefix sums or of its momentum.
WorkloadName = Literal["run", "prefix_sum", "momentum"]

_OWN_FAMILY = (
    'custom family, MODULE:FAMILY, a fedmf.mechanisms.Family (docs/tutorial.md, "Your own mechanism")'
)


@dataclass(frozen=True)
class MechanismSettings(Choice):
    name: str = setting(REQUIRED, _OWN_FAMILY)


MechanismSettings.options = {
    name: Option(MechanismSettings, means)
    for name, means in {
        "optimal": "optimal factorization, streamed with the fewest buffers that reach it",
        "optimal_dense": "optimal factorization as a dense matrix, as in the papers, up to 512 rounds",
        "banded_toeplitz": "Toeplitz matrix of few bands with optimised coefficients",
        "banded_low_rank": "approximation of Denisov et al.: some diagonals and a matrix of low rank",
        "blt": "buffered linear Toeplitz matrices with optimised coefficients",
        "sqrt_toeplitz": "square-root factorization of a Toeplitz workload",
        "sqrt_blt": "square-root factorization of a Toeplitz workload, in O(log T) buffers",
        "normalized_sqrt": "square root with columns of equal norm, in O(log T) buffers",
        "binary_tree": "binary tree mechanism",
        "honaker_online": "binary tree, each node estimated from its own subtree (Honaker)",
        "honaker_full": "binary tree, prefix sums from all nodes by least squares (Honaker)",
        "independent": "independent noise in every round (DP-SGD, DP-FedAvg)",
        "custom": _OWN_FAMILY,
    }.items()
}


def find_family(name: str, key: str = "mechanism.name") -> Family:
    """Return the family of that name, or the `Family` at an import path, MODULE:FAMILY.

    Raises `SettingError` about the setting `key` if nothing or something else is found there.

    >>> find_family("optimal").settings
    ('buffers',)
    """
    if ":" not in name:
        return resolve(name, key)
    found = import_path(name, key)
    if not isinstance(found, Family):
        raise SettingError(
            f"{key} is {name!r}, which is of type {type(found).__name__}; it must be a fedmf.mechanisms.Family, such "
            "as strategy_family(NAME, C) or noising_family(NAME, C^-1) makes of a matrix or of a function of "
            "the workload."
        )
    return resolve(found)


# Rounds of a run up to which the least error is solved for, where that is not the mechanism itself.
LONGEST_CERTIFIED = 2**14


def factorize(
    name: str, fitted_to: str, rounds: int, epochs: int, *, beta: float, schedule: str
) -> RunFactorization:
    """Return each epoch's factorization by the family `name`, with its error in the whole run.

    With workload=run each is fitted to that; the others are fitted to one epoch, the same in all of them. `beta` and
    `schedule` are those of the server's optimizer. Raises `SettingError` as `design` does.
    """
    alone = None
    if fitted_to != "run":
        alone = momentum(rounds, beta if fitted_to == "momentum" else 0.0)
    return fit(find_family(name), run_workloads(rounds, epochs, beta=beta, schedule=schedule), alone)


def fit(
    family: Family, run: Sequence[Workload], alone: Workload | None, **settings: int | None
) -> RunFactorization:
    """Return a run's factorization by `family`: each epoch's fitted to the `run`, or all to the epoch `alone`."""
    if alone is None:
        return design_run(family, run, **settings)
    epoch = design(family, alone, **settings)
    return as_run([epoch.costed_on(workload) for workload in run])


def run_workloads(rounds: int, epochs: int, *, beta: float, schedule: str) -> tuple[Workload, ...]:
    """Return the workload of each epoch of `rounds` rounds: momentum, and the schedule over all rounds of the run."""
    return of_run(rounds, epochs, beta, None if schedule == "constant" else rates(schedule, rounds * epochs))


def lowest_rms_error(run: RunFactorization) -> float | None:
    """Return the certificate that no mechanism which restarts every epoch, with equal noise in all, goes below.

    It is the root mean square over all rounds of a run; None where it would take too long to find.
    """
    rounds = len(run.per_round_error)
    if run.family != "optimal" and rounds > LONGEST_CERTIFIED:
        return None
    return run_lower_bound(run.workloads) / math.sqrt(rounds)
