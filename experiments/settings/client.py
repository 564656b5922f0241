"""The part of a configuration that concerns a client, turned into settings and a model.

Kept apart from `experiments.build`, which needs the accountant and the mechanisms: a deployed client is a new
process every round and must start fast.
"""

from omegaconf import DictConfig
from torch import nn

import client.models
from client.data import Dataset
from client.settings import TrainingSettings
from experiments.settings.data import arguments
from experiments.settings.keys import keyed
from experiments.settings.schema import ClientConfig, ClippingConfig, CompressionConfig
from fedmf.randomness import PublicSeed
from fedmf.updates.client_plan import ClientPlan, make_client_plan
from fedmf.updates.compression import Compression, make_bounds
from fedmf.updates.wire import Bounds


def build_model(config: DictConfig, dataset: Dataset) -> nn.Module:
    """Return the configured model, fitted to the data's shape and classes."""
    settings = arguments(config.model)
    with keyed("model", settings.keys()):
        return client.models.build(
            **settings,
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            task=dataset.task,
            seed=config.seed,
        )


@keyed("client", ClientConfig)
def training_of(config: DictConfig) -> TrainingSettings:
    """Return how a client trains."""
    return TrainingSettings(
        config.client.learning_rate, config.client.batch_size, config.client.epochs, config.client.device.name
    )


@keyed("compression", CompressionConfig)
def compression_of(config: DictConfig) -> Compression:
    """Return how an update travels."""
    return Compression(
        config.compression.keep_probability,
        config.compression.rotation.name,
        config.compression.value_type.name,
    )


@keyed("clipping", ClippingConfig)
@keyed("compression", CompressionConfig)
def bounds_of(config: DictConfig, dimension: int) -> Bounds:
    """Return what the update of a model with `dimension` parameters is held to."""
    return make_bounds(
        l2_norm=config.clipping.l2_norm,
        linf_norm=config.clipping.linf_norm,
        dimension=dimension,
        cohort_size=config.population.cohort_size,
        compression=compression_of(config),
    )


def client_plan_of(config: DictConfig, dimension: int) -> ClientPlan:
    """Return what a client of a model with `dimension` parameters enforces itself."""
    return make_client_plan(
        dimension=dimension,
        compression=compression_of(config),
        bounds=bounds_of(config, dimension),
        seed=PublicSeed(config.seed),
    )
