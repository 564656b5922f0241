"""Small named checks: each names the argument, its value and what would be right. And how a number is written in a sentence."""

import math
from collections.abc import Callable, Collection
from decimal import ROUND_CEILING, Context, Decimal
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from fedmf.errors import SettingError

DIGITS = 4  # of epsilon, wherever a person reads it


def is_finite_number(value: Any) -> bool:
    """Return whether `value` is a real number and finite: no text, no None, no complex number, no True.

    >>> is_finite_number(3), is_finite_number("3"), is_finite_number(float("nan")), is_finite_number(True)
    (True, False, False, False)
    """
    is_real = isinstance(value, Integral) or (isinstance(value, Real) and math.isfinite(value))
    return is_real and not isinstance(value, bool)


def number_check(what: str, holds: Callable[[float], bool]) -> Callable[[str, float], None]:
    """Return a check of a name and its value, which raises `SettingError` unless the value is a number that `holds`."""

    def check(name: str, value: float) -> None:
        if not (is_finite_number(value) and holds(value)):
            raise SettingError(f"{name} is {value}; it must {what}.")

    return check


check_positive = number_check("be a finite number above 0", lambda value: value > 0)
check_non_negative = number_check("be a finite number, 0 or above", lambda value: value >= 0)
check_open_unit = number_check("lie strictly between 0 and 1", lambda value: 0 < value < 1)
check_below_one = number_check("lie in [0, 1)", lambda value: 0 <= value < 1)
check_share = number_check("lie in (0, 1]", lambda value: 0 < value <= 1)
# Of a noise: its square is a float, and no step of its lattice underflows.
check_noise = number_check(
    "be at least 1e-100 where it is not 0, and finite", lambda value: value == 0 or value >= 1e-100
)


def check_at_least(name: str, value: int, least: int) -> None:
    """Raise `SettingError` unless `value` is an integer of at least `least`."""
    if not is_finite_number(value) or value != int(value) or value < least:
        raise SettingError(f"{name} is {value}; it must be a whole number of at least {least}.")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raise `SettingError` unless `value` is one of `choices`."""
    if value not in choices:
        raise SettingError(
            f"{name} is {value!r}; it must be one of {', '.join(choices)}{meant(value, choices)}"
        )


def meant(value: str, choices: Collection[str]) -> str:
    """Return how the sentence about a value that is none of `choices` ends: with the nearest of them, if one is near.

    >>> meant("zeroout", ("zero_out", "replace")), meant("other", ("zero_out", "replace"))
    ('; did you mean zero_out?', '.')
    """
    near = get_close_matches(str(value).lower(), choices, n=1)
    return f"; did you mean {near[0]}?" if near else "."


def rounded_up(value: float, digits: int = DIGITS) -> str:
    """Return the smallest number of `digits` significant digits that is at least `value` >= 0, as text.

    Epsilon and delta are bounds, and a bound is never rounded down.

    >>> rounded_up(5.7164028), rounded_up(8.0), rounded_up(12345.6), rounded_up(0.0), rounded_up(float("inf"))
    ('5.717', '8', '12350', '0', 'inf')
    >>> rounded_up(1 / 1437**1.2, 3), rounded_up(1e-5)
    ('0.000163', '1e-05')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    number = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(repr(float(value))))
    return f"{float(number):.{max(digits, number.adjusted() + 1)}g}"


def counted(number: int, noun: str = "epoch") -> str:
    """Return a number and what it counts.

    >>> counted(1), counted(2)
    ('1 epoch', '2 epochs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
