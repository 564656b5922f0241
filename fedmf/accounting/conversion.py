"""From a Renyi curve to (epsilon, delta) under either adjacency, and the order at which that is cheapest.

Canonne, Kamath, Steinke 2020, Proposition 12: a mechanism that is (a, eps(a))-RDP for some a > 1 is
(epsilon, delta)-DP for every delta in (0, 1) with

    epsilon = eps(a) + log((a - 1)/a) - (log delta + log a)/(a - 1),       never below 0.

Every order gives a valid epsilon, so the search below decides how tight the answer is, never whether it is
true.

zero_out: one client's vector is replaced by zero in its round (both directions). The theorem proves this
one. replace: one client's data are changed to another's. Under "rows differ by at most Delta_2" the theorem
is false (K = 4, d = 7, gamma = 0.01, kappa = sigma: true D_2 = 7.556e-4 > 6.873e-4), and with kappa doubled
it is not proved. It follows from the zero-out curve e by going through the stream in which that client is
zeroed (the weak triangle inequality of Renyi divergences; Mironov 2017, Proposition 11): for all a > 1,
p > 1, 1/p + 1/q = 1,

    e_replace(a) = (a - 1/p)/(a - 1) e(p a) + e(q (a - 1/p)).

With x' = x/(x - 1) for the conjugate of an order x, b = p a and c = q (a - 1/p) this reads

    e_replace(a) = c' e(b) + e(c)      for any b, c > 1 with b' c' = a',

which is what is searched: each curve value serves many pairs. At keep probability 1 replacement is exact with 2 kappa_2.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from fedmf.accounting.renyi import check_order

# Total Renyi divergence of a run as a function of the order a > 1; non-decreasing.
Curve = Callable[[float], float]

# Orders 1 + 1e-3 .. 1e8, a factor 1.5 apart in a - 1: the start of a search over all real orders.
GRID = 1 + np.geomspace(1e-3, 1e8, 64)
GRID_FACTOR = 1.5
LOWEST = 1e-9  # of a - 1, down to which the grid is continued for an epsilon of millions
CANDIDATE_SLACK = 1.05
LOG_ORDER_TOLERANCE = 1e-6
LOG_PAIR_TOLERANCE = 1e-3  # of log(b - 1), which at a minimum is 1e-6 of epsilon
LARGEST_SHARE = math.exp(6)  # of p - 1
SEARCH_TOLERANCE = 1e-8  # relative, of epsilon


def epsilon_of_order(order: float, divergence: float, delta: float) -> float:
    """Return epsilon at `delta`, in nats, from the divergence at one order (Canonne et al. 2020).

    Raises `SettingError` for an order of 1 or below.
    """
    check_order(order)
    return max(0.0, _unclamped(order, divergence, delta))


def least(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float
) -> tuple[float, float]:
    """Return (value, x) at a local minimum of a function of x in (low, high), log x to `tolerance`."""
    from scipy.optimize import minimize_scalar  # 0.1 s, which a client need not spend

    found = minimize_scalar(
        lambda u: function(math.exp(u)),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": tolerance},
    )
    return float(found.fun), math.exp(found.x)


def best_order(curve: Curve, delta: float) -> tuple[float, float | None]:
    """Return (epsilon, order): the smallest epsilon at `delta` over real orders, and where it is reached.

    The order is None where no order gives a finite epsilon. Not-a-number counts as infinite.
    """
    orders, values = _scan(curve, delta)
    if not math.isfinite(min(values)):
        return math.inf, None
    # The local minima that refinement could make the best.
    padded = [math.inf, *values, math.inf]
    limit = min(values) + (CANDIDATE_SLACK - 1) * abs(min(values))
    candidates = [
        i
        for i, value in enumerate(values)
        if value <= min(padded[i], padded[i + 2]) and value <= limit and math.isfinite(value)
    ]
    found = [(values[i], orders[i]) for i in candidates]
    for i in candidates:
        # Curves bend in log(a - 1) as much near order 1 as at high orders.
        low, high = orders[max(i - 1, 0)] - 1, orders[min(i + 1, len(orders) - 1)] - 1
        value, excess = least(
            lambda excess: _unclamped(1 + excess, curve(1 + excess), delta),
            low,
            high,
            tolerance=LOG_ORDER_TOLERANCE,
        )
        found.append((value, 1 + excess))
    epsilon, order = min(found)
    return max(0.0, epsilon), order


def _unclamped(order: float, divergence: float, delta: float) -> float:
    value = divergence + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return math.inf if math.isnan(value) else value


def _scan(curve: Curve, delta: float) -> tuple[list[float], list[float]]:
    """Grid orders and their epsilon; ends where no higher order can be better, and no lower one seems so.

    The curve and log((a-1)/a) grow with the order and the last term is at most 0 while a delta <= 1, so
    once their sum exceeds the best value found, all higher orders lose. That also spares the dearest
    integrals.
    """
    orders: list[float] = []
    values: list[float] = []
    for order in GRID.tolist():
        divergence = curve(order)
        orders.append(order)
        values.append(_unclamped(order, divergence, delta))
        floor = divergence + math.log1p(-1 / order) - max(0.0, math.log(order * delta)) / (order - 1)
        if floor > min(values):
            break
    while values[0] == min(values) and orders[0] - 1 > LOWEST:
        order = 1 + (orders[0] - 1) / GRID_FACTOR
        orders.insert(0, order)
        values.insert(0, _unclamped(order, curve(order), delta))
    return orders, values


def triangle(curve: Curve, b: float, c: float) -> float:
    """Return c' e(b) + e(c) for orders b, c > 1: a replacement divergence at `joint_order(b, c)`."""
    return c / (c - 1) * curve(b) + curve(c)


