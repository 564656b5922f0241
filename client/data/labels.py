"""Labels as class numbers: whole numbers from 0 as they are, names by a public list or in alphabetical order."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.data.checked import MOST_CLASSES, NO_CLASSES, UNREADABLE, count_classes
from client.data.table import Table, is_text, plain, ranked
from client.imports import need
from fedmf.checks import check_at_least
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

    Whole numbers are class numbers, unless `labels` lists the names of the classes, class 0 first; in a table without
    types they are such if most test rows hold whole numbers, whatever a training row holds. With `labels`, numbers in a
    column whose schema declares class names stand for these. Names without such a list
    are in alphabetical order: those of the test rows where `classes` says how many there are, else those of all rows,
    which are `learnt` then, whether or not training rows have more than test rows. The number of classes is `classes`,
    or what the schema, the list, the names or the test rows say. Raises `DataError` for a test row that has none of the
    classes; such a training row is `UNREADABLE`. With `clients_only`, which needs no test set, such a test row is too, most
    of all rows say whether labels are whole numbers, and of more names than `classes`, or without test rows, the
    commonest count: then no row is a reason to refuse the others.
    """
    types = need("pyarrow.types", f"Reading {table.path}")
    column = plain(table.column(name, "label", may_be_empty=True))
    whole = types.is_integer(column.type)
    if not (whole or is_text(column.type)):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; it must hold whole numbers or names."
        )
    declared = table.class_names.get(name, ())
    if classes is not None:
        check_at_least("classes", classes, 1)
        if classes < len(declared):
            raise SettingError(
                f"classes is {classes}, but the column {name!r} of {table.path} declares {len(declared)} names of classes; "
                "it must be at least as many."
            )
    _refuse_lost(table, name, labels, declared)
    numbers, values = _ranked(column, strip=not table.typed)
    if (numbers[test] < 0).any() and not clients_only:
        raise DataError(
            f"The column {name!r} of {table.path} is empty in a test row, or not UTF-8 there, in row "
            f"{_first(test & (numbers < 0))}; every one must have a label."
        )
    tested = sorted({*numbers[test].tolist()} - {-1})
    said = numbers if clients_only or not test.any() else numbers[test]
    if labels is None and not table.typed and _are_whole(values, said):
        odd = [number for number in tested if not _WHOLE.fullmatch(values[number])]
        values = [int(value.partition(".")[0]) if _WHOLE.fullmatch(value) else UNREADABLE for value in values]
        whole, strange = True, test & np.isin(numbers, odd)
        if strange.any() and not clients_only:
            raise DataError(
                f"The column {name!r} of {table.path} holds no whole number in row {_first(strange)}, a test row, as most "
                "of these do; correct it, or list the names of all classes in labels."
            )
    if whole and labels is None:
        return _whole(table, name, numbers, values, tested, classes, clients_only=clients_only)
    if labels is not None and not table.typed:
        labels = [label.strip() for label in labels]
    names = [str(value) for value in values]
    if whole and declared:
        names = [declared[value] if 0 <= value < len(declared) else value for value in values]
    learnt = labels is None and (classes is None or not tested)
    if labels is None:
        labels = _collected(numbers if learnt else numbers[test], names, classes, clients_only=clients_only)
    y, known = _named(table, name, numbers, names, test, classes, labels, clients_only=clients_only)
    return Labels(y, known, learnt)


def _ranked(column: Any, *, strip: bool) -> tuple[np.ndarray, list[Any]]:
    """Return `ranked` of a column of labels; an empty cell is no name (-1), nor are blanks around one where `strip`."""
    numbers, values = ranked(column)
    if strip:
        values = [value.strip() for value in values]
    kept = sorted({value for value in values if value != ""})
    place = {value: number for number, value in enumerate(kept)}
    return np.array([*(place.get(value, -1) for value in values), -1], dtype=np.int64)[numbers], kept


def _first(rows: np.ndarray) -> int:
    """Return the number of the first row, from 1, of which `rows` [rows] is true."""
    return int(np.argmax(rows)) + 1


def _are_whole(values: Sequence[str], numbers: np.ndarray) -> bool:
    """Say whether more than half of the labels `values[numbers]` are whole numbers, empty cells (-1) left out."""
    counts = np.bincount(numbers[numbers >= 0], minlength=len(values))
    whole = sum(int(count) for value, count in zip(values, counts, strict=True) if _WHOLE.fullmatch(value))
    return 2 * whole > int(counts.sum())


def _whole(
    table: Table,
    name: str,
    numbers: np.ndarray,
    values: Sequence[int],
    tested: Sequence[int],
    classes: int | None,
    *,
    clients_only: bool,
) -> Labels:
    """Return the labels `values[numbers]`, whole numbers from 0; `tested` are the numbers of those in test rows."""
    declared = len(table.class_names.get(name, ())) or None
    shown = [values[number] for number in tested]
    if clients_only:  # what would be refused in a test set
        shown = [label for label in shown if 0 <= label < MOST_CLASSES]
    who = f"A test row in the column {name!r} of {table.path}"
    if clients_only and (classes or declared):
        known = classes or declared or 0
    elif not shown:
        raise DataError(NO_CLASSES.format(table.path))
    else:
        known = count_classes(who, min(shown), max(shown), classes, declared)
    # Before they are an array: a training row may hold a number that no int64 is.
    counted = [value if 0 <= value < known else UNREADABLE for value in values]
    return Labels(np.array([*counted, UNREADABLE], dtype=np.int64)[numbers], known)


def _refuse_lost(table: Table, name: str, labels: Sequence[str] | None, declared: Sequence[str]) -> None:
    """Raise `SettingError` for a list of `labels` that lacks a class which the schema has declared."""
    if labels is not None and (lost := [label for label in declared if label not in labels]):
        raise SettingError(
            f"labels is [{', '.join(labels)}], which lacks {lost[0]!r}; it must name all classes that the column {name!r} "
            f"of {table.path} declares: {', '.join(declared)}."
        )


def _collected(
    numbers: np.ndarray, values: Sequence[str | int], classes: int | None, *, clients_only: bool
) -> list[str]:
    """Return the names among `values[numbers]` in alphabetical order; with `clients_only` the commonest `classes` of them."""
    held, counts = np.unique(numbers[numbers >= 0], return_counts=True)
    found = Counter({str(values[number]): int(count) for number, count in zip(held, counts, strict=True)})
    return sorted(name for name, _ in found.most_common(classes if clients_only else None))


def _named(
    table: Table,
    name: str,
    numbers: np.ndarray,
    values: Sequence[str | int],
    test: np.ndarray,
    classes: int | None,
    labels: Sequence[str],
    *,
    clients_only: bool,
) -> tuple[np.ndarray, int]:
    """Return (y, classes) of the labels whose names are `values[numbers]`; a number is the name of no class."""
    if not labels or len(set(labels)) != len(labels):
        raise SettingError(f"labels is {list(labels)}; it must list the name of each class once.")
    known = len(labels) if classes is None else classes
    if known < len(labels):
        raise SettingError(
            f"classes is {classes}, but there are {len(labels)} names; it must be at least as many."
        )
    place: dict[str | int, int] = {label: number for number, label in enumerate(labels)}
    y = np.array([place.get(value, UNREADABLE) for value in values] + [UNREADABLE], dtype=np.int64)[numbers]
    strange = test & (y == UNREADABLE)
    if strange.any() and not clients_only:
        raise DataError(
            f"The column {name!r} of {table.path} holds in row {_first(strange)}, a test row, what "
            f"labels=[{', '.join(labels)}] lacks; add it there, or correct the row."
        )
    return y, known
