"""A run's settings as data, model and plan: everything that can be checked before a round is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate

from flwr.app import Context
from torch import nn

from client.data import Dataset, Examples
from client.parameters import digest_tensors, fixed_tensors, flat_parameters, layout_of
from client.settings import TrainingSettings
from client.training import Trainer, check_available
from experiments.settings.client import build_bounds, build_model
from experiments.settings.data import arguments, load_dataset
from experiments.settings.engine import DeploymentSettings
from experiments.settings.factorization import factorize, say_long
from experiments.settings.keys import keyed, with_key
from experiments.settings.optimizer import build_optimizer, steps_of_own
from experiments.settings.schema import ClippingSettings, PopulationSettings, Settings
from fedmf.errors import SettingError
from fedmf.outlook import misgivings
from fedmf.participation import rounds_that_fit
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.vectors import Layout, Vector
from server.cohort import ReplyPolicy
from server.optimizer import Optimizer

LONGEST_EPOCH = 1_000_000  # rounds that somebody may have without asking for them
"""Rounds of an epoch from which on its design is announced, and beyond which it is not begun unless it was asked for."""

START_IS_PUBLIC = "The weights in the file that model.start names count as public: whatever they were trained on is not protected."


@dataclass(frozen=True)
class Experiment:
    """Everything a run needs, checked.

    `initial` is the model before training, (d,) float32; nothing trains `model` itself. `designed` is the fingerprint of
    the matrices of the epochs that were planned when the run began.
    """

    dataset: Dataset
    model: nn.Module
    initial: Vector
    plan: Plan
    optimizer: Optimizer
    training: TrainingSettings
    replies: ReplyPolicy
    designed: str

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return layout_of(self.model)

    @cached_property
    def fixed_digest(self) -> str:
        """A public digest of what of the model does not train, "" where all does."""
        return digest_tensors(fixed_tensors(self.model))

    @cached_property
    def own_steps(self) -> dict[str, str]:
        """A digest of what an optimizer of one's own does to the first model, by its name: `steps_of_own`."""
        return steps_of_own(self.optimizer, self.initial)

    @property
    def client_plan(self) -> ClientPlan:
        """What a client enforces itself."""
        return self.plan.client_plan

    @cached_property
    def misgivings(self) -> tuple[str, ...]:
        """What speaks against the run, in sentences that name its keys: `fedmf.outlook`."""
        return tuple(
            with_key(with_key(sentence, "population", PopulationSettings), "compression", Compression)
            for sentence in misgivings(self.plan)
        )

    def examples_of(self, client_name: str, context: Context) -> Examples:
        """Return the examples of a simulated client, named by its index."""
        return self.dataset.clients[int(client_name)]

    def make_trainer(self) -> Trainer:
        """Return a trainer of the model as it was built."""
        return Trainer(self.model, self.training)


def build(settings: Settings, dataset: Dataset | None = None) -> Experiment:
    """Return the experiment that `settings` describe, on their data set or on `dataset` in its place.

    Raises a `FedmfError` for anything that cannot run as asked.
    """
    optimizer = build_optimizer(settings.optimizer)
    if optimizer.precondition and settings.population.epochs == 1:
        raise SettingError(
            "optimizer.precondition is true, but population.epochs is 1, and clients scale from the second epoch on; "
            "set one of them otherwise."
        )
    if dataset is None:
        dataset = load_dataset(arguments(settings.dataset), settings.model.name)
    model = build_model(settings.model, dataset, settings.seed)
    if settings.model.start is not None:
        dataset = replace(dataset, uncovered=(*dataset.uncovered, START_IS_PUBLIC))
    participation = _participation(settings, _clients(settings, dataset))
    dimension = layout_of(model).dimension
    with keyed("mechanism", ("name",)), keyed("population", ("rounds_per_epoch",)):
        fit = partial(
            factorize,
            settings.mechanism.name,
            settings.workload,
            participation.rounds_per_epoch,
            beta=optimizer.momentum,
            schedule=optimizer.schedule,
        )
        factorization = fit(participation.epochs)
    with keyed("clipping", ClippingSettings), keyed("privacy", PrivacyTarget):
        plan = make_plan(
            dimension=dimension,
            participation=participation,
            compression=settings.compression,
            bounds=build_bounds(settings, dimension),
            privacy=settings.privacy,
            factorization=factorization,
            seed=PublicSeed(settings.seed),
        )
        for after, part in added_parts(settings.population.parts):
            plan = plan.extended(after, fit(part))
    experiment = Experiment(
        dataset,
        model,
        flat_parameters(model),
        plan,
        optimizer,
        settings.client,
        settings.population.replies,
        factorization.fingerprint,
    )
    _ = experiment.own_steps  # refuses an optimizer that cannot run
    with keyed("client", TrainingSettings):
        check_available(settings.client)
    return experiment


def added_parts(parts: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """Yield (epochs before, epochs) of each part that was added to a run.

    >>> list(added_parts([8, 2, 3]))
    [(8, 2), (10, 3)]
    """
    before = list(accumulate(parts or ()))
    yield from zip(before, (parts or ())[1:], strict=False)


def run_secret(settings: Settings) -> SecretKey:
    """Return the run secret: from the system, or from the seed for a run that is reproducible, NOT private."""
    if settings.run.reproducible:
        return SecretKey.reproducible(settings.seed)
    return SecretKey.generate()


def _clients(settings: Settings, dataset: Dataset) -> int:
    """Return N, the number of clients to plan for.

    In a deployment the clients are elsewhere, and an epoch begins when `population.min_available` of them are
    there: that number is what the cohorts must fit into.
    """
    if not isinstance(settings.engine, DeploymentSettings):
        return len(dataset.clients)
    if settings.population.min_available is None:
        raise SettingError(
            "population.min_available is null; a deployment needs the number of clients to wait for."
        )
    return settings.population.min_available


@keyed("population", PopulationSettings)
def _participation(settings: Settings, clients: int) -> Participation:
    """Return who takes part when `clients` have training examples."""
    population = settings.population
    rounds = rounds_that_fit(clients, population.cohort_size, population.rounds_per_epoch)
    _say_long_epoch(rounds, population, clients)
    return Participation(clients, population.cohort_size, rounds, population.epochs)


def _say_long_epoch(rounds: int, population: PopulationSettings, clients: int) -> None:
    """Say before it begins that a design takes long. Raises `SettingError` for one that nobody asked for and none waits for."""
    if population.rounds_per_epoch is None and rounds > LONGEST_EPOCH:
        raise SettingError(
            f"rounds_per_epoch is null, and {clients:,} clients are {rounds:,} cohorts of {population.cohort_size}: more "
            f"rounds than can be designed in reasonable time; set rounds_per_epoch, at most {LONGEST_EPOCH:,}."
        )
    say_long(rounds)
