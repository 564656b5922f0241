"""Cells of a table without types as numbers: what cannot be read as one becomes not a number, row by row.

What a cell means is said by the cell alone, a number or one of true and false: no user's cell changes what the other
users' cells mean.
"""

from typing import Any

import numpy as np

from client.imports import need

# As Arrow's parser of CSV has it, so that a column is the same numbers whichever of the two read it.
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def odd_row(column: Any, test: np.ndarray) -> int | None:
    """Return the first row of a column of texts that is neither a number, nor true or false, nor empty, or None.

    Of the rows where `test` [rows] is true. What stands there is not returned: it is somebody's, and errors are kept.
    """
    cells = _trimmed(column)
    odd = np.flatnonzero(test & ~(_are_numbers(cells) | _are_empty(cells)))
    return int(odd[0]) if len(odd) else None


def are_mostly_numbers(column: Any) -> bool:
    """Return whether more than half of the cells that are not empty are numbers, or true or false; or all are empty."""
    cells = _trimmed(column)
    held = ~_are_empty(cells)
    return bool(2 * (held & _are_numbers(cells)).sum() > held.sum() or not held.any())


def numbers_of(column: Any) -> np.ndarray:
    """Return float32 [rows] of a column of texts: numbers, 1 for true and 0 for false, NaN for all else."""
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    cells = _trimmed(column)
    known = compute.if_else(_is_number(cells), cells, arrow.scalar(None, cells.type))
    numbers: np.ndarray = known.cast(arrow.float32()).to_numpy()
    true, false = (_are_word(cells, word) for word in ("true", "false"))
    return np.where(true, np.float32(1), np.where(false, np.float32(0), numbers))


def _trimmed(column: Any) -> Any:
    """Return the cells of a column without blanks around them."""
    compute = need("pyarrow.compute", "Reading a table")
    return compute.fill_null(compute.utf8_trim(column, characters=" \t"), "")


def _is_number(cells: Any) -> Any:
    compute = need("pyarrow.compute", "Reading a table")
    return compute.match_substring_regex(cells, _NUMBER)


def _are_numbers(cells: Any) -> np.ndarray:
    """Return which cells [rows] are numbers, or true or false."""
    words = _are_word(cells, "true") | _are_word(cells, "false")
    numbers: np.ndarray = words | _is_number(cells).to_numpy()
    return numbers


def _are_word(cells: Any, word: str) -> np.ndarray:
    """Return which cells [rows] are a word, in capital letters or not."""
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    said: np.ndarray = compute.equal(compute.utf8_lower(cells), arrow.scalar(word, cells.type)).to_numpy()
    return said


def _are_empty(cells: Any) -> np.ndarray:
    """Return which cells [rows] CSV takes as empty: "", NA, nan and the like."""
    arrow, compute = need("pyarrow", "Reading a table"), need("pyarrow.compute", "Reading a table")
    csv = need("pyarrow.csv", "Reading a table")
    empty: np.ndarray = compute.is_in(
        cells, value_set=arrow.array(csv.ConvertOptions().null_values)
    ).to_numpy()
    return empty
