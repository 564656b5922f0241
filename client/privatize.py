"""What a client does to its update before anything leaves it: on the host in numpy, and on the torch device that trained it.

The order is that of the privacy proof: do not change it. (Scale by public numbers,) rotate, clip in L2 by the norm from before
the rotation, clip in L-infinity, (round,) mask; never rescaled. Guarantee, whatever `update`, `start` and `scale` hold: the whole
rotated vector g, of which the kept values are a part, has ||g||_2 <= bounds.radius and ||g||_inf <= bounds.linf_norm where those
are given (docs/theory.md, section 3). An update that is not finite becomes zero.

On a device the update stays where it is, so that only the kept values come back, a hundredth of it at keep probability 0.01; with
int8 the whole update comes back and is privatized here, because it is rounded as a whole. The
mask is drawn here, from its secret key, and its coordinates go to the device. The bounds hold whatever the device makes of the
rotation: it clips in L2 before and after, both norms are taken in float64, and what scales is multiplied in float64 and rounded
once. The values agree with those of the host to rounding.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmf.randomness import SecretKey
from fedmf.updates.client_plan import ClientPlan
from fedmf.updates.rotation import Rotation, zero_if_not_finite
from fedmf.updates.vectors import (
    LONGEST_ROTATED,
    MARGIN,
    ROTATION_MARGIN,
    Vector,
    clip_l2,
    clip_linf,
    round_to_levels,
)
from fedmf.updates.wire import Values, coordinates


class Kept(NamedTuple):
    """The kept values of a client, in increasing order of their secret coordinates, and two bits about its update.

    Whether it was finite, and whether it was and, scaled and before any clip, no longer than the clip norm.
    """

    values: Values
    is_finite: bool
    is_short: bool


def privatize(
    update: Vector,
    plan: ClientPlan,
    mask_key: SecretKey,
    *,
    start: Vector | None = None,
    scale: Vector | None = None,
) -> Kept:
    """Return what leaves the client of `update` (d,), less `start` if given, on the host; see the module.

    Both clips work coordinate by coordinate with a factor that does not depend on the mask, so that of float32 values only
    the kept ones are computed.
    """
    bounds = plan.bounds
    if scale is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            update, start = (update if start is None else update - start) * scale, None
    turned = plan.rotation.turn(update, start)
    is_finite = math.isfinite(turned.norm)
    is_short = bounds.l2_norm is not None and turned.norm <= bounds.l2_norm
    if not is_finite:
        turned = zero_if_not_finite(turned)
    kept = coordinates(mask_key, plan.rotation.padded, plan.keep_probability)
    if bounds.l2_norm is None:
        return Kept(turned.values[kept], is_finite, is_short)
    assert bounds.linf_norm is not None
    if LONGEST_ROTATED < turned.norm < math.inf:
        turned = plan.rotation.turn(clip_l2(update if start is None else update - start, bounds.l2_norm))
    if bounds.value_type == "int8":  # rounded as a whole: which draws are rejected depends on all levels
        whole = clip_linf(clip_l2(turned.values, bounds.l2_norm, norm=turned.norm), bounds.linf_norm)
        levels = round_to_levels(whole, l2_bound=bounds.l2_norm, linf_bound=bounds.linf_norm, key=mask_key)
        return Kept(np.asarray(levels[kept]), is_finite, is_short)
    bounded = clip_l2(turned.values[kept], bounds.l2_norm, norm=turned.norm)
    return Kept(clip_linf(bounded, bounds.linf_norm), is_finite, is_short)


@torch.no_grad()
def privatize_there(
    update: Tensor,
    plan: ClientPlan,
    mask_key: SecretKey,
    *,
    start: Tensor | None = None,
    scale: Tensor | None = None,
) -> Kept:
    """Return what leaves the client of `update` (d,), less `start` if given, all float32 on the device; see the module.

    What is given is left as it is. Raises what the device raises, an error of earlier work on it too.
    """
    if start is not None:
        update = update - start
    if scale is not None:
        update = update * scale
    if plan.bounds.value_type == "int8":  # which levels are drawn again depends on all of them
        return privatize(update.cpu().numpy(), plan, mask_key)
    norm, bounds, rotation = _norm(update), plan.bounds, plan.rotation
    is_finite = torch.isfinite(norm)
    is_short = torch.zeros_like(is_finite) if bounds.l2_norm is None else norm <= bounds.l2_norm
    update = torch.where(is_finite, update, torch.zeros_like(update))
    if bounds.l2_norm is not None:
        update = _clip(update, torch.where(is_finite, norm, 0.0), bounds.l2_norm, ROTATION_MARGIN)
    if rotation.kind != "identity":
        padded = torch.zeros(rotation.padded, dtype=torch.float32, device=update.device)
        torch.mul(update, _signs_on(update.device, rotation), out=padded[: rotation.dimension])
        update = hadamard(padded)
    if bounds.l2_norm is not None:
        assert bounds.linf_norm is not None
        largest = float(
            clip_linf(np.full(1, np.inf, np.float32), bounds.linf_norm)[0]
        )  # float32 within the bound
        update = update.clamp(-largest, largest).nan_to_num(0.0)
        update = _clip(update, _norm(update), bounds.l2_norm, MARGIN)
    kept = coordinates(mask_key, rotation.padded, plan.keep_probability)
    update = update[torch.from_numpy(np.asarray(kept, np.int64)).to(update.device)]
    # One transfer, with both bits.
    sent = torch.cat([update, torch.stack([is_finite, is_short]).float()]).cpu().numpy()
    return Kept(sent[:-2], bool(sent[-2]), bool(sent[-1]))


@lru_cache(maxsize=1)
def _signs_on(device: torch.device, rotation: Rotation) -> Tensor:
    """Return the public signs of a rotation, (d,) float32: on the device for all clients of a run."""
    return torch.from_numpy(rotation.signs[: rotation.dimension].astype(np.float32)).to(device)


def hadamard(vector: Tensor) -> Tensor:
    """Return H x for the orthonormal Sylvester-Hadamard matrix H; x has shape (D,), D a power of two.

    Sums and differences alone: products of a device may be taken in a reduced precision that the process was set to.
    """
    turned, stride = vector, 1
    while stride < len(vector):
        first, second = turned.view(-1, 2, stride).unbind(1)
        turned = torch.stack([first + second, first - second], 1).flatten()
        stride *= 2
    return turned * (1 / math.sqrt(len(vector)))


def _norm(vector: Tensor) -> Tensor:
    """Return the Euclidean norm, accumulated in float64: not finite where an entry is not."""
    return torch.linalg.vector_norm(vector, dtype=torch.float64)  # type: ignore[no-any-return]


def _clip(vector: Tensor, norm: Tensor, bound: float, margin: float) -> Tensor:
    """Return `vector`, whose norm is `norm`, scaled into the ball of radius `bound`; never longer than `bound`."""
    limit = bound * (1 - margin)
    return (vector.double() * torch.where(norm > limit, limit / norm, 1.0)).float()
