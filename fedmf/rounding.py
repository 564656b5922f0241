"""How what a run costs is said in few digits: epsilon and delta are bounds, and a bound is never rounded down."""

import math
from decimal import ROUND_CEILING, Context, Decimal

DIGITS = 4  # of epsilon, wherever a person reads it


def rounded_up(value: float, digits: int = DIGITS) -> str:
    """Return the smallest number of `digits` significant digits that is at least `value`, as text; of at least 0.

    >>> rounded_up(5.7164028), rounded_up(8.0), rounded_up(12345.6), rounded_up(0.0), rounded_up(float("inf"))
    ('5.717', '8', '12350', '0', 'inf')
    >>> rounded_up(1 / 1437**1.2, 3), rounded_up(1e-5)
    ('0.000163', '1e-05')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    number = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(value))))
    return f"{float(number):.{max(digits, number.adjusted() + 1)}g}"
