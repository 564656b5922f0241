"""The server optimizer: SGD with momentum on the released mean update.
Post-processing: it costs no privacy.
"""

from dataclasses import dataclass

import numpy as np

from fedmf.checks import check_choice, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector
from server.schedule import SCHEDULES, share


@dataclass(frozen=True)
class Optimizer:
    """velocity <- momentum * velocity + mean;  model <- model + learning_rate * share * velocity.

    `schedule` names the share of the rate at each point of the run; see `server.schedule`.
    """

    learning_rate: float
    momentum: float = 0.0
    schedule: str = "constant"

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_non_negative("momentum", self.momentum)
        check_choice("schedule", self.schedule, SCHEDULES)
        if self.momentum >= 1:
            raise SettingError(f"momentum is {self.momentum}; it must lie in [0, 1).")

    def step(
        self, model: Vector, velocity: Vector, mean: Vector, *, progress: float = 0.0
    ) -> tuple[Vector, Vector]:
        """Return the new model and velocity, each (d,) float32, after a mean update (d,) that points
        downhill; `progress` in [0, 1) is rounds done over all rounds of the run."""
        rate = self.learning_rate * share(self.schedule, progress)
        # Who diverges is told so by the check on the model, not by a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = self.momentum * velocity + mean
            return model + rate * velocity, velocity
