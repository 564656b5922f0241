"""Scale, then privatize: clients scale their updates by public numbers before clipping, the server divides after.

An adaptive step divides by sqrt(v) + tau. Where v is small it multiplies the noise as much as the update. If clients
multiply by s = c / (sqrt(v) + tau) before they clip, the division by s afterwards shapes the noise like the updates,
and the adaptive step makes it even again: in the model it is nearly the noise of plain SGD, for which a correlated
mechanism is designed. Source: Ganesh, McMahan, Thakurta, "On Design Principles for Private Adaptive Optimizers"
(arXiv 2507.01129), where the scale follows every step. Here it is held for an epoch, as Li, Zaheer, Liu, Reddi,
McMahan, Smith (ICLR 2023, arXiv 2212.00309) delay theirs: between two restarts of the noise each coordinate is
divided by one number, so that what cancels between rounds still does.

Privacy: s follows from what was released before the epoch, and is the same for all of its clients. Clipping comes
after scaling, so that a client moves the sum no further than without (docs/privacy.md, section 5).
"""

import numpy as np

from fedmf.updates.vectors import Vector

LARGEST = 10.0


def preconditioner(v: Vector, tau: float) -> Vector:
    """Return s = c / (sqrt(v) + tau), held to [1 / 10, 10], (d,) float32; v (d,) are second moments of updates.

    c is such that sum s^2 v = sum v: an update g with g^2 = v keeps its norm, so that a clip norm keeps its
    meaning. All 1 where v has no size.

    >>> preconditioner(np.array([4.0, 4.0], "f4"), 1e-3).tolist()
    [1.0, 1.0]
    """
    moments = v.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        inverse = 1 / (np.sqrt(moments) + tau)
        size = np.sqrt(moments.sum() / (inverse * inverse * moments).sum())
    if not np.isfinite(size):
        return np.ones_like(v)
    return np.asarray(np.clip(size * inverse, 1 / LARGEST, LARGEST), np.float32)
