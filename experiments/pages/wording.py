"""How pages and tables say a number: digits, shares, bytes and ratios."""

from typing import Any


def number(value: Any) -> str:
    """Return a value as people read it: four significant digits, thousands apart, a dash for the unknown.

    >>> number(1437), number(0.19912), number(1e-4), number(None), number(True)
    ('1,437', '0.1991', '0.0001', '–', 'yes')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{int(value):,}" if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def times_less(ratio: float) -> str:
    """Return a compression ratio in words that go before "than".

    >>> times_less(6.348), times_less(0.6348)
    ('6.3 times less', '1.6 times more')
    """
    return f"{ratio:.1f} times less" if ratio >= 1 else f"{1 / ratio:.1f} times more"


def percent(value: float | None) -> str:
    """Return a share in [0, 1] as a percentage with one decimal."""
    return "–" if value is None else f"{100 * value:.1f} %"


def size(count: float) -> str:
    """Return a number of bytes in a unit that people read.

    >>> size(512), size(4.2e6)
    ('512 B', '4.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.4g} {unit}"
        count /= 1000
    raise AssertionError("the loop returns")
