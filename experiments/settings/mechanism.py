"""The group `mechanism`, and what a mechanism is fitted to."""

from dataclasses import dataclass
from enum import StrEnum


class WorkloadName(StrEnum):
    """What the mechanism is fitted to: the optimizer over the whole run, or one epoch alone.

    One epoch: of prefix sums, or of the optimizer's momentum.
    """

    run = "run"
    prefix_sum = "prefix_sum"
    momentum = "momentum"


@dataclass(frozen=True)
class MechanismSettings:
    """The factorization family that correlates the noise."""

    name: str
