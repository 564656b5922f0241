"""The part of a run's settings that concerns a client, as the library's values and a model.

Kept apart from `experiments.settings.experiment`, which needs the accountant and the mechanisms: a deployed client
is a new process every round and must start fast.
"""

from torch import nn

import client.models
from client.data import Dataset
from client.parameters import check_trainable
from experiments.settings.data import ModelSettings, arguments, refuse_taken
from experiments.settings.keys import keyed
from experiments.settings.schema import ClippingSettings, Settings
from fedmf.plan import Compression
from fedmf.randomness import PublicSeed
from fedmf.updates.client_plan import ClientPlan, make_client_plan
from fedmf.updates.compression import make_bounds
from fedmf.updates.wire import Bounds


def build_model(settings: ModelSettings, dataset: Dataset, seed: int) -> nn.Module:
    """Return the model, fitted to the data's shape and classes; its parameters hang on `seed` and its start.

    Raises `SettingError` for a model that cannot be trained here.
    """
    given = arguments(settings)
    refuse_taken(given)
    with keyed("model", given.keys()):
        model = client.models.build(
            **given,
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            task=dataset.task,
            seed=seed,
        )
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
