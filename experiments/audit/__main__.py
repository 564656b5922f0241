"""Audit the real pipeline: `python -m experiments.audit`.

Runs the Flower strategy and client app and tests whether they reveal more than the statement allows: pairs of runs with the same
secrets and one client in or out, tests of noise and masks against their distributions, and two attacks that bound epsilon from
below. Then it injects five faults into the pipeline and checks that each is caught. Exit code 0: nothing was found; 1: the
privacy claim is refuted, the audit missed a fault, or the pipeline itself failed; 3: inconclusive. docs/audit.md explains what each test can
and cannot detect.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.audit.attack import attack_findings
from experiments.audit.sabotage import CONTROLS, HALF_NOISE, Sabotage
from experiments.audit.scene import Scene
from experiments.audit.tested import COUPLED_SCENES, NOISE_SCENES, coupled_findings, noise_findings
from experiments.cli import command, output
from experiments.run_files.directory import write_json
from experiments.settings.values import PRINTED, Output
from fedmf.audit import Finding
from fedmf.errors import RunDirectoryError, RunStoppedError, one_line
from fedmf.mechanisms import FAMILIES
from fedmf.setting import check_fields, setting

KNOWN = {sabotage.name: sabotage for sabotage in CONTROLS}
KINDS = ((COUPLED_SCENES, coupled_findings), (NOISE_SCENES, noise_findings))
AS_SHIPPED = "as shipped"
NOTHING_FOUND, REFUTED, INCONCLUSIVE = 0, 1, 3  # exit codes
CONCLUSIONS = {
    NOTHING_FOUND: "Nothing was found.",
    REFUTED: "REFUTED: the product gives away more than it states, or the audit missed what it must catch.",
    INCONCLUSIVE: "Inconclusive: a test that should decide had nothing to decide with.",
}
log = logging.getLogger(__name__)

Row = dict[str, Any]
"""The finding of one test in one scene, of the product as shipped or with a sabotage, as JSON-ready values."""


@dataclass(frozen=True)
class AuditSettings:
    """Keys of the command."""

    directory: str = setting("outputs/audit", "folder for audit.json, which must not exist yet")
    mechanisms: tuple[str, ...] = setting(
        ("optimal",),
        "families to attack and test, each in a run of its own; []: none",
        FAMILIES,
    )
    sabotage: tuple[str, ...] = setting(
        tuple(KNOWN),
        "faults to inject, which must be caught, such as [no clipping,a stale sum]; []: none",
        KNOWN,
    )
    seed: int = setting(0, "seed of secrets and coins, which makes an audit repeatable bit for bit")
    output: Output = setting("text", PRINTED)

    def __post_init__(self) -> None:
        check_fields(self)


def document_of(rows: Sequence[Row], sabotages: Sequence[Sabotage] = ()) -> dict[str, Any]:
    """Return an audit as JSON-ready values: its exit code, the sabotages that were put into the pipeline, and all rows."""
    controls = []
    for one in sabotages:
        found = (row["test"] for row in rows if row["sabotage"] == one.name and row["refutes"])
        caught = list(dict.fromkeys(found))
        missed = [test for test in one.caught_by if not any(name.startswith(test) for name in caught)]
        controls.append(
            {"sabotage": one.name, "sentence": one.sentence, "caught_by": caught, "missed_by": missed}
        )
    shipped, code = [row for row in rows if row["sabotage"] == AS_SHIPPED], NOTHING_FOUND
    if any(row["refutes"] for row in shipped) or any(one["missed_by"] for one in controls):
        code = REFUTED
    elif any(row["is_inconclusive"] for row in shipped):
        code = INCONCLUSIVE
    return {"code": code, "conclusion": CONCLUSIONS[code], "sabotages": controls, "rows": rows}


def print_text(document: dict[str, Any]) -> None:
    """Print the tables and the conclusion of an audit."""
    output.print_table(
        "The product as shipped",
        {name: {} for name in ("scene", "test", "observed", "limit", "where", "verdict")},
        [
            (
                row["scene"],
                row["test"],
                f"{row['quantity']} {row['observed']:.4g}",
                f"{row['limit']:.4g}",
                row["where"],
                row["verdict"],
            )
            for row in document["rows"]
            if row["sabotage"] == AS_SHIPPED
        ],
    )
    output.print_table(
        "Sabotaged on purpose",
        {name: {} for name in ("sabotage", "caught by", "missed by")},
        [
            (one["sabotage"], ", ".join(one["caught_by"]), ", ".join(one["missed_by"]))
            for one in document["sabotages"]
        ],
    )
    print(document["conclusion"])


def audit(settings: AuditSettings) -> None:
    """Run the audit and print it; raise `SystemExit` with its exit code unless nothing was found."""
    sabotages = [KNOWN[name] for name in settings.sabotage]
    directory = Path(settings.directory)
    if directory.exists() or directory.is_symlink():
        raise RunDirectoryError(f"directory is {directory}, which exists already; name one that does not.")
    logging.getLogger("server").setLevel(logging.WARNING)  # not a line for each of thousands of runs
    logging.getLogger("client.app").setLevel(logging.CRITICAL)  # vectors that are not finite are meant
    rows = list(product(settings.mechanisms, settings.seed))
    for sabotage in sabotages:
        with sabotage.patches():
            rows += control(sabotage, settings.seed)
    document = document_of(rows, sabotages)
    directory.mkdir(parents=True)
    write_json(directory / "audit.json", document)
    output.show(settings.output, document, lambda: print_text(document))
    if document["code"]:
        sys.exit(document["code"])


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
            yield from found_in(scene.name, AS_SHIPPED, partial(find, scene, seed))
    for mechanism in mechanisms:
        yield from found_in(mechanism, AS_SHIPPED, partial(attack_findings, mechanism, seed))


def control(sabotage: Sabotage, seed: int) -> Iterator[Row]:
    """Yield the rows of a pipeline with a sabotage in place: of the first scenes in which it changes anything."""
    for scenes, find in KINDS:
        scene: Scene = next(filter(sabotage.applies, scenes))
        yield from found_in(scene.name, sabotage.name, partial(find, scene, seed))
    if sabotage == HALF_NOISE:
        yield from found_in("optimal", sabotage.name, partial(attack_findings, "optimal", seed))


def found_in(scene: str, sabotage: str, find: Callable[[], Sequence[Finding]]) -> list[Row]:
    """Return the rows of what `find` finds in a scene, and log that it is done.

    Raises `RunStoppedError`, which ends the audit with exit code 1, where the pipeline raises.
    """
    try:
        findings = find()
    except Exception as error:
        raise RunStoppedError(
            f"the pipeline itself failed in the scene {scene} ({sabotage}): {one_line(error)}. Correct it and audit "
            "again: a run has to end, whatever clients send."
        ) from error
    log.info("%s, %s: done", scene, sabotage)
    return [
        {"scene": scene, "sabotage": sabotage, **asdict(finding), "verdict": finding.verdict}
        for finding in findings
    ]


if __name__ == "__main__":
    command.run(audit, "audit", AuditSettings, __doc__)
