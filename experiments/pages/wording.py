"""Numbers as pages and tables write them: digits, shares, bytes, times, ratios, means over seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from rich.filesize import decimal

from fedmf.rounding import rounded_up

_WHOLE = 1e4  # from here on a measured number is written without decimals
_TIMES = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))  # units and their seconds


def number(value: Any) -> str:
    """Return a value as people read it: four significant digits, thousands apart, a dash for the unknown.

    >>> number(1437), number(0.19912), number(1e-4), number(419430.4), number(None), number(True)
    ('1,437', '0.1991', '0.0001', '419,430', '–', 'yes')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
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


def times(ratio: float | None) -> str:
    """Return how many times one thing is another, in three digits everywhere, a dash for the unknown.

    >>> times(6.348), times(1234.5), times(None)
    ('6.35', '1,234', '–')
    """
    if ratio is None:
        return "–"
    return f"{ratio:.3g}" if ratio < 999.5 else f"{ratio:,.0f}"


def percent(value: float | None) -> str:
    """Return a share in [0, 1] as a percentage with one decimal."""
    return "–" if value is None else f"{100 * value:.1f} %"


def size(count: float | None) -> str:
    """Return a number of bytes in a unit that people read, a dash for the unknown.

    >>> size(512), size(419430.4), size(4.2e6)
    ('512 bytes', '419.4 kB', '4.2 MB')
    """
    return "–" if count is None else decimal(round(count))


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units, a dash for the unknown.

    >>> duration(0.1234), duration(12.5), duration(754), duration(9000), duration(200_000)
    ('0.123 s', '12.5 s', '12 min 34 s', '2 h 30 min', '2 d 7 h')
    """
    if seconds is None:
        return "–"
    left = round(seconds)
    for (unit, length), (smaller, part) in pairwise(_TIMES):
        if left >= length:
            return f"{left // length} {unit} {left % length // part} {smaller}"
    return f"{seconds:.3g} s"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error (None for a single seed)."""

    mean: float
    error: float | None

    def __str__(self) -> str:
        """Return mean ± standard error."""
        known = self.error is not None and self.error > 1e-9 * abs(self.mean)
        return f"{number(self.mean)} ± {_spread(self.error or 0.0)}" if known else number(self.mean)


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


def _spread(error: float) -> str:
    """Return a standard error with two digits, all of them where it is large.

    >>> _spread(0.0123), _spread(1234.5)
    ('0.012', '1,234')
    """
    return f"{error:.2g}" if error < 100 else f"{error:,.0f}"
