"""What a client needs of the run's plan, and nothing that needs the accountant or a mechanism.

`Plan.client_plan` gives it where there is a plan. A deployed node has none: `make_client_plan` gives it the same
value from the public settings of the run.
"""

from dataclasses import dataclass

from fedmf.randomness import PublicSeed
from fedmf.updates.compression import Compression
from fedmf.updates.rotation import Rotation
from fedmf.updates.wire import Bounds


@dataclass(frozen=True)
class ClientPlan:
    """What a client enforces itself: bounds, rotation and keep probability, and the public seed of its draws.

    `bounds` hold for the whole rotated vector, before the mask keeps each coordinate with `keep_probability`.
    """

    bounds: Bounds
    rotation: Rotation
    keep_probability: float
    seed: PublicSeed


def make_client_plan(
    *, dimension: int, compression: Compression, bounds: Bounds, seed: PublicSeed
) -> ClientPlan:
    """Return what the clients of a model with `dimension` parameters d enforce.

    `bounds` are those of `make_bounds` for the same dimension and compression. Raises `SettingError` for a
    dimension below 1.
    """
    rotation = Rotation(compression.rotation, dimension, seed)
    return ClientPlan(bounds, rotation, compression.keep_probability, seed)
