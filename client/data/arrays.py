"""Rows of a big array in the form that a model takes, made when they are asked for: a test set too big to be held."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

HELD = 1 << 26
"""Bytes of converted inputs, or targets, up to which they are made once and held; more are made batch by batch."""

_AT_ONCE = 1 << 24  # bytes that are looked at together


@dataclass(frozen=True, eq=False)
class Converted:
    """`convert(stored[rows])` as far as a test set needs an array: slices and rows by number are arrays.

    `stored` may be mapped, or decode its rows itself (`client.data.pictures`).
    """

    stored: Any
    rows: np.ndarray
    convert: Callable[[np.ndarray], np.ndarray]

    @cached_property
    def _first(self) -> np.ndarray:
        return self.convert(self.stored[self.rows[:1]])

    @property
    def dtype(self) -> np.dtype:
        """Return the type after conversion."""
        return self._first.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape after conversion."""
        return (len(self.rows), *self._first.shape[1:])

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows after conversion."""
        return len(self.rows) * self._first.nbytes

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> np.ndarray:
        """Return rows by a slice or an array of numbers or truth values."""
        made: np.ndarray = self.convert(self.stored[self.rows[chosen]])
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all rows in memory."""
        return np.asarray(self[:], dtype=dtype)


def converted(stored: Any, rows: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return `convert(stored[rows])`: in memory where that is small, else as `Converted`, which serves as an array."""
    array = Converted(stored, rows, convert)
    if len(rows) == 0 or array.nbytes <= HELD:
        return array[:]
    return cast(np.ndarray, array)


def is_array(value: object) -> bool:
    """Say whether `value` is an array, or serves as one."""
    return isinstance(value, np.ndarray | Converted)


def take(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the rows `rows` of an array; of a `Converted` one nothing is made yet where they are many."""
    if isinstance(array, Converted):
        return converted(array.stored, array.rows[rows], array.convert)
    chosen: np.ndarray = array[rows]
    return chosen


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield all rows of an array [n, ...], some at a time, so that no copy of all is made."""
    at_once = max(1, _AT_ONCE // max(1, array[:1].nbytes))
    for start in range(0, len(array), at_once):
        yield array[start : start + at_once]
