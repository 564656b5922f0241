"""What several seeds say together: a mean and its standard error."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.pages.wording import number


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
