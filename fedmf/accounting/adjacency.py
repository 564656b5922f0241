"""Which neighbouring relation a statement is about, and the curve under replacement.

zero_out: one client's vector is replaced by zero in its round (both directions). The theorem proves this
one. replace: one client's data are changed to another's. Under "rows differ by at most Delta_2" the theorem
is false (K = 4, d = 7, gamma = .01, kappa = sigma: true D_2 = 7.556e-4 > 6.873e-4), and with kappa doubled
it is not proved. It follows from the zero-out curve e by going through the stream in which that client is
zeroed (the weak triangle inequality of Renyi divergences; Mironov 2017, Proposition 11): for all a > 1,
p > 1, 1/p + 1/q = 1,

    e_replace(a) = (a - 1/p)/(a - 1) e(p a) + e(q (a - 1/p)).

With x' = x/(x - 1) for the conjugate of an order x, b = p a and c = q (a - 1/p) this reads

    e_replace(a) = c' e(b) + e(c)      for any b, c > 1 with b' c' = a',

which is what is searched: each curve value serves many pairs.

At keep probability 1 replacement is exact with 2 kappa_2.
"""

import math
from collections.abc import Callable
from functools import cache, partial

from fedmf.accounting.conversion import Curve, best_order, epsilon_of_order, least_order
from fedmf.accounting.renyi import check_order

LOG_TOLERANCE = 1e-3  # of log(b - 1), which at a minimum is 1e-6 of epsilon
LARGEST_SHARE = math.exp(6)  # of p - 1
SWEEP_TOLERANCE = 1e-7
REACH = 8.0
MOST_SWEEPS = 20


def replace_divergence(curve: Curve, order: float) -> float:
    """Return e_replace(order), best over p, from the zero-out `curve`; never below curve(order)."""
    check_order(order)
    value, _ = least_order(
        lambda p: _at_share(curve, order, p), 1 / LARGEST_SHARE, LARGEST_SHARE, tolerance=LOG_TOLERANCE
    )
    return value


def triangle(curve: Curve, b: float, c: float) -> float:
    """Return c' e(b) + e(c) for orders b, c > 1: a replacement divergence at `joint_order(b, c)`."""
    return c / (c - 1) * curve(b) + curve(c)


def joint_order(b: float, c: float) -> float:
    """Return a with a' = b' c'.

    >>> joint_order(4.0, 3.0)  # (4/3)(3/2) = 2
    2.0
    """
    return 1 + (b - 1) * (c - 1) / (b + c - 1)


def best_replace_order(curve: Curve, plain: Curve, delta: float) -> tuple[float, float | None]:
    """Return (epsilon, order) at `delta` under replacement, best over real orders b and c.

    `curve` is the zero-out curve of the sparsified epochs, `plain` the curve, already under replacement, of
    the epochs with keep probability 1; the two compose by addition. The order is None if none gives a
    finite epsilon. Every pair gives a valid epsilon: the best with b = c first, then b and c in turns.
    """
    known = cache(curve)
    best, start = best_order(lambda a: triangle(known, *_equal_pair(a)) + plain(a), delta)
    if start is None:
        return math.inf, None
    b, c = _equal_pair(start)
    epsilon = partial(_epsilon, curve=known, plain=plain, delta=delta)
    for _ in range(MOST_SWEEPS):
        before = best
        _, b = _improve(partial(epsilon, c=c), b)
        best, c = _improve(partial(epsilon, b), c)
        if best >= before * (1 - SWEEP_TOLERANCE):
            break
    return best, joint_order(b, c)


def _epsilon(b: float, c: float, *, curve: Curve, plain: Curve, delta: float) -> float:
    order = joint_order(b, c)
    if order == 1:  # by rounding
        return math.inf
    return epsilon_of_order(order, triangle(curve, b, c) + plain(order), delta)


def _equal_pair(order: float) -> tuple[float, float]:
    """(b, b) with joint_order(b, b) = order: b' = sqrt(a')."""
    b = order + math.sqrt(order * (order - 1))
    return b, b


def _improve(function: Callable[[float], float], order: float) -> tuple[float, float]:
    """(value, order) where `function` is least within a factor 8 of order - 1; never above where it is."""
    found = least_order(function, (order - 1) / REACH, (order - 1) * REACH, tolerance=LOG_TOLERANCE)
    return min(found, (function(order), order))


def _at_share(curve: Curve, order: float, p: float) -> float:
    """Mironov's form for one p > 1."""
    return triangle(curve, p * order, (p * order - 1) / (p - 1))
