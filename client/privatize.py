"""What a client does to its update before anything leaves it.

The order is that of the privacy proof: do not change it.
"""

import math
from collections.abc import Callable

import numpy as np

from fedmf.randomness import SecretKey
from fedmf.updates.rotation import Rotation, zero_if_not_finite
from fedmf.updates.vectors import LONGEST_ROTATED, Vector, clip_l2, clip_linf, round_to_levels
from fedmf.updates.wire import Bounds, Values, coordinates


def say_nothing() -> None:
    """Say nothing of an update that is not finite."""


def privatize(
    update: Vector,
    *,
    bounds: Bounds,
    rotation: Rotation,
    keep_probability: float,
    mask_key: SecretKey,
    start: Vector | None = None,
    scale: Vector | None = None,
    on_not_finite: Callable[[], None] = say_nothing,
) -> Values:
    """Return the kept values of `update` (d,), less `start` if given, in increasing order of their secret coordinates.

    (Scale by public numbers,) rotate, clip in L2 by the norm from before the rotation, clip in L-infinity, (round,) mask;
    never rescaled. Guarantee, whatever `update`, `start` and `scale` hold: the whole rotated vector g, of which the kept
    values are a part, has ||g||_2 <= bounds.radius and ||g||_inf <= bounds.linf_norm where those are given. Both clips work
    coordinate by coordinate with a factor that does not depend on the mask, so that of float32 values only the kept
    ones are computed (docs/theory.md, section 3). An update that is not finite becomes zero, once `on_not_finite` is told.
    """
    if scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            update, start = (update if start is None else update - start) * scale, None
    turned = rotation.turn(update, start)
    if not math.isfinite(turned.norm):
        on_not_finite()
    turned = zero_if_not_finite(turned)
    kept = coordinates(mask_key, rotation.padded, keep_probability)
    if bounds.l2_norm is None:
        return turned.values[kept]
    assert bounds.linf_norm is not None
    if LONGEST_ROTATED < turned.norm < math.inf:
        turned = rotation.turn(clip_l2(update if start is None else update - start, bounds.l2_norm))
    if bounds.value_type == "int8":  # rounded as a whole: which draws are rejected depends on all levels
        whole = clip_linf(clip_l2(turned.values, bounds.l2_norm, norm=turned.norm), bounds.linf_norm)
        levels = round_to_levels(whole, l2_bound=bounds.l2_norm, linf_bound=bounds.linf_norm, key=mask_key)
        return np.asarray(levels[kept])
    return clip_linf(clip_l2(turned.values[kept], bounds.l2_norm, norm=turned.norm), bounds.linf_norm)
