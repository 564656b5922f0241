"""The runs below folders, also those that are running or were interrupted: what each is, which are meant, in which order."""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from client.metrics import HEADLINES
from experiments.run_files.directory import (
    CHECKPOINT,
    CONFIG,
    MECHANISM,
    MECHANISM_KINDS,
    METRICS,
    PROVENANCE,
    PROVENANCE_KINDS,
    read_json_if_there,
    rows_of,
    whole_lines,
)
from experiments.run_files.reader import is_finished, read_config, read_summary
from experiments.settings.recorded import flattened
from experiments.settings.values import text_of
from fedmf.errors import RunDirectoryError, SettingError
from server.checkpoint import LOCK
from server.files import is_locked

COLUMNS = ("name", "when", "data", "model", "epsilon", "accuracy", "state")
WHERE = "conditions that runs must meet, such as model=cnn,epsilon<4 on columns, settings or entries of summary.json"
SORT = "column, setting or entry of summary.json to sort by: the largest number first, then words from A; -KEY reverses the order"
_CONDITION = re.compile(r"\s*([\w.]+)\s*([=<>])\s*(.*?)\s*")
_RELATIONS = {"=": operator.eq, "<": operator.lt, ">": operator.gt}

T = TypeVar("T", bound=Mapping[str, Any])


def find(folders: str | Path | Sequence[str], where: Sequence[str] = ()) -> dict[Path, dict[str, Any]]:
    """Return the runs below `folders` that meet all conditions of `where`: {directory: values}, each once, by path.

    Values are the columns, the settings and the entries of the summary by key; the key of a group is its choice. Raises
    `RunDirectoryError` for a folder that is none, `SettingError` for a condition that is not understood.
    """
    places = as_paths(folders)
    found: dict[Path, tuple[Path, str]] = {}
    for place in places:
        if not place.is_dir():
            raise RunDirectoryError(f"directory is {place}, which is no folder; name one with runs below it.")
        for run in sorted(file.parent for file in place.rglob(CONFIG)):
            name = str(run if len(places) > 1 else run.relative_to(place))
            found.setdefault(run.resolve(), (run, name))
    known = {
        run: _values(run) | {"name": path.name if name == "." else name}
        for path, (run, name) in found.items()
    }
    for condition in where:
        if (parts := _CONDITION.fullmatch(condition)) is None:
            raise SettingError(f"where is {condition!r}; it must be KEY=VALUE, KEY<VALUE or KEY>VALUE.")
        _check_known("where", parts[1], known.values())
        known = {
            run: values for run, values in known.items() if _meets(values.get(parts[1]), *parts.groups()[1:])
        }
    return known


def as_paths(folders: str | Path | Sequence[str]) -> list[Path]:
    return [Path(folder) for folder in ([folders] if isinstance(folders, str | Path) else folders)]


def _values(directory: Path) -> dict[str, Any]:
    """Return the values of a run but its name; scores and epsilon of one that has not finished are those of its last rounds."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    try:
        leaves = dict(flattened(read_config(directory)))
        row |= leaves | {key.removesuffix(".name"): value for key, value in leaves.items()}
        row["data"] = f"{row['dataset']} {Path(leaves.get('dataset.path') or '').name}".strip()
        if provenance := read_json_if_there(directory / PROVENANCE, PROVENANCE_KINDS):
            row["when"] = provenance["sessions"][0].get("started")
        if is_finished(directory):
            return row | read_summary(directory) | {"state": "finished"}
        metrics = directory / METRICS
        for line in rows_of(whole_lines(metrics), metrics):
            row |= {key: line[key] for key in ("round", "epsilon", *HEADLINES) if key in line}
        design = read_json_if_there(directory / MECHANISM, MECHANISM_KINDS)
        rounds = design.get("epochs", 0) * design.get("rounds_per_epoch", 0)
        state = "running" if is_locked(directory / CHECKPOINT / LOCK) else "interrupted"
        return row | {"state": f"{state} at round {row.get('round', 0)}/{rounds or '?'}"}
    except (OSError, RunDirectoryError, LookupError, TypeError):
        return row | {"state": "unreadable"}


def _meets(value: object, relation: str, wanted: str) -> bool:
    """Return whether a value is in a relation to what was typed: as numbers; equal are texts too, or a word of one."""
    if relation == "=" and wanted in (str(value), text_of(value), *re.split("[ :]", str(value))):
        return True
    try:
        return bool(_RELATIONS[relation](float(str(value)), float(wanted)))
    except ValueError:
        return False


def in_order(rows: Iterable[T], by: str) -> list[T]:
    """Return rows by the key `by`: numbers from the largest, then words from A, at last those without; reversed for a minus before it.

    Raises `SettingError` for a key that no row has.
    """
    key, every = by.removeprefix("-"), list(rows)
    _check_known("sort", key, every)

    def place(row: T) -> tuple[bool, float, str]:
        value = row.get(key)
        return value is None, -float(value) if isinstance(value, int | float) else math.inf, str(value)

    return sorted(every, key=place, reverse=key != by)


def _check_known(setting: str, key: str, rows: Iterable[Mapping[str, Any]]) -> None:
    if (every := list(rows)) and not any(key in row for row in every):
        raise SettingError(
            f"{setting} names {key}, which no run has; such as accuracy, model, client.learning_rate."
        )


def as_lists(arguments: Sequence[str]) -> list[str]:
    """Return arguments of a command with those without a key and of directory=, folders, in one list, and all that where= gives in another.

    Hydra's grammar knows no < in a value, and takes the last of several.

    >>> as_lists(["runs/a", "where=model=cnn,epsilon<4", "directory=[b,c]", "output=json", "where=seed=1"])
    ['output=json', 'directory=[runs/a,b,c]', "where=['model=cnn','epsilon<4','seed=1']"]
    """
    if {"-h", "--help"} & set(arguments):
        return list(arguments)
    folders = [text for text in arguments if "=" not in text and not text.startswith("-")]
    given = [text for text in arguments if text.startswith("where=")]
    named = [text for text in arguments if text.startswith("directory=")] if folders else []
    conditions = [part for text in given for part in text.removeprefix("where=").strip("[]").split(",")]
    others = [text for text in arguments if text not in (*folders, *named, *given)]
    # Joined as text: Hydra reads both, and its errors are those of the command.
    places = ",".join([text_of(folders)[1:-1], *(text.partition("=")[2].strip("[]") for text in named)])
    return (
        others
        + [f"directory=[{places}]"] * bool(folders)
        + [f"where={text_of(conditions)}"] * bool(conditions)
    )
