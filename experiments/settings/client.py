"""The part of a run's settings that concerns a client, as the library's values and a model.

Kept apart from `experiments.settings.experiment`, which needs the accountant and the mechanisms: a deployed client
is a new process every round and must start fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Context
from torch import nn

import client.models
from client.data import Dataset, Examples
from client.data.reading import said_elsewhere
from client.parameters import check_trainable, layout_of
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.settings.data import ModelSettings, arguments, load_dataset
from experiments.settings.keys import keyed
from experiments.settings.schema import ClippingSettings, Settings
from experiments.settings.values import plain
from fedmf.errors import SettingError
from fedmf.plan import Compression
from fedmf.randomness import PublicSeed
from fedmf.updates.client_plan import ClientPlan, make_client_plan
from fedmf.updates.compression import make_bounds
from fedmf.updates.wire import Bounds


def build_module(group: Mapping[str, Any], **data: Any) -> nn.Module:
    """Return the model that a group `model` names; `data` are the seed and the shape, classes and task of the data set.

    Raises `SettingError` for an argument of the model that `data` decide.
    """
    given = arguments(group)
    if taken := sorted(set(given) & set(data)):
        raise SettingError(
            f"settings of {given['name']} hold {', '.join(taken)}, which follows from the data set or the seed; leave it out."
        )
    with keyed("model", given.keys()):
        return client.models.build(**given, **data)


def build_model(settings: ModelSettings, dataset: Dataset, seed: int) -> nn.Module:
    """Return the model of a run. Raises `SettingError` for one that cannot be trained here."""
    model = build_module(
        plain(settings),
        input_shape=dataset.input_shape,
        classes=dataset.classes,
        task=dataset.task,
        seed=seed,
    )
    with keyed("model", ModelSettings):
        check_trainable(model)
    return model


@keyed("clipping", ClippingSettings)
@keyed("compression", Compression)
def build_bounds(settings: Settings, dimension: int) -> Bounds:
    """Return what the update of a model with `dimension` parameters is held to."""
    return make_bounds(
        l2_norm=settings.clipping.l2_norm,
        linf_norm=settings.clipping.linf_norm,
        dimension=dimension,
        cohort_size=settings.population.cohort_size,
        compression=settings.compression,
    )


def build_client_plan(settings: Settings, dimension: int) -> ClientPlan:
    """Return what a client of a model with `dimension` parameters enforces itself."""
    return make_client_plan(
        dimension=dimension,
        compression=settings.compression,
        bounds=build_bounds(settings, dimension),
        seed=PublicSeed(settings.seed),
    )


@dataclass(frozen=True)
class Clients:
    """What a process needs that plays clients of a run, and no more: no plan is designed, no cost calculated."""

    dataset: Dataset
    model: nn.Module
    training: TrainingSettings
    client_plan: ClientPlan

    def examples_of(self, client_name: str, context: Context) -> Examples:
        """Return the examples of a simulated client, named by its index."""
        return self.dataset.clients[int(client_name)]

    def make_trainer(self) -> Trainer:
        """Return a trainer of the model as it was built."""
        return Trainer(self.model, self.training)


def build_for_clients(settings: Settings) -> Clients:
    """Return the clients of a run, of the test set one example. The session that wants them has checked the settings.

    What of the data cannot be read is not said again: the session that started the process has said it.
    """
    named = arguments(settings.dataset)
    with said_elsewhere():
        dataset = load_dataset(named, settings.model.name, clients_only=True)
    model = build_model(settings.model, dataset, settings.seed)
    plan = build_client_plan(settings, layout_of(model).dimension)
    return Clients(dataset, model, settings.client, plan)
