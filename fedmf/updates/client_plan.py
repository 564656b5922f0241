"""What a client must know of a run: how an update travels, its bounds, rotation and mask; no accountant, no mechanism.

`Plan.client_plan` is a `ClientPlan` where there is a plan. A deployed node has none: `make_client_plan` gives the same
value from the public settings of the run.
"""

import math
from dataclasses import dataclass

from fedmf.checks import number_check
from fedmf.errors import SettingError
from fedmf.randomness import PublicSeed
from fedmf.setting import REQUIRED, ROTATIONS, VALUE_TYPES, check_fields, setting
from fedmf.updates.rotation import Rotation, padded_dimension
from fedmf.updates.wire import Bounds

# A mask keeps with the wanted probability to 2^-64: at the lower end that is 2^-32 of it.
_check_kept = number_check(
    "lie in (0, 1], and for masks of 64 bits be at least 2^-32", lambda value: 2.0**-32 <= value <= 1
)


@dataclass(frozen=True)
class Compression:
    """How an update travels: rotated, each coordinate kept with `keep_probability` gamma, as `value_type`.

    Raises `SettingError` for a keep probability outside [2^-32, 1], an unknown rotation or value type.
    """

    keep_probability: float = setting(
        REQUIRED, "share of the coordinates that a client sends (gamma), in (0, 1]", check=_check_kept
    )
    rotation: str = setting("hadamard", "rotation of an update before its coordinates are clipped", ROTATIONS)
    value_type: str = setting("float32", "type in which a coordinate is sent", VALUE_TYPES)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class ClientPlan:
    """What a client enforces itself: bounds, rotation and keep probability, and the public seed of its draws.

    `bounds` hold for the whole rotated vector, before the mask keeps each coordinate with `keep_probability`. `sends_bit`:
    whether a byte behind the values tells if the update was no longer than the clip norm (`fedmf.clip_norm`).
    """

    bounds: Bounds
    rotation: Rotation
    keep_probability: float
    seed: PublicSeed
    sends_bit: bool = False


def make_client_plan(
    *, dimension: int, compression: Compression, bounds: Bounds, seed: PublicSeed, sends_bit: bool = False
) -> ClientPlan:
    """Return what the clients of a model with `dimension` parameters d enforce.

    `bounds` are those of `make_bounds` for the same dimension and compression. Raises `SettingError` for a
    dimension below 1.
    """
    return ClientPlan(
        bounds,
        Rotation(compression.rotation, dimension, seed),
        compression.keep_probability,
        seed,
        sends_bit,
    )


def make_bounds(
    *,
    l2_norm: float | None,
    linf_norm: float | None,
    dimension: int,
    cohort_size: int,
    compression: Compression,
) -> Bounds:
    """Return the bounds that a client enforces.

    `linf_norm` None means `l2_norm` times `default_linf_ratio`; one above `l2_norm`, also an infinite one,
    means `l2_norm`, beyond which no coordinate can be. Raises `SettingError` for an L-infinity bound without an L2 bound,
    for int8 values without bounds, and for norms that `Bounds` cannot have.
    """
    if l2_norm is None:
        if linf_norm is not None:
            raise SettingError(f"linf_norm is {linf_norm} without l2_norm; give both or neither.")
        if compression.value_type == "int8":
            raise SettingError("value_type is int8 without l2_norm; the int8 grid needs bounds.")
        return Bounds(None, None, compression.value_type)
    if linf_norm is None:
        linf_norm = l2_norm * default_linf_ratio(dimension, cohort_size, compression.rotation)
    return Bounds(l2_norm, min(linf_norm, l2_norm), compression.value_type)


def default_linf_ratio(dimension: int, cohort_size: int, rotation: str = "hadamard") -> float:
    """Return Delta_inf/Delta_2 where none is given: 1 without a rotation, else min(1, sqrt(2 log(D n)/D)).

    Few coordinates of a randomly rotated vector exceed it. D is the dimension padded to a power of two, n `cohort_size`.
    Source: Chen et al. 2024, after the concentration of a randomised Hadamard transform (a coordinate of a rotated unit
    vector is 1/sqrt(D)-sub-Gaussian).
    """
    padded = padded_dimension(dimension, rotation)
    return 1.0 if rotation == "identity" else min(1.0, math.sqrt(2 * math.log(padded * cohort_size) / padded))
