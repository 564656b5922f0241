"""What a client does to its update before anything leaves it.

The order is that of the privacy proof: do not change it.
"""

import numpy as np

from fedmf.randomness import SecretKey
from fedmf.updates.clipping import clip_l2, clip_linf, zero_if_not_finite
from fedmf.updates.rotation import Rotation
from fedmf.updates.rounding import round_to_levels
from fedmf.updates.vectors import Vector
from fedmf.updates.wire import Bounds, Values, coordinates


def privatize(
    update: Vector,
    *,
    bounds: Bounds,
    rotation: Rotation,
    keep_probability: float,
    mask_key: SecretKey,
    scale: Vector | None = None,
) -> Values:
    """Return the kept values of `update` (d,), in increasing order of their secret coordinates.

    (Scale by public numbers,) clip, rotate, clip, (round,) mask; never rescaled. Guarantee, whatever `scale` holds: the
    whole rotated vector g, of which the kept values are a part, has ||g||_2 <= bounds.radius and
    ||g||_inf <= bounds.linf_norm where those are given (docs/privacy.md, section 5).
    """
    if scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            update = update * scale
    update = zero_if_not_finite(update)
    if bounds.l2_norm is None:
        return rotation.rotate(update)[coordinates(mask_key, rotation.padded, keep_probability)]
    assert bounds.linf_norm is not None
    rotated = rotation.rotate(clip_l2(update, bounds.l2_norm))
    # Rotating rounds, and may lengthen: look at the L2 norm once more.
    bounded = clip_l2(clip_linf(rotated, bounds.linf_norm), bounds.l2_norm)
    kept = coordinates(mask_key, rotation.padded, keep_probability)
    if bounds.value_type == "int8":
        levels = round_to_levels(bounded, l2_bound=bounds.l2_norm, linf_bound=bounds.linf_norm, key=mask_key)
        return np.asarray(levels[kept])
    return np.asarray(bounded[kept])
