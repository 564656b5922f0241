"""The group `mechanism`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MechanismSettings:
    """The factorization family that correlates the noise."""

    name: str
