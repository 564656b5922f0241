"""The Renyi curve of one epoch, for every real order above 1.

Per coordinate, with t = (kappa / sigma)^2 and E over x ~ N(0, 1),

    y = gamma expm1(sqrt(t) x - t/2),   F_a(t) = E (1 + y)^a,   f_a(t) = log F_a(t) / (a - 1).

Theorem (Chen, Isik, Kairouz, No, Oh, Xu, ICML 2024, Theorem 5.1, corrected; adaptive streams; zero-out
adjacency, both directions; one participation per epoch): with K = (kappa_2/kappa_inf)^2 one epoch is
(a, eps(a))-RDP for

    eps(a) = floor(K) f_a(t) + f_a(kappa_2^2/sigma^2 - floor(K) t),  t = kappa_inf^2/sigma^2     form="floor"
           <= K f_a(t)                                                                           form="ratio"

because t -> f_a(t) is convex, increasing and 0 at 0, so that the worst split of kappa_2^2 over the
coordinates puts as much as allowed on as few as possible. Convex for every real a > 1, where the paper
proves integers: F_a(t) = e^{-t/8} E_{x~N(0,t)} k(x), k(x) = e^{-x/2} (1-gamma+gamma e^x)^a; by the heat
equation and Cauchy-Schwarz k k'''' >= (k'')^2 suffices, and with p = gamma e^x/(1-gamma+gamma e^x) the
difference is k^2 a p (1-p) [4 (a-1)^2 p^2 + 2 (a-1) p (1-p)] >= 0.

K E is often 10^6, so F - 1 is what is computed, never F: it keeps its relative accuracy (1e-11) when it is
1e-18.

    >>> event = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.01)
    >>> round(rdp(event, 2.0), 10)
    0.0408106909
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.moments import log_moment
from fedmf.checks import check_choice
from fedmf.errors import SettingError

Form = Literal["floor", "ratio"]
Floats = npt.NDArray[np.float64]


def rdp(event: EpochEvent, order: float, form: Form = "floor") -> float:
    """Return eps(order) of one epoch in nats; infinite where the noise multiplier is 0.

    Zero-out adjacency, both directions, one participation per epoch. "floor" is the tighter form and the
    default, "ratio" the paper's. Raises `SettingError` for an order of 1 or below and for an unknown form.
    """
    check_order(order)
    check_choice("form", form, ("floor", "ratio"))
    z, gamma = event.noise_multiplier, event.keep_probability
    if z == 0:
        return math.inf
    if gamma == 1:
        return _over_square(order / 2, z)
    signal = event.linf_over_l2 / z
    t = signal * signal
    if form == "ratio":
        return event.ratio * rdp_per_coordinate(order, t, gamma)
    whole = math.floor(event.ratio)
    # Never negative in exact arithmetic; clamped so that no rounding can make it so.
    remainder = _over_square(max(0.0, 1.0 - whole * event.linf_over_l2**2), z)
    return whole * rdp_per_coordinate(order, t, gamma) + rdp_per_coordinate(order, min(remainder, t), gamma)


def rdp_curve(event: EpochEvent, orders: Sequence[float] | Floats, form: Form = "floor") -> Floats:
    """Return eps(a) of one epoch for each order: shape [len(orders)], float64. See `rdp`."""
    return np.array([rdp(event, float(order), form) for order in orders], dtype=np.float64)


def rdp_per_coordinate(order: float, t: float, keep_probability: float) -> float:
    """Return f_a(t) = log F_a(t) / (a - 1): one coordinate with squared signal-to-noise t >= 0."""
    return log_moment(order, t, keep_probability) / (order - 1)


def check_order(order: float) -> None:
    """Raise `SettingError` unless 1 < order < infinity."""
    if not (order > 1 and math.isfinite(order)):
        raise SettingError(f"the Renyi order is {order}; it must be a finite number above 1.")


def _over_square(numerator: float, value: float) -> float:
    """numerator / value^2, infinite where value^2 underflows."""
    square = value * value
    return numerator / square if square > 0 else (math.inf if numerator > 0 else 0.0)
