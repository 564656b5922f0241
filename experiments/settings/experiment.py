"""A run's settings as data, model and plan: everything that can be checked before the first round.

`Clients` is the part that a process which runs clients needs: no plan is designed and no cost calculated there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

from flwr.app import Context
from torch import nn

import client.models
from client.data import Dataset, Examples, Public
from client.data.inspection import log_zeros
from client.parameters import check_trainable, digest_tensors, fixed_tensors, flat_parameters, layout_of
from client.settings import TrainingSettings
from client.training import Trainer, check_available
from experiments.settings.data import ModelSettings, arguments, load_dataset
from experiments.settings.groups import DeploymentSettings, build_optimizer, factorize
from experiments.settings.schema import ClippingSettings, PopulationSettings, Settings
from experiments.settings.values import keyed, plain, with_key
from fedmf.errors import SettingError
from fedmf.mechanisms import RunFactorization
from fedmf.outlook import misgivings
from fedmf.participation import rounds_that_fit
from fedmf.plan import Compression, Participation, Plan, PrivacyTarget, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.client_plan import ClientPlan, make_bounds, make_client_plan
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import Bounds
from server.checked import Checked, rehearse
from server.cohort import ReplyPolicy
from server.optimizer import Optimizer
from server.state import check_one_scale

# Rounds of an epoch beyond which it is not designed unless it was asked for.
LONGEST_EPOCH = 1_000_000


def shape_of(dataset: Dataset) -> dict[str, Any]:
    """Return the properties of the data that a model is built for: the shape of one input, the number of classes, and the task."""
    return {"input_shape": dataset.input_shape, "classes": dataset.classes, "task": dataset.task}


def build_module(group: Mapping[str, Any], **data: Any) -> nn.Module:
    """Return the model that a group `model` names; `data` are the seed and the shape, classes and task of the dataset.

    Raises `SettingError` for an argument of the model that `data` decide.
    """
    given = arguments(group)
    if taken := sorted(set(given) & set(data)):
        raise SettingError(
            f"settings of {given['name']} contain {', '.join(taken)}, which follows from the dataset or the seed; leave it out."
        )
    with keyed("model", given.keys()):
        return client.models.build(**given, **data)


def build_model(settings: ModelSettings, dataset: Dataset, seed: int) -> nn.Module:
    """Return the model of a run. Raises `SettingError` for one that cannot be trained here."""
    model = build_module(plain(settings), **shape_of(dataset), seed=seed)
    with keyed("model", ModelSettings):
        check_trainable(model)
    return model


@keyed("clipping", ClippingSettings)
@keyed("compression", Compression)
def build_bounds(settings: Settings, dimension: int) -> Bounds:
    """Return the bounds on an update of a model with `dimension` parameters."""
    return make_bounds(
        l2_norm=settings.clipping.l2_norm,
        linf_norm=settings.clipping.linf_norm,
        dimension=dimension,
        cohort_size=settings.population.cohort_size,
        compression=settings.compression,
    )


def build_client_plan(settings: Settings, dimension: int) -> ClientPlan:
    """Return the part of the plan that a client of a model with `dimension` parameters enforces."""
    return make_client_plan(
        dimension=dimension,
        compression=settings.compression,
        bounds=build_bounds(settings, dimension),
        seed=PublicSeed(settings.seed),
        sends_bit=settings.clipping.adapt is not None,
    )


@dataclass(frozen=True)
class Clients:
    """The part of a run that a process needs to run clients."""

    dataset: Dataset
    model: nn.Module
    training: TrainingSettings
    client_plan: ClientPlan

    def examples_of(self, client_name: str, context: Context) -> Examples:
        """Return the examples of a simulated client, named by its index."""
        return self.dataset.clients[int(client_name)]

    def make_trainer(self) -> Trainer:
        """Return a trainer of the model as it was built."""
        return Trainer(self.model, self.training, self.dataset.task)


def build_for_clients(settings: Settings, public: Public) -> Clients:
    """Return the clients of a run, without a test set: the session that started this process gives the `public` part.

    That session has checked the settings and logged which data cannot be read.
    """
    dataset = load_dataset(arguments(settings.dataset), settings.model.name, public)
    model = build_model(settings.model, dataset, settings.seed)
    plan = build_client_plan(settings, layout_of(model).dimension)
    return Clients(dataset, model, settings.client, plan)


@dataclass(frozen=True)
class Experiment(Clients):
    """Everything a run needs, checked.

    `initial` is the model before training, (d,) float32; nothing trains `model` itself. `designed` is the fingerprint of
    the matrices of the epochs that were planned when the run began.
    """

    initial: Vector
    plan: Plan
    optimizer: Optimizer
    replies: ReplyPolicy
    designed: str

    @cached_property
    def fixed_digest(self) -> str:
        """A public digest of the parameters and buffers that do not train, "" if there are none."""
        return digest_tensors(fixed_tensors(self.model))

    @cached_property
    def own_steps(self) -> dict[str, str]:
        """A digest of the effect of a custom optimizer on the first model, by its description; empty for other optimizers.

        The code behind an import path can change between two calls: released rounds that are replayed would then give
        another model than was shown. Raises `SettingError` as `rehearse` does.
        """
        if not isinstance(self.optimizer, Checked):
            return {}
        return {"what optimizer.name does": rehearse(self.optimizer, self.initial)}

    @cached_property
    def misgivings(self) -> tuple[str, ...]:
        """What speaks against the run: of its data, and in sentences that name its keys of its plan (`fedmf.outlook`)."""
        of_plan = (
            with_key(with_key(sentence, "population", PopulationSettings), "compression", Compression)
            for sentence in misgivings(self.plan)
        )
        return (*self.dataset.warnings, *of_plan)


def build(
    settings: Settings, dataset: Dataset | None = None, factorize: Callable[..., RunFactorization] = factorize
) -> Experiment:
    """Return the experiment that `settings` describe, on their dataset or on `dataset` in its place.

    `factorize` may be one that remembers.

    Raises a `FedmfError` for anything that cannot run as asked.
    """
    population, optimizer = settings.population, build_optimizer(settings.optimizer)
    replies = ReplyPolicy(population.min_replies, population.max_attempts)
    with keyed("population", PopulationSettings):
        replies.check_fits(population.cohort_size)
    if optimizer.precondition and population.epochs == 1:
        raise SettingError(
            "optimizer.precondition is true, but population.epochs is 1, and clients scale from the second epoch on; "
            "set one of them otherwise."
        )
    if settings.clipping.adapt is not None and population.epochs == 1:
        raise SettingError(
            "clipping.adapt is set, but population.epochs is 1, and the clip norm moves from one epoch to the next; set one of "
            "them otherwise."
        )
    if dataset is None:
        dataset = load_dataset(arguments(settings.dataset), settings.model.name)
        # Flower shows a deployment's log to the account that submits the run.
        if not isinstance(settings.engine, DeploymentSettings):
            log_zeros(dataset)
    model = build_model(settings.model, dataset, settings.seed)
    if settings.model.start is not None:
        said = "The weights in the file that model.start names count as public: whatever they were trained on is not protected."
        dataset = replace(dataset, uncovered=(*dataset.uncovered, said))
    participation = _participation(settings, dataset)
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
            clipping=settings.clipping.adaptive,
        )
        check_one_scale(plan, optimizer)
        parts = population.parts or ()
        for after, part in zip(accumulate(parts), parts[1:], strict=False):
            plan = plan.extended(after, fit(part))
    experiment = Experiment(
        dataset,
        model,
        settings.client,
        plan.client_plan,
        flat_parameters(model),
        plan,
        optimizer,
        replies,
        factorization.fingerprint,
    )
    _ = experiment.own_steps  # raises for an optimizer that cannot run
    with keyed("client", TrainingSettings):
        check_available(settings.client, dataset.task)
    return experiment


def run_secret(settings: Settings) -> SecretKey:
    """Return the run secret: from the system, or from the seed for a run that is reproducible, NOT private."""
    return SecretKey.reproducible(settings.seed) if settings.run.reproducible else SecretKey.generate()


@keyed("population", PopulationSettings)
def _participation(settings: Settings, dataset: Dataset) -> Participation:
    """Return the participation. Raises `SettingError` for more rounds in an epoch than can be designed, unless they were asked for.

    In a deployment the clients are elsewhere, and an epoch begins when `population.min_available` of them are
    there: the cohorts must fit into that number.
    """
    population, clients = settings.population, len(dataset.clients)
    if isinstance(settings.engine, DeploymentSettings):
        if population.min_available is None:
            raise SettingError("min_available is null; a deployment needs the number of clients to wait for.")
        clients = population.min_available
    rounds = rounds_that_fit(clients, population.cohort_size, population.rounds_per_epoch)
    if population.rounds_per_epoch is None and rounds > LONGEST_EPOCH:
        raise SettingError(
            f"rounds_per_epoch is null, and {clients:,} clients are {rounds:,} cohorts of {population.cohort_size}: more "
            f"rounds than can be designed in reasonable time; set rounds_per_epoch, at most {LONGEST_EPOCH:,}."
        )
    return Participation(clients, population.cohort_size, rounds, population.epochs)
