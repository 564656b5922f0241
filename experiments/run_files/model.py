"""The model of a run directory, read back as a torch module."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from client import models
from client.data import Dataset
from client.parameters import set_arrays, stored_shapes
from experiments.run_files.directory import METRICS, MODEL
from experiments.run_files.reader import is_finished
from experiments.settings.data import merged, refuse_taken
from experiments.settings.keys import keyed
from experiments.settings.recorded import Recorded
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.npz import read_npz


class Shape(NamedTuple):
    """What a model is built for: the shape of one input, the number of classes, and the task."""

    input_shape: tuple[int, ...]
    classes: int
    task: str


def load_model(
    directory: Path, recorded: Mapping[str, Any], dataset: Dataset | Shape, seed: int = 0
) -> nn.Module:
    """Return the run's model, built for the shape of `dataset`, with the parameters and buffers of model.npz.

    `recorded` is the group `model` of its config.yaml, `seed` the run's: what a model draws and does not count to its
    state hangs on it. The file that the run started from is not read again. Raises `RunDirectoryError` when there is no model.npz,
    `SettingError` when the data set does not fit the model.
    """
    settings = merged(recorded)
    refuse_taken(settings)
    with keyed("model", settings.keys()):
        model = models.build(
            input_shape=dataset.input_shape,
            classes=dataset.classes,
            task=dataset.task,
            seed=seed,
            **{**settings, "start": None},
        )
    load_parameters(directory / MODEL, model)
    return model.eval()


def recorded_seed(document: Recorded) -> int:
    """Return the seed of recorded settings, 0 for what is none."""
    seed = document.get("seed")
    return seed if isinstance(seed, int) and 0 <= seed < 2**63 else 0


def load_parameters(file: Path, model: nn.Module) -> None:
    """Copy the arrays of an .npz file, one for each parameter and buffer by name, into `model`."""
    expected = stored_shapes(model)
    stored = read_arrays(file, expected)
    if differing := sorted({*expected} ^ {*stored}):
        raise SettingError(
            f"{differing[0]} is not in both of {file} and the model for this data set; choose a data set of the shape that "
            "the run was trained on."
        )
    set_arrays(model, stored)


def read_arrays(file: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of a model's .npz file by name, as `read_npz` does for the model's `shapes`.

    Raises `RunDirectoryError` where there is none to read.
    """
    if not file.is_file():
        raise RunDirectoryError(f"{file} does not exist; {_why_there_is_none(file.parent)}.")
    try:
        return read_npz(file, shapes)
    except ValueError as error:
        raise RunDirectoryError(
            f"{file} cannot be read as a model ({error}); it must be the .npz file that the run wrote, and the data of "
            "the shape that the run was trained on."
        ) from error


def _why_there_is_none(directory: Path) -> str:
    """Say why a run directory lacks a model. That of a stopped run is in its checkpoint alone, beside secrets: nobody reads it there."""
    if is_finished(directory):
        return "the run has finished, and wrote it: restore the file"
    metrics = directory / METRICS
    released = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
    if not released:
        return "the run has not released a round yet"
    rounds = "1 round" if released == 1 else f"{released} rounds"
    return (
        f"the run has released {rounds}, and its model is written when it finishes; where it was stopped, resume it to its end "
        "(run.resume=true)"
    )
