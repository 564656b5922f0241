"""From a Renyi curve to (epsilon, delta), and the order at which that is cheapest.

Canonne, Kamath, Steinke 2020, Proposition 12: a mechanism that is (a, eps(a))-RDP for some a > 1 is
(epsilon, delta)-DP for every delta in (0, 1) with

    epsilon = eps(a) + log((a - 1)/a) - (log delta + log a)/(a - 1),       never below 0.

Every order gives a valid epsilon, so the search below decides how tight the answer is, never whether it is
true.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedmf.accounting.renyi import check_order

Curve = Callable[[float], float]
"""Total Renyi divergence of a run as a function of the order a > 1; non-decreasing."""

# Orders 1 + 1e-3 .. 1e8, a factor 1.5 apart in a - 1: the start of a search over all real orders.
GRID = 1 + np.geomspace(1e-3, 1e8, 64)
GRID_FACTOR = 1.5
LOWEST = 1e-9  # of a - 1, where the grid goes on downwards for an epsilon of millions
CANDIDATE_SLACK = 1.05
LOG_ORDER_TOLERANCE = 1e-6


def epsilon_of_order(order: float, divergence: float, delta: float) -> float:
    """Return epsilon at `delta`, in nats, from the divergence at one order (Canonne et al. 2020).

    Raises `SettingError` for an order of 1 or below.
    """
    check_order(order)
    return max(0.0, _unclamped(order, divergence, delta))


def best_order(curve: Curve, delta: float) -> tuple[float, float | None]:
    """Return (epsilon, order): the smallest epsilon at `delta` over real orders, and where it is reached.

    The order is None where no order gives a finite epsilon. Not-a-number counts as infinite.
    """
    orders, values = _scan(curve, delta)
    if not math.isfinite(min(values)):
        return math.inf, None
    found = [_refine(curve, delta, orders, values, i) for i in _candidates(values)]
    epsilon, order = min(found)
    return max(0.0, epsilon), order


def least_order(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float
) -> tuple[float, float]:
    """Return (value, order) at a local minimum of a function of the order a, where low < a - 1 < high.

    The search is over log(a - 1), to `tolerance`: curves bend there as much near order 1 as at high orders.
    """
    value, excess = least_by_logarithm(lambda excess: function(1 + excess), low, high, tolerance=tolerance)
    return value, 1 + excess


def least_by_logarithm(
    function: Callable[[float], float], low: float, high: float, *, tolerance: float
) -> tuple[float, float]:
    """Return (value, x) at a local minimum of a function of x in (low, high), found in log x to `tolerance`."""
    from scipy.optimize import minimize_scalar  # 0.1 s, which a client need not spend

    found = minimize_scalar(
        lambda u: function(math.exp(u)),
        bounds=(math.log(low), math.log(high)),
        method="bounded",
        options={"xatol": tolerance},
    )
    return float(found.fun), math.exp(found.x)


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
        least = divergence + math.log1p(-1 / order) - max(0.0, math.log(order * delta)) / (order - 1)
        if least > min(values):
            break
    while values[0] == min(values) and orders[0] - 1 > LOWEST:
        order = 1 + (orders[0] - 1) / GRID_FACTOR
        orders.insert(0, order)
        values.insert(0, _unclamped(order, curve(order), delta))
    return orders, values


def _candidates(values: Sequence[float]) -> list[int]:
    """Indices of the local minima that refinement could make the best."""
    padded = [math.inf, *values, math.inf]
    limit = min(values) + (CANDIDATE_SLACK - 1) * abs(min(values))
    return [
        i
        for i, value in enumerate(values)
        if value <= min(padded[i], padded[i + 2]) and value <= limit and math.isfinite(value)
    ]


def _refine(
    curve: Curve, delta: float, orders: Sequence[float], values: Sequence[float], index: int
) -> tuple[float, float]:
    """(value, order) at the minimum between the two neighbours of a grid order."""
    low, high = orders[max(index - 1, 0)], orders[min(index + 1, len(orders) - 1)]
    found = least_order(
        lambda order: _unclamped(order, curve(order), delta), low - 1, high - 1, tolerance=LOG_ORDER_TOLERANCE
    )
    return min(found, (values[index], orders[index]))
