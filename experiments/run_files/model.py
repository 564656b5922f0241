"""The model of a run directory, read back as a torch module."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from client import models
from client.data import Dataset
from experiments.run_files.directory import MODEL
from experiments.settings.data import merged, refuse_taken
from experiments.settings.keys import keyed
from fedmf.errors import RunDirectoryError, SettingError


def load_model(directory: Path, recorded: Mapping[str, Any], dataset: Dataset) -> nn.Module:
    """Return the run's model, built for the shape of `dataset`, with the parameters of model.npz.

    `recorded` is the group `model` of its config.yaml. Raises `RunDirectoryError` when there is no model.npz,
    `SettingError` when the data set does not fit the model.
    """
    settings = merged(recorded)
    refuse_taken(settings)
    with keyed("model", settings.keys()):
        model = models.build(
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            task=dataset.task,
            seed=0,
            **settings,
        )
    load_parameters(directory / MODEL, model)
    return model.eval()


def load_parameters(file: Path, model: nn.Module) -> None:
    """Copy the arrays of an .npz file, one for each parameter by name, into `model`."""
    if not file.is_file():
        raise RunDirectoryError(f"{file} does not exist; the run has not released a model yet.")
    try:
        with zipfile.ZipFile(file), np.load(file) as arrays:
            stored = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise RunDirectoryError(
            f"{file} cannot be read as a model ({error}); it must be the .npz file that the run wrote."
        ) from error
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {name: array.shape for name, array in stored.items()}
    if expected != found:
        differing = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        name = differing[0]
        raise SettingError(
            f"{name} in {file} has the shape {found.get(name, 'none')}, but the model for this data set has "
            f"{expected.get(name, 'none')}; choose a data set of the shape that the run was trained on."
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(stored[name]))
