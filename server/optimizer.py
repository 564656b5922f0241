"""The server optimizer: SGD with momentum on the released mean update. Post-processing: it costs no
privacy."""

from dataclasses import dataclass

import numpy as np

from fedmf.checks import check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector


@dataclass(frozen=True)
class Optimizer:
    """velocity <- momentum * velocity + mean;  model <- model + learning_rate * velocity."""

    learning_rate: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_positive("optimizer.learning_rate", self.learning_rate)
        check_non_negative("optimizer.momentum", self.momentum)
        if self.momentum >= 1:
            raise SettingError(f"optimizer.momentum is {self.momentum}; it must lie in [0, 1).")

    def step(self, model: Vector, velocity: Vector, mean: Vector) -> tuple[Vector, Vector]:
        """Return the new model and velocity, each (d,) float32, after a mean update (d,) that points
        downhill."""
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # who diverges is told so by the check on the model
            velocity = self.momentum * velocity + mean
            return model + self.learning_rate * velocity, velocity
