"""The server optimizer: SGD with momentum on the released mean update.

It is post-processing and costs no privacy.
"""

from dataclasses import dataclass

import numpy as np

from fedmf.checks import check_below_one, check_choice, check_positive
from fedmf.choices import SCHEDULES
from fedmf.mechanisms.schedules import share
from fedmf.updates.vectors import Vector


@dataclass(frozen=True)
class Optimizer:
    """velocity <- momentum * velocity + mean;  model <- model + learning_rate * share * velocity.

    `schedule` names the share of the rate at each point of the run; see `fedmf.mechanisms.schedules`.
    """

    learning_rate: float
    momentum: float = 0.0
    schedule: str = "constant"

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_below_one("momentum", self.momentum)
        check_choice("schedule", self.schedule, SCHEDULES)

    def step(
        self, model: Vector, velocity: Vector, mean: Vector, *, progress: float = 0.0
    ) -> tuple[Vector, Vector]:
        """Return the new model and velocity, each (d,) float32, after a mean update (d,) that points downhill.

        `progress` in [0, 1) is rounds done over all rounds of the run.
        """
        rate = self.learning_rate * share(self.schedule, progress)
        # Divergence is reported by the check on the model, not by a warning of numpy.
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = self.momentum * velocity + mean
            return model + rate * velocity, velocity
