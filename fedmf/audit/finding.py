"""What a test of this package found: a figure, its limit, and whether the statement is refuted."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedmf.mechanisms.arrays import Float64


@dataclass(frozen=True)
class Finding:
    """The outcome of one named test, which may consist of many tests of one kind.

    `observed` beyond `limit` refutes. Deterministic tests observe a ratio to what is accounted, and `false_alarm` is None:
    an honest stream never exceeds the limit. Statistical tests observe the smallest p-value of `tests` exact tests times
    their number (Bonferroni), the limit is the level `false_alarm`, and refuting means falling below it. `where` says which
    round, coordinate or pair `observed` belongs to. `is_inconclusive`: there was nothing to look at.
    """

    test: str
    observed: float
    limit: float
    refutes: bool
    false_alarm: float | None = None
    where: str = ""
    tests: int = 1
    is_inconclusive: bool = False

    @property
    def sentence(self) -> str:
        """The finding in words."""
        what = "p" if self.false_alarm is not None else "ratio"
        count = f" of {self.tests} tests" if self.tests > 1 else ""
        place = f" at {self.where}" if self.where else ""
        verdict = "inconclusive" if self.is_inconclusive else "refuted" if self.refutes else "nothing found"
        return f"{self.test}: {what} {self.observed:.4g}{count}{place}, limit {self.limit:.6g}: {verdict}"

    def as_document(self) -> dict[str, Any]:
        """Return the finding as JSON-ready values."""
        return asdict(self)


def at_round(epoch: int, step: int) -> str:
    """Return the name of a round, of which both numbers count from 0.

    >>> at_round(0, 2)
    'epoch 1, round 3'
    """
    return f"epoch {epoch + 1}, round {step + 1}"


def smallest(
    test: str, p_values: Float64, labels: Sequence[str], level: float, tests: int | None = None
) -> Finding:
    """Return the finding of p-values of one kind, one label each, at `level` for all of them together.

    `tests` is how many there were, where `p_values` holds only the smallest of them.
    """
    place = int(np.argmin(p_values))
    count = len(p_values) if tests is None else tests
    corrected = min(1.0, count * float(p_values[place]))
    return Finding(test, corrected, level, corrected <= level, level, labels[place], count)
