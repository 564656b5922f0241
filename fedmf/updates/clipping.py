"""Bounds on one client's update: non-finite to zero, L2 ball, and after the rotation the L-infinity box.

These are the bounds the privacy theorem rests on: ||g||_2 <= Delta_2 and ||g||_inf <= Delta_inf for the whole
rotated vector g, enforced by the client itself. Norms are taken in float64: the float32 norm of 1e30
overflows, and infinity times zero is NaN.
"""

import math

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_at_least
from fedmf.updates.rotation import Rotated
from fedmf.updates.vectors import Vector

# A float32 product rounds by up to 2^-24 of its size, and the rotation by a few more: clipping to slightly
# less keeps the exact norm of what is sent at or below the bound that is accounted.
MARGIN = 2.0**-20

# Where the factor follows from the norm before the rotation, what that rounds is covered too: docs/privacy.md, section 5,
# proves that a rotated vector is longer by less than 2^-14 of its length, for up to 2^32 coordinates.
ROTATION_MARGIN = 2.0**-14
LONGEST_ROTATED = 2.0**100  # a vector that is longer may overflow when it is rotated


def l2_norm(vector: npt.NDArray[np.floating]) -> float:
    """Return the Euclidean norm, accumulated in float64.

    >>> l2_norm(np.full(4, 1e30, np.float32)) < 2.1e30
    True
    """
    wide = vector.astype(np.float64, copy=False)
    return math.sqrt(float(np.dot(wide, wide)))


def zero_if_not_finite(rotated: Rotated) -> Rotated:
    """Return `rotated`, or the zero vector if any entry of the update was NaN or infinite."""
    return rotated if math.isfinite(rotated.norm) else Rotated(np.zeros_like(rotated.values), 0.0)


def clip_l2(update: Vector, bound: float, *, norm: float | None = None) -> Vector:
    """Return `update` scaled into the ball of radius `bound` (units of the update); never longer than `bound`.

    A vector within the ball less a rounding margin is returned as it is. With `norm`, `update` is any part of a rotated
    vector, and `norm` the length that the whole had before it was rotated, as `Rotation.turn` gives both: the whole, scaled
    by this, is never longer than `bound`. It must be at most `LONGEST_ROTATED`.
    """
    limit = bound * (1 - (MARGIN if norm is None else ROTATION_MARGIN))
    norm = l2_norm(update) if norm is None else norm
    if norm <= limit:
        return update
    factor = limit / norm
    if factor > 2.0**-100:  # a normal float32: factor and product round by 2^-24 each, well within the margin
        return update * np.float32(factor)
    return np.multiply(update, factor, dtype=np.float64).astype(np.float32)


def clip_linf(update: Vector, bound: float) -> Vector:
    """Return `update` with each coordinate clipped to [-bound, bound] (units of the update)."""
    limit = np.float32(bound)
    if float(limit) > bound:  # compared in float64: the nearest float32 may lie above the bound
        limit = np.nextafter(limit, np.float32(0))
    return np.clip(update, -limit, limit)


def default_linf_bound(l2_bound: float, dimension: int, cohort_size: int) -> float:
    """Return Delta_2 min(1, sqrt(2 log(D n) / D)): exceeded by few coordinates of a randomly rotated vector.

    `dimension` is D, the padded dimension, and `cohort_size` is n. Source: Chen et al. 2024, after the
    concentration of a randomised Hadamard transform (a coordinate of a rotated unit vector is
    1/sqrt(D)-sub-Gaussian).
    """
    check_at_least("dimension", dimension, 1)
    check_at_least("cohort_size", cohort_size, 1)
    return l2_bound * min(1.0, math.sqrt(2 * math.log(dimension * cohort_size) / dimension))
