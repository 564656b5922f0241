"""One row of the audit: a test of one pipeline, what it saw, and what follows."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

AS_SHIPPED = "as shipped"
ATTACKS = ("many runs", "one run")  # how the names of attacks begin


class Verdict(Enum):
    """What a test comes to."""

    nothing_found = "nothing found"
    refuted = "refuted"
    inconclusive = "inconclusive"


@dataclass(frozen=True)
class Row:
    """A test of one pipeline. `sabotage` is "as shipped", or the name of what is broken in the pipeline on purpose.

    `observed` and `limit` are the figures in words. `false_alarm` is the probability with which this row refutes an
    honest pipeline, its share of the audit's (`experiments.audit.levels`), 0 for a deterministic test, None where nobody
    knows it. `nearness` says how far the test was from refuting, 1 being the limit; None where that has no scale. `power`
    is the probability with which the row finds its sabotage at the size that was played, of the product as shipped that
    with which it would find the one that it is meant for; None where nobody computed it.
    """

    pipeline: str
    sabotage: str
    test: str
    observed: str
    limit: str
    false_alarm: float | None
    verdict: Verdict
    note: str = ""
    nearness: float | None = None
    power: float | None = None

    @property
    def is_attack(self) -> bool:
        """Whether the row bounds what guesses give away, so that it shares its level with all attacks of the audit."""
        return self.test.startswith(ATTACKS)

    @property
    def is_control(self) -> bool:
        """Whether the pipeline was broken on purpose."""
        return self.sabotage != AS_SHIPPED

    def as_document(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {**vars(self), "verdict": self.verdict.value, "is_control": self.is_control}
