"""The client work of a benchmark row, as the benchmark wrote it into a folder for another system.

work.json    model, classes, shape, learning_rate, batch_size, l2_norm, noise_multiplier
arrays.npz   x [clients, examples, ...] float32, y [clients, examples] int64, start [d] float32
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters


@dataclass(frozen=True)
class Work:
    """What every system is given: the cohort, the model to start from, and how a client trains."""

    x: torch.Tensor
    y: torch.Tensor
    start: torch.Tensor
    settings: dict[str, Any]

    @property
    def clients(self) -> int:
        """How many clients a round has."""
        return len(self.x)

    def model(self) -> nn.Module:
        """Return the model to start from."""
        model = build(self.settings["model"], tuple(self.settings["shape"]), self.settings["classes"])
        vector_to_parameters(self.start, model.parameters())
        return model


def read(folder: str | Path) -> Work:
    """Return the work that lies in `folder`."""
    with np.load(Path(folder) / "arrays.npz") as arrays:
        x, y, start = (torch.from_numpy(arrays[name]) for name in ("x", "y", "start"))
    return Work(x, y, start, json.loads((Path(folder) / "work.json").read_text()))


def build(model: str, shape: tuple[int, int], classes: int) -> nn.Module:
    """Return an untrained model of the same function, and with the same order of parameters, as that of `client.models`.

    A file of another environment cannot import that; a test holds both to be equal.
    """
    height, width = shape
    if model == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(height * width, classes))
    if model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(height * width, 256), nn.ReLU(), nn.Linear(256, classes))
    assert model == "cnn"
    features = 64 * ((height - 2) // 2 - 2) * ((width - 2) // 2 - 2)
    return nn.Sequential(
        nn.Unflatten(1, (1, height)),
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
