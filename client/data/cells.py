"""Cells of a table without types as numbers: what cannot be read as one becomes not a number, row by row.

Whether a column holds numbers, and of which kind, is said by its test rows alone: one training user's cell must neither
decide whether there is a run nor change what the other users' cells mean.
"""

from typing import Any

import numpy as np

from client.imports import need

# As Arrow's parser of CSV has it, so that a column is the same numbers whichever of the two read it.
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_TRUE, _FALSE = ("true", "1"), ("false", "0")


def odd_cell(column: Any, test: np.ndarray) -> str | None:
    """Return a cell of the test rows that is neither a number nor empty, or None; true and false are numbers if all are."""
    cells = _trimmed(column, test)
    if _is_boolean(cells):
        return None
    compute = need("pyarrow.compute", "Reading a table")
    odd = cells.filter(compute.invert(compute.or_(_is_number(cells), _is_empty(cells))))
    return str(odd[0]) if len(odd) else None


def numbers_of(column: Any, test: np.ndarray) -> np.ndarray:
    """Return float32 [rows] of a column of texts; what is no number, or no true or false among such, is NaN.

    Whether it is one of true and false say the rows where `test` [rows] is true, or most rows where there are none such.
    """
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    cells = _trimmed(column)
    if _is_boolean(_trimmed(column, test)) if test.any() else _is_mostly_boolean(cells):
        lower = compute.utf8_lower(cells)
        true, false = (compute.is_in(lower, value_set=arrow.array(words)) for words in (_TRUE, _FALSE))
        return np.where(true.to_numpy(), 1, np.where(false.to_numpy(), 0, np.nan)).astype(np.float32)
    known = compute.if_else(_is_number(cells), cells, arrow.scalar(None, cells.type))
    numbers: np.ndarray = known.cast(arrow.float32()).to_numpy()
    return numbers


def _trimmed(column: Any, rows: np.ndarray | None = None) -> Any:
    """Return the cells of a column, of `rows` alone if given, without blanks around them."""
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    cells = column if rows is None else column.filter(arrow.array(rows))
    return compute.fill_null(compute.utf8_trim(cells, characters=" \t"), "")


def _is_number(cells: Any) -> Any:
    compute = need("pyarrow.compute", "Reading a table")
    return compute.match_substring_regex(cells, _NUMBER)


def _is_empty(cells: Any) -> Any:
    """Return which cells CSV takes as empty: "", NA, nan and the like."""
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    csv = need("pyarrow.csv", "Reading a table")
    return compute.is_in(cells, value_set=arrow.array(csv.ConvertOptions().null_values))


def _is_boolean(cells: Any) -> bool:
    """Return whether all cells that are not empty are true or false, and not all of these 1 or 0."""
    compute = need("pyarrow.compute", "Reading a table")
    held = compute.utf8_lower(cells.filter(compute.invert(_is_empty(cells)))).unique().to_pylist()
    return set(held) <= {*_TRUE, *_FALSE} and bool({"true", "false"} & set(held))


def _is_mostly_boolean(cells: Any) -> bool:
    """Return whether more than half of the cells that are not empty are the words true or false."""
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    held = compute.utf8_lower(cells.filter(compute.invert(_is_empty(cells))))
    said = compute.sum(compute.is_in(held, value_set=arrow.array(["true", "false"]))).as_py() or 0
    return bool(2 * said > len(held))
