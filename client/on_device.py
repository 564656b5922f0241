"""What a client does to its update before anything leaves it, on the torch device that trained it: the twin of `privatize`.

The update stays where it is: bounded, rotated and masked there, so that only the kept values come back, a hundredth of
it at keep probability 0.01. The mask is drawn here, from its secret key, and its coordinates go to the device. The
order is that of the privacy proof: do not change it.

The bounds hold whatever the device makes of the rotation: both norms are looked at after it, the L2 norm in float64, and
what scales is multiplied in float64 and rounded once. So the guarantee is that of `privatize` (docs/theory.md, section 3,
"On a device"), and the values agree with its to rounding.

`client.app` uses it where a trainer has memory of its own, which a CPU's has not: see `client.resident`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from fedmf.randomness import SecretKey
from fedmf.updates.rotation import Rotation
from fedmf.updates.vectors import MARGIN, ROTATION_MARGIN, clip_linf, round_to_levels
from fedmf.updates.wire import Bounds, Values, coordinates


class DevicePrivatizer:
    """Privatizes updates that lie on `device`; the public signs of the rotation lie there for all of them."""

    def __init__(
        self, *, bounds: Bounds, rotation: Rotation, keep_probability: float, device: torch.device
    ) -> None:
        """Put on the device what all updates share."""
        self._bounds, self._rotation, self._keep_probability = bounds, rotation, keep_probability
        self._device = device
        self._rotates = rotation.kind != "identity"
        if self._rotates:
            signs = rotation.signs[: rotation.dimension].astype(np.float32)
            self._signs = torch.from_numpy(signs).to(device)
        if bounds.linf_norm is not None:  # the largest float32 that is not above the bound
            self._linf = float(clip_linf(np.full(1, np.inf, np.float32), bounds.linf_norm)[0])

    @torch.no_grad()
    def privatize(
        self,
        update: Tensor,
        *,
        mask_key: SecretKey,
        start: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> tuple[Values, bool]:
        """Return the kept values of `update` (d,), less `start` if given, and whether that difference was finite.

        All are float32 on the device; values come in increasing order of their coordinates. (Scale by public numbers,) clip,
        rotate, clip, (round,) mask; never rescaled. Guarantee, whatever `update`, `start` and `scale` hold: the whole
        rotated vector g, of which the kept values are a part, has ||g||_2 <= bounds.radius and ||g||_inf <=
        bounds.linf_norm where those are given (docs/theory.md, section 3). An update that is not finite counts as zero.
        What is given is left as it is. Raises what the device raises, an error of earlier work on it too.
        """
        if start is not None:
            update = update - start
        if scale is not None:
            update = update * scale
        norm = _norm(update)
        is_finite = torch.isfinite(norm)
        update = torch.where(is_finite, update, torch.zeros_like(update))
        l2 = self._bounds.l2_norm
        if l2 is None:
            return self._kept(self._rotate(update), is_finite, mask_key)
        assert self._bounds.linf_norm is not None
        rotated = self._rotate(_clip(update, torch.where(is_finite, norm, 0.0), l2, ROTATION_MARGIN))
        boxed = rotated.clamp(-self._linf, self._linf).nan_to_num(0.0)
        return self._kept(_clip(boxed, _norm(boxed), l2, MARGIN), is_finite, mask_key)

    def _rotate(self, update: Tensor) -> Tensor:
        """Return the rotated update, (d,) -> (D,)."""
        if not self._rotates:
            return update
        padded = torch.zeros(self._rotation.padded, dtype=torch.float32, device=self._device)
        torch.mul(update, self._signs, out=padded[: self._rotation.dimension])
        return hadamard(padded)

    def _kept(self, bounded: Tensor, is_finite: Tensor, mask_key: SecretKey) -> tuple[Values, bool]:
        """Return what leaves the client of a vector (D,), in one transfer with the word that training was finite."""
        kept = coordinates(mask_key, self._rotation.padded, self._keep_probability)
        said = is_finite.float().reshape(1)
        if self._bounds.value_type == "int8" and self._bounds.l2_norm is not None:
            # Which levels are drawn again depends on all of them: the whole vector comes back.
            assert self._bounds.linf_norm is not None
            whole = torch.cat([bounded, said]).cpu().numpy()
            levels = round_to_levels(
                whole[:-1],
                l2_bound=self._bounds.l2_norm,
                linf_bound=self._bounds.linf_norm,
                key=mask_key,
            )
            return np.asarray(levels[kept]), bool(whole[-1])
        chosen = bounded[torch.from_numpy(np.asarray(kept, np.int64)).to(self._device)]
        values = torch.cat([chosen, said]).cpu().numpy()
        return values[:-1], bool(values[-1])


def hadamard(vector: Tensor) -> Tensor:
    """Return H x for the orthonormal Sylvester-Hadamard matrix H; x has shape (D,), D a power of two.

    Sums and differences alone: products of a device may be taken in a reduced precision that the process was set to.
    """
    size = len(vector)
    source, target = vector, torch.empty_like(vector)
    stride = 1
    while stride < size:
        pairs, out = source.view(-1, 2, stride), target.view(-1, 2, stride)
        torch.add(pairs[:, 0], pairs[:, 1], out=out[:, 0])
        torch.sub(pairs[:, 0], pairs[:, 1], out=out[:, 1])
        source, target = target, source if stride > 1 else torch.empty_like(vector)
        stride *= 2
    turned: Tensor = source * (1 / math.sqrt(size))
    return turned


def _norm(vector: Tensor) -> Tensor:
    """Return the Euclidean norm, accumulated in float64: not finite where an entry is not."""
    norm: Tensor = torch.linalg.vector_norm(vector, dtype=torch.float64)
    return norm


def _clip(vector: Tensor, norm: Tensor, bound: float, margin: float) -> Tensor:
    """Return `vector`, whose norm is `norm`, scaled into the ball of radius `bound`; never longer than `bound`."""
    limit = bound * (1 - margin)
    factor = torch.where(norm > limit, limit / norm, 1.0)
    return (vector.double() * factor).float()
