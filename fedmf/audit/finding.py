"""The outcome of one kind of test: what it observed, its limit, and whether the statement is refuted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmf.mechanisms.arrays import Float64

Part = tuple[float, str, int]
"""The smallest p-value of several tests, where it was found, and how many tests there were."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a test. `quantity` names the unit of `observed` and `limit`.

    "ratio": a length over what is accounted. Arithmetic: a ratio above its limit refutes with certainty.
    "p": the smallest p-value of `tests` exact tests times their number (Bonferroni). The limit is the probability with
    which all of them together accuse an honest stream; a p-value at or below it refutes.
    "epsilon": a lower bound from an attack. A bound above the limit, which is the stated epsilon, refutes.

    `where` is the round, coordinate or pair behind `observed`, all counted from 0. `is_inconclusive`: there was nothing to look at.
    """

    test: str
    observed: float
    limit: float
    refutes: bool
    quantity: str = "ratio"
    where: str = ""
    tests: int = 1
    is_inconclusive: bool = False

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        return "inconclusive" if self.is_inconclusive else "refuted" if self.refutes else "nothing found"

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        count = f" of {self.tests} tests" if self.tests > 1 else ""
        place = f" at {self.where}" if self.where else ""
        return f"{self.test}: {self.quantity} {self.observed:.4g}{count}{place}, limit {self.limit:.6g}: {self.verdict}"


def least(p_values: Float64, *axes: str) -> Part:
    """Return the smallest of `p_values` as a part; `axes` names the axes of the array.

    >>> least(np.array([[0.5, 0.1]]), "epoch", "round")
    (0.1, 'epoch 0, round 1', 2)
    """
    place = np.unravel_index(int(np.argmin(p_values)), p_values.shape)
    where = ", ".join(f"{axis} {index}" for axis, index in zip(axes, place, strict=True))
    return float(p_values.min()), where, p_values.size


def smallest(test: str, level: float, parts: Sequence[Part]) -> Finding:
    """Return the finding of all `parts`, which together accuse an honest stream with probability at most `level`."""
    p_value, where, _ = min(parts)
    count = sum(tests for _, _, tests in parts)
    corrected = min(1.0, count * p_value)
    return Finding(test, corrected, level, corrected <= level, "p", where, count)
