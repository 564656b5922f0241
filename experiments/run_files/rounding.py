"""How epsilon is rounded where it is said in few digits."""

import math


def rounded_up(value: float, digits: int = 3) -> str:
    """Return a number of at least 0 with `digits` significant digits, never less than it is.

    >>> rounded_up(4.7104), rounded_up(8.0), rounded_up(12345.6), rounded_up(0.0)
    ('4.72', '8', '1.24e+04', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    text = f"{value:.{digits}g}"
    if float(text) < value:
        step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        text = f"{float(text) + step:.{digits}g}"
    return text
