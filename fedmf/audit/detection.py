"""How surely `residuals` finds noise that is a factor too small or too large, before anything is run.

Exact for every row given: sums of squares of such noise are the factor squared times chi-square, counts beyond a limit
binomial. Where a row consists of many tests they are independent of each other, except those of the tails, of
which the surest one by itself is given: the row finds no less.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom, chi2

from fedmf.audit import residual
from fedmf.checks import check_at_least, check_open_unit, check_positive


@dataclass(frozen=True)
class Power:
    """The `probability` with which the row `test` refutes noise of `factor` times the stated standard deviation."""

    test: str
    factor: float
    probability: float


def power(
    factor: float,
    *,
    runs: int,
    epochs: int,
    rounds: int,
    coordinates: int,
    false_alarm: float = residual.FALSE_ALARM,
) -> tuple[Power, ...]:
    """Return the power of each row of `residuals` that sees a factor in all of the noise.

    The rows on correlations, repeated rows and magnitudes across coordinates are not among them: what they look at does
    not change with the scale, or hardly. Raises `SettingError` for values out of range.
    """
    check_positive("factor", factor)
    check_open_unit("false_alarm", false_alarm)
    for name, value in (("runs", runs), ("epochs", epochs), ("rounds", rounds), ("coordinates", coordinates)):
        check_at_least(name, value, 1)
    level = false_alarm / len(residual.TESTS)
    everything = runs * epochs * rounds * coordinates
    shapes = {
        residual.VARIANCE: (1, everything),
        residual.BY_RUN: (runs, epochs * rounds * coordinates),
        residual.BY_ROUND: (epochs * rounds, runs * coordinates),
        residual.BY_COORDINATE: (coordinates, runs * epochs * rounds),
        residual.BY_ENTRY: (epochs * rounds * coordinates, runs),
    }
    found = [
        Power(test, factor, _variances(factor, count, size, level)) for test, (count, size) in shapes.items()
    ]
    tails = max(
        _tail(factor, limit, everything, level / (len(residual.LIMITS) + 2)) for limit in residual.LIMITS
    )
    return (*found, Power(residual.TAILS, factor, tails))


def _variances(factor: float, tests: int, size: int, level: float) -> float:
    """Return the probability that one of `tests` sums of `size` squares leaves its limits."""
    each = level / tests / 2
    low, high = chi2.ppf(each, size), chi2.isf(each, size)
    single = float(chi2.cdf(low / factor**2, size) + chi2.sf(high / factor**2, size))
    return float(-np.expm1(tests * np.log1p(-min(single, 1.0)))) if single < 1 else 1.0


def _tail(factor: float, limit: float, size: int, level: float) -> float:
    """Return the probability that the count beyond `limit` leaves its limits."""
    stated, true = 2 * float(ndtr(-limit)), 2 * float(ndtr(-limit / factor))
    # the counts that are refuted: P[count <= low] <= level/2 and P[count >= high] <= level/2 as stated
    low = binom.ppf(level / 2, size, stated)
    low = low if binom.cdf(low, size, stated) <= level / 2 else low - 1
    high = binom.isf(level / 2, size, stated) + 1
    return float(binom.cdf(low, size, true) + binom.sf(high - 1, size, true))
