"""One row of the audit: a test of one pipeline, what it saw, and what follows."""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

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
    with which it would find the one that it is meant for; None where nobody computed it. `is_small`: it was played with
    fewer runs or pairs than a default audit has, so that what it did not find decides nothing.
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
    is_small: bool = False

    @property
    def is_attack(self) -> bool:
        """Whether the row bounds what guesses give away, so that it shares its level with all attacks of the audit."""
        return self.test.startswith(ATTACKS)

    @property
    def is_control(self) -> bool:
        """Whether the pipeline was broken on purpose."""
        return self.sabotage != AS_SHIPPED

    def undecided(self, why: str) -> Self:
        """Return the row of a test that was too small to decide, unless it refutes all the same."""
        if self.verdict is Verdict.refuted:
            return replace(self, is_small=True)
        note = self.note if self.verdict is Verdict.inconclusive else why
        return replace(self, is_small=True, verdict=Verdict.inconclusive, note=note)

    def as_document(self) -> dict[str, Any]:
        """Return the row as JSON-ready values."""
        return {**vars(self), "verdict": self.verdict.value, "is_control": self.is_control}
