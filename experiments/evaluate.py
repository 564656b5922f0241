"""Score the model of a run: `python -m experiments.evaluate directory=DIR`.

The model and its data set come from the run directory's config.yaml and model.npz. `dataset.path=FILE` (or
another key of the data set) replaces one of the run's values; `dataset=NAME` scores on another data set of
the same shape.
"""

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from rich.table import Table
from torch import nn

from client import models
from client.data import Dataset
from client.scoring import Score, score
from experiments.cli import command
from experiments.run_files.reader import read_config
from experiments.settings import data
from experiments.settings.data import DatasetConfig, Output
from experiments.settings.keys import keyed, load_dataset
from fedmf.checks import check_at_least
from fedmf.errors import RunDirectoryError, SettingError


@dataclass
class EvaluateConfig:
    """Keys of the command."""

    directory: str = "???"
    dataset: Any = field(default_factory=lambda: DatasetConfig(name=""))
    batch_size: int = 256
    output: Output = Output.text


def evaluate(config: DictConfig) -> None:
    """Print the scores of the model in `config.directory`."""
    check_at_least("batch_size", config.batch_size, 1)
    directory = Path(config.directory)
    own = read_config(directory)
    chosen = choose_dataset(own["dataset"], data.arguments(config.dataset))
    dataset = load_dataset(chosen)
    model = load_model(directory, own["model"], dataset)
    result = score(model, dataset.test, uncounted=dataset.uncounted, batch_size=config.batch_size)
    document = as_document(result, dataset, model)
    if config.output is Output.json:
        command.print_json(document)
    else:
        _print_table(directory, document)


def choose_dataset(own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of `client.data.load`: the run's own with those given in their place.

    Another data set's name drops all of the run's own values.
    """
    own = data.merged(own)
    given = {key: value for key, value in given.items() if value not in (None, "")}
    if given.get("name", own["name"]) != own["name"]:
        return given
    return {**own, **given}


def load_model(directory: Path, config: dict[str, Any], dataset: Dataset) -> nn.Module:
    """Return the run's model, built for the shape of `dataset`, with the parameters of model.npz.

    Raises `RunDirectoryError` when there is no model.npz, `SettingError` when the data set does not fit the
    model.
    """
    settings = data.merged(config)
    with keyed("model", settings.keys()):
        model = models.build(
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            task=dataset.task,
            seed=0,
            **settings,
        )
    load_parameters(directory / "model.npz", model)
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


def as_document(result: Score, dataset: Dataset, model: nn.Module) -> dict[str, Any]:
    """Return what is printed: accuracy, loss (nats), and what they were measured on."""
    return {
        "accuracy": result.accuracy,
        "loss": result.loss,
        "targets": result.counted,
        "examples": len(dataset.test),
        "dataset": dataset.name,
        "source": dataset.source,
        "parameters": models.parameter_count(model),
    }


def _print_table(directory: Path, document: dict[str, Any]) -> None:
    """Print one row per figure."""
    table = Table(title=f"Scores of {directory}", show_header=False)
    for key, value in document.items():
        table.add_row(key, f"{value:.4f}" if isinstance(value, float) else f"{value}")
    command.console().print(table)


if __name__ == "__main__":
    data.register()
    command.run(evaluate, "evaluate", EvaluateConfig, __doc__)
