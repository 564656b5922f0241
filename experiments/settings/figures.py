"""A run's groups as figures: what commands that train nothing take of them, under the names that they have in a run."""

from dataclasses import dataclass

from fedmf.checks import check_below_one, check_choice
from fedmf.choices import SCHEDULES


@dataclass(frozen=True)
class OptimizerFigures:
    """What the mechanism must know of the server's optimizer."""

    momentum: float
    schedule: str

    def __post_init__(self) -> None:
        check_below_one("momentum", self.momentum)
        check_choice("schedule", self.schedule, SCHEDULES)
