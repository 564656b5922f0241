"""The part of a run's page that says with what, when and where it ran, and how long it took."""

from collections.abc import Iterator, Mapping
from typing import Any

from experiments.pages.page import SOURCE, Section, Table
from experiments.pages.wording import duration, number, size
from experiments.run_files.directory import PROVENANCE
from experiments.run_files.reader import Run

TITLE = "With what, when and where it ran"
SOFTWARE = {"fedmf": "fedmf", "torch": "torch", "flwr": "flwr", "numpy": "numpy", "python": "Python"}

# Shown where a session has them.
DIGESTS = {
    "code": "code of fedmf (digest)",
    "bundle": "bundle of Flower (digest)",
    "image": "container image",
}


def provenance_section(run: Run) -> Section:
    """Return versions, machine and times of the sessions that carried a run to its end."""
    sessions = run.provenance.get("sessions") or []
    if not sessions:
        return Section(
            TITLE, [f"The run directory holds no {PROVENANCE}: the run is older than that record."]
        )
    parts = (run.config.get("population") or {}).get("parts") or (1,)
    again = "extended" if len(sessions) == len(parts) else "resumed"
    rows = [*_times(sessions, again), *_versions(sessions), *_machines(sessions)]
    words = [
        "Wall time runs from the first check of the settings to the last file, data loading and this page left out."
    ]
    if len(sessions) > 1:
        missing = " Of one that was killed, what it did after its last record is missing."
        words.append(
            f"The run was {again}: {len(sessions)} sessions are added up.{missing if again == 'resumed' else ''}"
        )
    if int(sessions[0].get("first_round") or 1) > 1:
        words.append(f"What was done before round {sessions[0]['first_round']} is not recorded.")
    return Section(TITLE, words, table=Table(("what", "value", SOURCE), rows, numbers=(1,)))


def _times(sessions: list[Mapping[str, Any]], again: str) -> Iterator[tuple[str, str, str]]:
    begun = [_moment(session.get("started")) for session in sessions]
    yield "started (UTC)", begun[0], _at("started")
    if len(sessions) > 1:
        yield f"{again} (UTC)", ", ".join(begun[1:]), _at("started")
    yield "ended (UTC)", _moment(sessions[-1].get("until")), _at("until")
    seconds = sum(float(session.get("wall_seconds") or 0) for session in sessions)
    yield "wall time", duration(seconds), _at("wall_seconds")


def _versions(sessions: list[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield what ran; several versions of one thing where the run was resumed with another."""
    for key, name in SOFTWARE.items():
        yield (
            name,
            _joined([session.get("software") or {} for session in sessions], key),
            _at(f"software.{key}"),
        )
    said = [session.get("software") or {} for session in sessions]
    for key, name in DIGESTS.items():
        if any(software.get(key) for software in said):
            yield name, _joined(said, key), _at(f"software.{key}")
    commits = dict.fromkeys(map(_commit, sessions))
    yield "git commit of fedmf", ", ".join(commits), _at("software.git_commit")


def _moment(text: object) -> str:
    """Return a recorded time as people write it."""
    return str(text).replace("T", " ").removesuffix("Z")


def _commit(session: Mapping[str, Any]) -> str:
    software = session.get("software") or {}
    changed = ", with changes that no commit holds" if software.get("git_modified") else ""
    commit = software.get("git_commit")
    return f"{str(commit)[:12]}{changed}" if commit else "– (not run from a checkout)"


def _machines(sessions: list[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    machines = [session.get("machine") or {} for session in sessions]
    for key, name in (("system", "system"), ("cores", "cores that it could use")):
        yield name, _joined(machines, key), _at(f"machine.{key}")
    memory = dict.fromkeys(size(machine.get("memory_bytes")) for machine in machines)
    yield "memory", ", ".join(memory), _at("machine.memory_bytes")
    used = dict.fromkeys(str(machine.get("accelerator") or "none used") for machine in machines)
    yield "accelerator", ", ".join(used), _at("machine.accelerator")


def _joined(documents: list[Any], key: str) -> str:
    """Return the different values of a key."""
    return ", ".join(dict.fromkeys(number(document.get(key)) for document in documents))


def _at(key: str) -> str:
    return f"{PROVENANCE}: {key}"
