"""How pages and tables say a number: digits, shares, bytes, times and ratios."""

from itertools import pairwise
from typing import Any

from fedmf.rounding import rounded_up

_WHOLE = 1e4  # from here on a measured number is said without decimals
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
    """Return an epsilon or a delta as `number` says one, but never less than it is.

    >>> bound(5.7164028), number(5.7164028), bound(1e-5), bound(None)
    ('5.717', '5.716', '1e-5', '–')
    """
    return number(None if value is None else float(rounded_up(value)))


def figure(key: str, value: Any) -> str:
    """Return the value of a key of a run's files or settings: of an epsilon or a delta never less than it is.

    >>> figure("epsilon_rdp", 5.7164028), figure("privacy.delta", 1e-4), figure("sigma", 5.7164028)
    ('5.717', '0.0001', '5.716')
    """
    last = key.rsplit(".", 1)[-1]
    is_bound = last == "delta" or last == "max_epsilon" or last.startswith("epsilon")
    return bound(value) if is_bound and isinstance(value, float) else number(value)


def times_less(ratio: float) -> str:
    """Return a compression ratio in words that go before "than".

    >>> times_less(6.348), times_less(0.6348)
    ('6.35 times less', '1.58 times more')
    """
    return f"{times(ratio)} times less" if ratio >= 1 else f"{times(1 / ratio)} times more"


def times(ratio: float | None) -> str:
    """Return how many times one thing is another, in three digits wherever a ratio is said, a dash for the unknown.

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
    """Return a number of bytes in a unit that people read, three digits of it, a dash for the unknown.

    >>> size(512), size(419430.4), size(999_900), size(4.2e6)
    ('512 B', '419 kB', '1 MB', '4.2 MB')
    """
    return "–" if count is None else "{} {}".format(*_scaled(count, ("B", "kB", "MB", "GB", "TB")))


def byte_unit(largest: float) -> tuple[str, float]:
    """Return the unit in which an axis counts bytes up to `largest`, and how many bytes it has.

    >>> byte_unit(354_000), byte_unit(2e9)
    (('kB', 1000.0), ('GB', 1000000000.0))
    """
    units = ("B", "kB", "MB", "GB", "TB")
    place = next((place for place in range(len(units)) if largest < 1000 ** (place + 1)), len(units) - 1)
    return units[place], float(1000**place)


def duration(seconds: float | None) -> str:
    """Return a time as people say it, a dash for the unknown.

    >>> duration(0.1234), duration(12.5), duration(754), duration(9000), duration(200_000)
    ('0.12 s', '12.5 s', '12 min 34 s', '2 h 30 min', '2 d 7 h')
    """
    if seconds is None:
        return "–"
    if seconds < 59.95:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"
    return whole_duration(seconds)


def whole_duration(seconds: float) -> str:
    """Return a time in whole numbers of its two largest units.

    >>> whole_duration(0.4), whole_duration(12.4), whole_duration(61), whole_duration(7260), whole_duration(90000)
    ('0 s', '12 s', '1 min 1 s', '2 h 1 min', '1 d 1 h')
    """
    left = round(seconds)
    for (unit, length), (smaller, part) in pairwise(_TIMES):
        if left >= length:
            return f"{left // length} {unit} {left % length // part} {smaller}"
    return f"{left} s"


def _scaled(count: float, units: tuple[str, ...]) -> tuple[str, str]:
    """Return three digits of a count, and the unit in which they count thousands."""
    for unit in units[:-1]:
        if count < 999.5:
            return f"{count:.3g}", unit
        count /= 1000
    return f"{count:.3g}" if count < 999.5 else f"{count:,.0f}", units[-1]
