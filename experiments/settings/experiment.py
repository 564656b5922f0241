"""The last place that sees a configuration: it turns one into data, model and plan."""

from dataclasses import dataclass
from functools import cached_property

from flwr.app import Context
from omegaconf import DictConfig
from torch import nn

from client.data import Dataset, Examples
from client.settings import TrainingSettings
from client.training import Trainer, flat_parameters, layout_of
from experiments.players.faults import Faults
from experiments.settings.client import bounds_of, build_model, compression_of, training_of
from experiments.settings.data import arguments, refuse_unknown
from experiments.settings.keys import keyed, load_dataset
from experiments.settings.schema import (
    ClientConfig,
    ClippingConfig,
    Config,
    EngineName,
    OptimizerConfig,
    PopulationConfig,
    PrivacyConfig,
)
from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.mechanisms import design
from fedmf.mechanisms.workload import Workload, momentum, prefix_sum
from fedmf.participation import rounds_that_fit
from fedmf.plan import Participation, Plan, PrivacyTarget, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.vectors import Layout, Vector
from server.cohort import ReplyPolicy
from server.optimizer import Optimizer


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs, checked; `config` stops here.

    `initial` is the model before training, (d,) float32; `trainer` holds `model` and trains it in place.
    """

    dataset: Dataset
    model: nn.Module
    initial: Vector
    trainer: Trainer
    plan: Plan
    optimizer: Optimizer
    training: TrainingSettings
    replies: ReplyPolicy

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return layout_of(self.model)

    @property
    def client_plan(self) -> ClientPlan:
        """What a client enforces itself."""
        return self.plan.client_plan

    def examples_of(self, client_name: str, context: Context) -> Examples:
        """Return the examples of a simulated client, named by its index."""
        return self.dataset.clients[int(client_name)]

    def make_trainer(self) -> Trainer:
        """Return the resident trainer of this process."""
        return self.trainer


def build(config: DictConfig) -> Experiment:
    """Return the experiment that `config` describes.
    Raises a `FedmfError` for anything that cannot run as asked.
    """
    refuse_unknown(config, Config)
    check_at_least("engine.workers", config.engine.workers, 1)
    check_at_least("run.checkpoint_every", config.run.checkpoint_every, 1)
    if config.run.evaluate_every is not None:
        check_at_least("run.evaluate_every", config.run.evaluate_every, 1)
    seed = PublicSeed(config.seed)
    if Faults(**config.faults).any and config.engine.name is not EngineName.local:
        raise SettingError("faults.* are for engine=local; set them to 0 or choose engine=local.")
    with keyed("optimizer", OptimizerConfig):
        optimizer = Optimizer(
            config.optimizer.learning_rate, config.optimizer.momentum, config.optimizer.schedule.name
        )
    training = training_of(config)
    with keyed("privacy", PrivacyConfig):
        privacy = PrivacyTarget(
            delta=config.privacy.delta,
            noise_multiplier=config.privacy.noise_multiplier,
            epsilon=config.privacy.epsilon,
            adjacency=config.privacy.adjacency.name,
            accountant=config.privacy.accountant.name,
            max_epsilon=config.privacy.max_epsilon,
        )
    replies = replies_of(config)
    dataset = load_dataset(arguments(config.dataset))
    model = build_model(config, dataset)
    participation = participation_of(config, clients_of(config, dataset))
    dimension = layout_of(model).dimension
    factorization = design(config.mechanism.name, workload_of(config, participation.rounds_per_epoch))
    with keyed("clipping", ClippingConfig), keyed("privacy", PrivacyConfig):
        plan = make_plan(
            dimension=dimension,
            participation=participation,
            compression=compression_of(config),
            bounds=bounds_of(config, dimension),
            privacy=privacy,
            factorization=factorization,
            seed=seed,
        )
    initial = flat_parameters(model)
    with keyed("client", ClientConfig):
        trainer = Trainer(model, training)
    return Experiment(dataset, model, initial, trainer, plan, optimizer, training, replies)


def clients_of(config: DictConfig, dataset: Dataset) -> int:
    """Return N, the number of clients to plan for.

    In a deployment the clients are elsewhere, and an epoch begins when `population.min_available` of them are
    there: that number is what the cohorts must fit into.
    """
    if config.engine.name is not EngineName.deployment:
        return len(dataset.clients)
    if config.population.min_available is None:
        raise SettingError(
            "population.min_available is null; a deployment needs the number of clients to wait for."
        )
    return int(config.population.min_available)


@keyed("population", PopulationConfig)
def participation_of(config: DictConfig, clients: int) -> Participation:
    """Return who takes part when `clients` have training examples."""
    population = config.population
    rounds = rounds_that_fit(clients, population.cohort_size, population.rounds_per_epoch)
    return Participation(clients, population.cohort_size, rounds, population.epochs)


@keyed("population", PopulationConfig)
def replies_of(config: DictConfig) -> ReplyPolicy:
    """Return when a round may be released. Raises `SettingError` for more replies than a cohort has clients."""
    population = config.population
    policy = ReplyPolicy(population.min_replies, population.max_attempts)
    policy.check_fits(population.cohort_size)
    return policy


def workload_of(config: DictConfig, rounds: int) -> Workload:
    """Return the workload of one epoch; "momentum" is fitted to optimizer.momentum."""
    if config.workload.name == "prefix_sum":
        return prefix_sum(rounds)
    return momentum(rounds, config.optimizer.momentum)


def secret_of(config: DictConfig) -> SecretKey:
    """Return the run secret: from the operating system,
    or from the seed for a run that is reproducible, NOT private.
    """
    if config.run.reproducible:
        return SecretKey.reproducible(config.seed)
    return SecretKey.generate()
