"""From which bounds of a client's vector epsilon is counted: from both, or from the L-infinity bound alone.

A client's rotated vector of D coordinates is held to ||g||_2 <= Delta_2 and ||g||_inf <= Delta_inf either way.

l2: the theorem of `renyi` (Chen, Isik, Kairouz, No, Oh, Xu, ICML 2024): both bounds count, so that a vector is worth
K = (Delta_2 / Delta_inf)^2 coordinates at the bound. With independent noise that paper calls it L2-CSGM.

linf: the coordinate subsampled Gaussian mechanism as it was accounted before (Chen, Song, Ozgur, Kairouz, "Privacy
amplification via compression", NeurIPS 2023), L_inf-CSGM: every coordinate is a subsampled Gaussian of sensitivity
kappa_inf = c Delta_inf of its own, and all D of them compose, whatever the L2 norm is:

    eps(a) = D f_a(kappa_inf^2 / sigma^2),      c the largest column norm of C, f_a as in `renyi`.

Same adjacency (zero-out; replacement through it), same participation (one per epoch), same masks. It holds because each
t_j is at most kappa_inf^2/sigma^2 and f_a increases. It is the theorem for the L2 radius that D coordinates at the bound
have, Delta_2' = sqrt(D) Delta_inf, for which K is D: so an event with that radius says all of it, and accountants,
calibration and ledger need to know nothing more. With the default Delta_inf = Delta_2 sqrt(2 log(D n)/D) the radius is
sqrt(2 log(D n)) times Delta_2, and so is the noise at keep probability 1: a baseline, and what the first one is for.

    >>> event = linf_event(noise_over_linf=5.0, keep_probability=0.01, coordinates=4096)
    >>> round(event.ratio), round(event.noise_multiplier, 6)
    (4096, 0.078125)
"""

import math

from fedmf.accounting.epoch import EpochEvent
from fedmf.checks import check_at_least, check_choice, check_non_negative
from fedmf.choices import GEOMETRIES


def counted_radius(
    geometry: str, *, l2_radius: float | None, linf_norm: float | None, coordinates: int
) -> float | None:
    """Return the L2 radius that epsilon is counted with, None where the bound that it needs is not enforced.

    `coordinates` is D, those that masks choose from: with a rotation the padded dimension, since any of them can be at
    the bound. Raises `SettingError` for an unknown geometry.
    """
    check_choice("geometry", geometry, GEOMETRIES)
    if geometry == "l2" or linf_norm is None:
        return l2_radius if geometry == "l2" else None
    return linf_norm * math.sqrt(coordinates)


def counted_ratio(geometry: str, *, linf_over_l2: float, coordinates: int) -> float:
    """Return kappa_inf over the L2 radius counted: `linf_over_l2`, or 1/sqrt(D) with geometry "linf"."""
    check_choice("geometry", geometry, GEOMETRIES)
    return linf_over_l2 if geometry == "l2" else 1 / math.sqrt(coordinates)


def linf_event(*, noise_over_linf: float, keep_probability: float, coordinates: int) -> EpochEvent:
    """Return one epoch of L_inf-CSGM: all D `coordinates` at the bound, noise of sigma = `noise_over_linf` kappa_inf.

    The noise multiplier of the event is relative to sqrt(D) kappa_inf. Raises `SettingError` for a value out of range.
    """
    check_non_negative("noise_over_linf", noise_over_linf)
    check_at_least("coordinates", coordinates, 1)
    root = math.sqrt(coordinates)
    return EpochEvent(noise_over_linf / root, keep_probability, 1 / root)
