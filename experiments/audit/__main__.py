"""Audit the real pipeline: `python -m experiments.audit`.

Runs the Flower strategy and client app and looks for what they give away beyond the statement: pairs of runs with the
same secrets and one client in or out, the noise and the masks tested against their laws, and two attacks that bound epsilon
from below. Then it puts five faults into the pipeline and checks that each is caught. Exit code 0: nothing was found; 1: the
product is refuted, or the audit missed a fault; 3: inconclusive.
What each test can and cannot see: docs/audit.md.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.audit.attack import attack_findings
from experiments.audit.sabotage import CONTROLS, HALF_NOISE, Sabotage
from experiments.audit.scene import Scene
from experiments.audit.tested import COUPLED_SCENES, NOISE_SCENES, coupled_findings, noise_findings
from experiments.cli import command, output
from experiments.run_files.directory import RunDirectory
from experiments.settings.values import PRINTED, Output
from fedmf.audit import Finding
from fedmf.checks import check_choice
from fedmf.errors import RunDirectoryError
from fedmf.mechanisms import FAMILIES
from fedmf.setting import setting

KINDS = ((COUPLED_SCENES, coupled_findings), (NOISE_SCENES, noise_findings))
AS_SHIPPED = "as shipped"
NOTHING_FOUND, REFUTED, INCONCLUSIVE = 0, 1, 3  # exit codes
CONCLUSIONS = {
    NOTHING_FOUND: "Nothing was found.",
    REFUTED: "REFUTED: the product gives away more than it states, or the audit missed what it must catch.",
    INCONCLUSIVE: "Inconclusive: a test that should decide had nothing to decide with.",
}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AuditSettings:
    """Keys of the command."""

    directory: str = setting("outputs/audit", "must not exist yet: audit.json goes there")
    mechanisms: tuple[str, ...] = setting(
        ("optimal",), "families that are attacked, and looked at in a scene of their own", FAMILIES
    )
    sabotage: str | tuple[str, ...] = setting(
        "all",
        "faults that must be caught: all, none, or names of docs/audit.md such as [no clipping,a stale sum]",
    )
    seed: int = setting(0, "run secrets and coins: an audit can be repeated bit for bit")
    output: Output = setting("text", PRINTED)


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
    def code(self) -> int:
        """The exit code."""
        shipped = [row.finding for row in self.rows if row.sabotage == AS_SHIPPED]
        if any(finding.refutes for finding in shipped) or any(map(self.missed, self.sabotages)):
            return REFUTED
        return INCONCLUSIVE if any(finding.is_inconclusive for finding in shipped) else NOTHING_FOUND

    def as_document(self) -> dict[str, Any]:
        """Return the audit as JSON-ready values."""
        rows = [
            {"scene": row.scene, "sabotage": row.sabotage}
            | asdict(row.finding)
            | {"verdict": row.finding.verdict}
            for row in self.rows
        ]
        sabotages = [
            {"sabotage": one.name, "sentence": one.sentence}
            | {"caught_by": self.caught_by(one), "missed_by": self.missed(one)}
            for one in self.sabotages
        ]
        conclusion = CONCLUSIONS[self.code]
        return {"code": self.code, "conclusion": conclusion, "sabotages": sabotages, "rows": rows}

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
        print(CONCLUSIONS[self.code])


def audit(settings: AuditSettings) -> None:
    """Run the audit and print it; raise `SystemExit` with its exit code unless nothing was found."""
    sabotages = chosen(settings.sabotage)
    for mechanism in settings.mechanisms:
        check_choice("each of mechanisms", mechanism, FAMILIES)
    directory = Path(settings.directory)
    if directory.exists() or directory.is_symlink():
        raise RunDirectoryError(f"directory is {directory}, which exists already; name one that does not.")
    logging.getLogger("server").setLevel(logging.WARNING)  # not a line for each of thousands of runs
    logging.getLogger("client.app").setLevel(logging.CRITICAL)  # vectors that are not finite are meant
    rows = list(product(settings.mechanisms, settings.seed))
    for sabotage in sabotages:
        with sabotage.patches():
            rows += control(sabotage, settings.seed)
    report = Report(rows, sabotages)
    directory.mkdir(parents=True)
    document = report.as_document()
    RunDirectory(directory).write_json("audit.json", document)
    output.show(settings.output, document, report.print_text)
    if report.code:
        sys.exit(report.code)


def product(mechanisms: Sequence[str], seed: int) -> Iterator[Row]:
    """Yield the rows of the product as shipped: of every scene, and of the first ones under each further mechanism."""
    for scenes, find in KINDS:
        known = {scene.mechanism for scene in scenes}
        more = [
            replace(scenes[0], name=f"{scenes[0].name}, {one}", mechanism=one)
            for one in mechanisms
            if one not in known
        ]
        for scene in (*scenes, *more):
            yield from found_in(scene.name, AS_SHIPPED, find(scene, seed))
    for mechanism in mechanisms:
        yield from found_in(mechanism, AS_SHIPPED, attack_findings(mechanism, seed))


def control(sabotage: Sabotage, seed: int) -> Iterator[Row]:
    """Yield the rows of a pipeline with a sabotage in place: of the first scenes in which it changes anything."""
    for scenes, find in KINDS:
        scene: Scene = next(filter(sabotage.applies, scenes))
        yield from found_in(scene.name, sabotage.name, find(scene, seed))
    if sabotage == HALF_NOISE:
        yield from found_in("optimal", sabotage.name, attack_findings("optimal", seed))


def found_in(scene: str, sabotage: str, findings: Iterable[Finding]) -> list[Row]:
    """Return the rows of a scene, and log that it is done."""
    log.info("%s, %s: done", scene, sabotage)
    return list(map(partial(Row, scene, sabotage), findings))


def chosen(names: str | Sequence[str]) -> list[Sabotage]:
    """Return the sabotages that `sabotage=` names: all, none, or some of the five controls."""
    known = {sabotage.name: sabotage for sabotage in CONTROLS}
    asked = {"all": list(known), "none": []}.get(str(names), [names] if isinstance(names, str) else names)
    for name in asked:
        check_choice("sabotage", name.replace("_", " "), list(known))
    return [known[name.replace("_", " ")] for name in asked]


if __name__ == "__main__":
    command.run(audit, "audit", AuditSettings, __doc__)
