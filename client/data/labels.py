"""Labels of a table as class numbers: whole numbers from 0 as they are, names by a public list or in alphabetical order."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.data.checked import UNREADABLE, count_classes
from client.data.table import Table, is_integer, is_text, ranked
from fedmf.errors import DataError, SettingError

LEARNT_NAMES = (
    "The names of the classes were collected from all rows, those of the training users too: an uncovered release. "
    "Give a public list of them as labels."
)

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}(\.0*)?")


@dataclass(frozen=True)
class Labels:
    """Class numbers `y` int64 [rows] below `classes`; whether the names were `learnt` from all rows."""

    y: np.ndarray
    classes: int
    learnt: bool = False


def read_labels(
    table: Table,
    name: str,
    test: np.ndarray,
    classes: int | None,
    labels: Sequence[str] | None,
    *,
    clients_only: bool = False,
) -> Labels:
    """Return the labels in the column `name` of a table whose test rows are `test` [rows].

    Whole numbers are class numbers, unless `labels` lists the names of the classes, class 0 first. In a table without
    types they are such if most test rows hold whole numbers, whatever a training row holds. With `labels`, numbers in a
    column whose schema declares class names stand for these. Names without such a list
    are in alphabetical order: those of the test rows where `classes` says how many there are, else those of all rows,
    which are `learnt` then, whether or not training rows have more than test rows. The number of classes is `classes`,
    or what the schema, the list, the names or the test rows say. Raises `DataError` for a test row that has none of the
    classes; such a training row is `UNREADABLE`. With `clients_only`, which needs no test set, such a test row is
    `UNREADABLE` too, and most of all rows say whether labels are whole numbers. Of more names than `classes`, or without
    test rows, the commonest count then. So no row is a reason to refuse the others.
    """
    where = f"The column {name!r} of {table.path}"
    column = table.column(name, "label", may_be_empty=True)
    whole = is_integer(column.type)
    if not (whole or is_text(column.type)):
        raise DataError(f"{where} is {column.type}; it must hold whole numbers or names.")
    declared = table.class_names.get(name, ())
    _check_settings(where, classes, labels, declared)
    numbers, values = _ranked(column, strip=not table.typed)
    right = np.zeros_like(test) if clients_only else test  # the rows that must have one of the classes
    _refuse(right & (numbers < 0), where, "is empty, or not UTF-8,", "every one must have a label")
    tested = np.unique(numbers[test & (numbers >= 0)]).tolist()
    said = numbers if clients_only or not test.any() else numbers[test]
    if labels is None and not table.typed and _are_whole(values, said):
        strange = [number for number, value in enumerate(values) if not _WHOLE.fullmatch(value)]
        advice = "correct it as most of these rows have it, or list the names of all classes in labels"
        _refuse(right & np.isin(numbers, strange), where, "holds no whole number", advice)
        values = [int(value.partition(".")[0]) if _WHOLE.fullmatch(value) else UNREADABLE for value in values]
        whole = True
    if whole and labels is None:
        shown = [values[number] for number in tested]
        known = count_classes(
            table.path,
            f"A test row in the column {name!r} of {table.path}",
            shown,
            classes,
            len(declared) or None,
            clients_only=clients_only,
        )
        # Before they are an array: a training row may hold a number that no int64 is.
        counted = [value if 0 <= value < known else UNREADABLE for value in values]
        return Labels(np.array([*counted, UNREADABLE], dtype=np.int64)[numbers], known)
    if whole and declared:
        values = [declared[value] if 0 <= value < len(declared) else None for value in values]
    elif whole:
        values = [str(value) for value in values]
    learnt = labels is None and (classes is None or not tested)
    if labels is None:
        labels = _collected(numbers if learnt else numbers[test], values, classes if clients_only else None)
    elif not table.typed:
        labels = [label.strip() for label in labels]
    if not labels or len(set(labels)) != len(labels):
        raise SettingError(f"labels is {list(labels)}; it must list the name of each class once.")
    known = len(labels) if classes is None else classes
    if known < len(labels):
        raise SettingError(
            f"classes is {classes}, but there are {len(labels)} names; it must be at least as many."
        )
    place = {label: number for number, label in enumerate(labels)}
    y = np.array([*(place.get(value, UNREADABLE) for value in values), UNREADABLE], dtype=np.int64)[numbers]
    lacking = f", what labels=[{', '.join(labels)}] lacks"
    _refuse(right & (y == UNREADABLE), where, "holds", "add it there, or correct the row", lacking)
    return Labels(y, known, learnt)


def _refuse(rows: np.ndarray, where: str, what: str, advice: str, more: str = "") -> None:
    """Raise `DataError` where `rows` [rows] is true somewhere: the first such row, a test row, is what is wrong."""
    if rows.any():
        raise DataError(f"{where} {what} in row {int(np.argmax(rows)) + 1}, a test row{more}; {advice}.")


def _check_settings(
    where: str, classes: int | None, labels: Sequence[str] | None, declared: Sequence[str]
) -> None:
    """Raise `SettingError` for fewer `classes`, or other `labels`, than the schema has declared."""
    if classes is not None and classes < len(declared):
        raise SettingError(
            f"classes is {classes}, but {where[0].lower()}{where[1:]} declares {len(declared)} names of classes; "
            "it must be at least as many."
        )
    if labels is not None and (lost := [label for label in declared if label not in labels]):
        raise SettingError(
            f"labels is [{', '.join(labels)}], which lacks {lost[0]!r}; it must name all classes that "
            f"{where[0].lower()}{where[1:]} declares: {', '.join(declared)}."
        )


def _ranked(column: Any, *, strip: bool) -> tuple[np.ndarray, list[Any]]:
    """Return `ranked` of a column of labels; an empty cell is no name (-1), nor are blanks around one where `strip`."""
    numbers, values = ranked(column)
    if strip:
        values = [value.strip() for value in values]
    kept = sorted({value for value in values if value != ""})
    place = {value: number for number, value in enumerate(kept)}
    return np.array([*(place.get(value, -1) for value in values), -1], dtype=np.int64)[numbers], kept


def _are_whole(values: Sequence[str], numbers: np.ndarray) -> bool:
    """Say whether more than half of the labels `values[numbers]` are whole numbers, empty cells (-1) left out."""
    counts = np.bincount(numbers[numbers >= 0], minlength=len(values))
    whole = np.array([_WHOLE.fullmatch(value) is not None for value in values], dtype=bool)
    return bool(2 * counts[whole].sum() > counts.sum())


def _collected(numbers: np.ndarray, values: Sequence[str | None], most: int | None) -> list[str]:
    """Return the names among `values[numbers]` in alphabetical order, of more than `most` the commonest."""
    held, counts = np.unique(numbers[numbers >= 0], return_counts=True)
    found = Counter({str(values[number]): int(count) for number, count in zip(held, counts, strict=True)})
    return sorted(name for name, _ in found.most_common(most))
