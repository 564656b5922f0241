"""Bounds on one client's update: non-finite to zero, L2 ball, then (after the rotation) the L-infinity box.

These are the bounds the privacy theorem rests on: ||g||_2 <= Delta_2 and ||g||_inf <= Delta_inf for the whole
rotated vector g, enforced by the client itself. Norms are taken in float64: the float32 norm of 1e30
overflows, and infinity times zero is NaN.
"""

import math

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_at_least, check_positive
from fedmf.updates.vectors import Vector

# A float32 product rounds by up to 2^-24 of its size, and the rotation by a few more: clipping to slightly
# less keeps the exact norm of what is sent at or below the bound that is accounted.
MARGIN = 2.0**-20


def l2_norm(vector: npt.NDArray[np.floating]) -> float:
    """Return the Euclidean norm, accumulated in float64.

    >>> l2_norm(np.full(4, 1e30, np.float32)) < 2.1e30
    True
    """
    wide = vector.astype(np.float64, copy=False)
    return math.sqrt(float(np.dot(wide, wide)))


def zero_if_not_finite(update: Vector) -> Vector:
    """Return `update`, or the zero vector if any entry is NaN or infinite."""
    return update if np.isfinite(update).all() else np.zeros_like(update)


def clip_l2(update: Vector, bound: float) -> Vector:
    """Return `update` scaled into the ball of radius `bound` (units of the update); never longer than `bound`.

    A vector within the ball less a rounding margin is returned as it is.
    """
    check_positive("the L2 bound", bound)
    norm = l2_norm(update)
    limit = bound * (1 - MARGIN)
    if norm <= limit:
        return update
    factor = limit / norm
    if factor > 2.0**-100:  # a normal float32: factor and product round by 2^-24 each, well within the margin
        return update * np.float32(factor)
    return np.multiply(update, factor, dtype=np.float64).astype(np.float32)


def clip_linf(update: Vector, bound: float) -> Vector:
    """Return `update` with each coordinate clipped to [-bound, bound] (units of the update)."""
    check_positive("the L-infinity bound", bound)
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
