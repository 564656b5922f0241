"""Numbers as pages and tables write them: digits, bounds, ratios, means over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedmf.rounding import rounded_up

_WHOLE = 1e4  # from here on a measured number is written without decimals


def number(value: Any) -> str:
    """Return a value as people read it: four significant digits, thousands apart, a dash for the unknown.

    >>> number(1437), number(0.19912), number(1e-4), number(419430.4), number(None), number(True)
    ('1,437', '0.1991', '0.0001', '419,430', '–', 'yes')
    """
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        whole = value.is_integer() or abs(value) >= _WHOLE
        return f"{value:,.0f}" if whole and abs(value) < 1e15 else f"{value:.4g}".replace("e-0", "e-")
    return str(value)


def bound(value: float | None) -> str:
    """Return an epsilon or a delta as `number` writes one, but never less than it is.

    >>> bound(5.7164028), number(5.7164028), bound(1e-5), bound(None)
    ('5.717', '5.716', '1e-5', '–')
    """
    return number(None if value is None else float(rounded_up(value)))


def times_less(ratio: float) -> str:
    """Return a compression ratio in words that go before "than".

    >>> times_less(6.348), times_less(0.6348)
    ('6.35 times less', '1.58 times more')
    """
    return f"{times(ratio)} times less" if ratio >= 1 else f"{times(1 / ratio)} times more"


def times(ratio: float) -> str:
    """Return how many times one thing is another, in three digits.

    >>> times(6.348), times(1234.5)
    ('6.35', '1,234')
    """
    return f"{ratio:.3g}" if ratio < 999.5 else f"{ratio:,.0f}"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error (None for a single seed)."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        """Return mean ± standard error, the error with two digits."""
        if self.error is None or self.error <= 1e-9 * abs(self.mean):
            return number(self.mean)
        form = ".2g" if self.error < 100 else ",.0f"
        return f"{number(self.mean)} ± {self.error:{form}}"


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Return mean and standard error (sample deviation over sqrt n), or None where a value is missing.

    >>> str(estimate([0.9, 0.92, 0.94]))
    '0.92 ± 0.012'
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return Estimate(statistics.fmean(known), error)
