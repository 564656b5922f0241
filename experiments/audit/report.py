"""What an audit found: rows, which sabotage was caught, the exit code, tables and audit.json."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from experiments.audit.sabotage import Sabotage
from experiments.cli import output
from fedmf.audit import Finding

AS_SHIPPED = "as shipped"


class Code(IntEnum):
    """The exit codes of the command."""

    nothing_found = 0
    refuted = 1  # the product, or the audit itself: a sabotage that must be caught was not
    inconclusive = 3


SENTENCES = {
    Code.nothing_found: "Nothing was found.",
    Code.refuted: "REFUTED: the product gives away more than it states, or the audit missed what it must catch.",
    Code.inconclusive: "Inconclusive: a test that should decide had nothing to decide with.",
}


@dataclass(frozen=True)
class Row:
    """The finding of one test in one scene, of the product as shipped or with a sabotage."""

    scene: str
    sabotage: str
    finding: Finding


@dataclass(frozen=True)
class Report:
    """All rows of an audit, and the sabotages that were put into the pipeline."""

    rows: Sequence[Row]
    sabotages: Sequence[Sabotage] = ()

    def caught_by(self, sabotage: Sabotage) -> list[str]:
        """Return the tests that refuted a pipeline with this sabotage."""
        found = (row.finding for row in self.rows if row.sabotage == sabotage.name)
        return list(dict.fromkeys(finding.test for finding in found if finding.refutes))

    def missed(self, sabotage: Sabotage) -> list[str]:
        """Return the tests that must have caught a sabotage and did not."""
        caught = self.caught_by(sabotage)
        return [test for test in sabotage.caught_by if not any(name.startswith(test) for name in caught)]

    @property
    def code(self) -> Code:
        """The exit code."""
        shipped = [row.finding for row in self.rows if row.sabotage == AS_SHIPPED]
        if any(finding.refutes for finding in shipped) or any(map(self.missed, self.sabotages)):
            return Code.refuted
        is_unsure = any(finding.is_inconclusive for finding in shipped)
        return Code.inconclusive if is_unsure else Code.nothing_found

    def as_document(self) -> dict[str, Any]:
        """Return the audit as JSON-ready values."""
        rows = [
            {
                "scene": row.scene,
                "sabotage": row.sabotage,
                **asdict(row.finding),
                "verdict": row.finding.verdict,
            }
            for row in self.rows
        ]
        sabotages = [
            {
                "sabotage": one.name,
                "sentence": one.sentence,
                "caught_by": self.caught_by(one),
                "missed_by": self.missed(one),
            }
            for one in self.sabotages
        ]
        return {
            "code": int(self.code),
            "conclusion": SENTENCES[self.code],
            "sabotages": sabotages,
            "rows": rows,
        }

    def print_text(self) -> None:
        """Print the tables and the conclusion."""
        shipped = [(row.scene, row.finding) for row in self.rows if row.sabotage == AS_SHIPPED]
        output.print_table(
            "The product as shipped",
            {name: {} for name in ("scene", "test", "observed", "limit", "where", "verdict")},
            [
                (
                    scene,
                    one.test,
                    f"{one.quantity} {one.observed:.4g}",
                    f"{one.limit:.4g}",
                    one.where,
                    one.verdict,
                )
                for scene, one in shipped
            ],
        )
        output.print_table(
            "Sabotaged on purpose",
            {name: {} for name in ("sabotage", "caught by", "missed by")},
            [
                (one.name, ", ".join(self.caught_by(one)), ", ".join(self.missed(one)))
                for one in self.sabotages
            ],
        )
        print(SENTENCES[self.code])