def joint_order(b: float, c: float) -> float:
    """Return a with a' = b' c'.

    >>> joint_order(4.0, 3.0)  # (4/3)(3/2) = 2
    2.0
    """
    return 1 + (b - 1) * (c - 1) / (b + c - 1)


def replace_divergence(curve: Curve, order: float) -> float:
    """Return e_replace(order), best over p, from the zero-out `curve`; never below curve(order)."""
    value, _ = least(
        lambda p_less_1: triangle(curve, (1 + p_less_1) * order, (order - 1) / p_less_1 + order),
        1 / LARGEST_SHARE,
        LARGEST_SHARE,
        tolerance=LOG_PAIR_TOLERANCE,
    )
    return value


def best_replace_order(curve: Curve, plain: Curve, delta: float) -> tuple[float, float | None]:
    """Return (epsilon, order) at `delta` under replacement, best over real orders b and c.

    `curve` is the zero-out curve of the sparsified epochs, `plain` the curve, already under replacement, of
    the epochs with keep probability 1; the two compose by addition. The order is None if none gives a
    finite epsilon. Every pair gives a valid epsilon; the search begins at the best with b = c and then changes both.
    """
    from scipy.optimize import fmin

    known = cache(curve)

    def equal(order: float) -> float:  # joint_order(b, b) = order: b' = sqrt(a')
        return order + math.sqrt(order * (order - 1))

    def epsilon(point: np.typing.NDArray[np.float64]) -> float:  # log(b - 1), log(c - 1)
        b, c = (1 + np.exp(point)).tolist()
        order = joint_order(b, c)
        if order == 1:  # by rounding
            return math.inf
        return epsilon_of_order(order, triangle(known, b, c) + plain(order), delta)

    best, start = best_order(lambda a: triangle(known, equal(a), equal(a)) + plain(a), delta)
    if start is None:
        return math.inf, None
    simplex = math.log(equal(start) - 1) + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    found = fmin(
        epsilon,
        simplex[0],
        xtol=LOG_PAIR_TOLERANCE,
        ftol=SEARCH_TOLERANCE * best,
        initial_simplex=simplex,
        disp=False,
    )
    return min((best, start), (epsilon(found), joint_order(*(1 + np.exp(found)).tolist())))
