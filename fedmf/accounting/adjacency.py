"""Which neighbouring relation a statement is about, and the curve under replacement.

zero_out: one client's vector is replaced by zero in its round (both directions). The theorem proves this
one. replace: one client's data are changed to another's. Under "rows differ by at most Delta_2" the theorem
is false (K = 4, d = 7, gamma = .01, kappa = sigma: true D_2 = 7.556e-4 > 6.873e-4), and with kappa doubled
it is not proved. It follows from the zero-out curve e by going through the stream in which that client is
zeroed (the weak triangle inequality of Renyi divergences; Mironov 2017, Proposition 11): for all a > 1, p >
1, 1/p + 1/q = 1,

    e_replace(a) = (a - 1/p)/(a - 1) e(p a) + e(q (a - 1/p)).

At keep probability 1 replacement is exact with 2 kappa_2.
"""

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import fmin, minimize_scalar

from fedmf.accounting.conversion import Curve, best_order, epsilon_of_order
from fedmf.accounting.renyi import check_order

Adjacency = Literal["zero_out", "replace"]
ADJACENCIES: tuple[Adjacency, ...] = ("zero_out", "replace")

LOG_SHARE = math.log(0.75)  # log(p - 1) near its optimum, which is flat: where a search starts


def replace_divergence(curve: Curve, order: float) -> float:
    """Return e_replace(order), best over p, from the zero-out `curve`; never below curve(order)."""
    check_order(order)
    result = minimize_scalar(
        lambda share: triangle(curve, order, 1 + math.exp(share)), bounds=(-6.0, 6.0), method="bounded"
    )
    return float(result.fun)


def triangle(curve: Curve, order: float, p: float) -> float:
    """Return (a - 1/p)/(a - 1) e(p a) + e(q (a - 1/p)) for one p > 1: a valid replacement divergence at a."""
    q = p / (p - 1)
    inner = order - 1 / p
    return inner / (order - 1) * curve(p * order) + curve(q * inner)


def best_replace_order(curve: Curve, plain: Curve, delta: float) -> tuple[float, float | None]:
    """Return (epsilon, order) at `delta` under replacement, best over real orders a and p.

    `curve` is the zero-out curve of the sparsified epochs, `plain` the curve, already under replacement, of
    the epochs with keep probability 1; the two compose by addition. The order is None if none gives a
    finite epsilon.
    """
    zero_out, start = best_order(lambda a: curve(a) + plain(a), delta)
    if start is None:
        return math.inf, None
    found = fmin(
        _objective,
        np.array([math.log((start - 1) / 2), LOG_SHARE]),
        args=(curve, plain, delta),
        xtol=1e-2,
        ftol=1e-7 * zero_out,
        maxiter=200,
        disp=False,
    )
    return max(zero_out, _objective(found, curve, plain, delta)), 1 + math.exp(found[0])


def _objective(logs: npt.NDArray[np.float64], curve: Curve, plain: Curve, delta: float) -> float:
    """Epsilon at a = 1 + e^logs[0], p = 1 + e^logs[1]."""
    order, p = 1 + math.exp(logs[0]), 1 + math.exp(logs[1])
    return epsilon_of_order(order, triangle(curve, order, p) + plain(order), delta)
