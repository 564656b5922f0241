"""A root and a minimum of a function of one variable.

scipy.optimize has both, but importing it takes longer than planning a run does.

    >>> round(find_root(lambda x: x**3 - 2, 0.0, 2.0, tolerance=1e-12), 9)
    1.25992105
    >>> place, value = find_minimum(lambda x: (x - 0.3) ** 2 + 1, 0.0, 2.0, tolerance=1e-6)
    >>> round(place, 5), round(value, 9)
    (0.3, 1.0)
"""

import math
from collections.abc import Callable

Function = Callable[[float], float]

GOLDEN = (3 - math.sqrt(5)) / 2
MOST_STEPS = 200


def find_root(function: Function, low: float, high: float, *, tolerance: float) -> float:
    """Return x within `tolerance` of a sign change of a continuous `function` over [low, high].

    Inverse quadratic interpolation where it is safe, else bisection (Chandrupatla 1997). The signs at the
    ends must differ; a value may be infinite, not NaN.
    """
    a, b = low, high
    at_a, at_b = function(a), function(b)
    assert min(at_a, at_b) <= 0 <= max(at_a, at_b), "a sign change is needed"
    if at_a == 0:
        return a
    share = 0.5
    for _ in range(MOST_STEPS):
        x = a + share * (b - a)
        at_x = function(x)
        if (at_x > 0) == (at_a > 0):
            c, at_c = a, at_a
        else:
            c, at_c, b, at_b = b, at_b, a, at_a
        a, at_a = x, at_x
        if at_a == 0 or abs(b - a) <= tolerance or x in (b, c):
            break
        least = tolerance / 2 / abs(b - a)
        share = min(max(_interpolated((a, b, c), (at_a, at_b, at_c)), least), 1 - least)
    return a if abs(at_a) < abs(at_b) else b


def _interpolated(x: tuple[float, float, float], y: tuple[float, float, float]) -> float:
    """Where from x[0] to x[1] the inverse parabola through three points is 0; one half where it is unsafe."""
    (a, b, c), (at_a, at_b, at_c) = x, y
    if not all(map(math.isfinite, y)) or at_c == at_b:
        return 0.5
    place, height = (a - b) / (c - b), (at_a - at_b) / (at_c - at_b)
    if not (height**2 < place and (1 - height) ** 2 < 1 - place):
        return 0.5
    near = at_a / (at_b - at_a) * at_c / (at_b - at_c)
    far = (c - a) / (b - a) * at_a / (at_c - at_a) * at_b / (at_c - at_b)
    return near + far


def find_minimum(function: Function, low: float, high: float, *, tolerance: float) -> tuple[float, float]:
    """Return (x, function(x)) at a local minimum over [low, high], x to `tolerance`.

    Golden sections, and parabolas through the three lowest points where those shrink (Brent 1973, chapter
    5). The ends themselves are not evaluated.
    """
    best = second = third = low + GOLDEN * (high - low)
    at_best = at_second = at_third = function(best)
    step = before = 0.0
    for _ in range(MOST_STEPS):
        middle = (low + high) / 2
        if abs(best - middle) <= 2 * tolerance - (high - low) / 2:
            break
        fitted = _vertex(best, second, third, at_best, at_second, at_third)
        if abs(fitted) < abs(before) / 2 and low < best + fitted < high:
            before, step = step, fitted
            if min(best + step - low, high - best - step) < 2 * tolerance:
                step = math.copysign(tolerance, middle - best)
        else:
            before = (low if best >= middle else high) - best
            step = GOLDEN * before
        x = best + (step if abs(step) >= tolerance else math.copysign(tolerance, step))
        at_x = function(x)
        if at_x <= at_best:
            low, high = (best, high) if x >= best else (low, best)
            best, second, third = x, best, second
            at_best, at_second, at_third = at_x, at_best, at_second
            continue
        low, high = (x, high) if x < best else (low, x)
        if at_x <= at_second or second == best:
            second, third, at_second, at_third = x, second, at_x, at_second
        elif at_x <= at_third or third in (best, second):
            third, at_third = x, at_x
    return best, at_best


def _vertex(x: float, v: float, w: float, at_x: float, at_v: float, at_w: float) -> float:
    """Offset from x of the vertex of the parabola through three points; infinite where there is none."""
    left, right = (x - v) * (at_x - at_w), (x - w) * (at_x - at_v)
    below = 2 * (right - left)
    above = (x - w) * right - (x - v) * left
    return -above / below if below != 0 and math.isfinite(below) and math.isfinite(above) else math.inf
