"""Inputs that stay as they are stored until a client takes its turn: an array as far as `ArrayClients` needs one."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.data.table import Table, is_list, is_number, storage
from client.imports import need
from fedmf.errors import DataError

_SHOWN = 25  # rows that say the shape of all


class Rows(ABC):
    """Inputs [n, ...] of which `rows[numbers]` makes some; a subclass has their `shape`.

    One that cannot be made raises `DataError`, which concerns its client alone.
    """

    dtype = np.dtype(object)  # not comparable as stored: clients are identified by what is made of them
    shape: tuple[int, ...]

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the inputs `rows`, as an array [len(rows), ...]."""

    def __len__(self) -> int:
        """Return the number of inputs."""
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the inputs `rows`."""
        return self.take(np.arange(len(self))[rows] if isinstance(rows, slice) else rows)


@dataclass(frozen=True)
class Lists(Rows):
    """A column of lists of numbers, nested or not; `starts` [chunks + 1] says where each chunk of it begins."""

    table: Table
    name: str
    column: Any
    starts: np.ndarray
    shape: tuple[int, ...]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the lists `rows` in the type of their numbers, or raise `DataError` for one of another shape."""
        chunks = np.searchsorted(self.starts, rows, side="right") - 1
        parts = []
        for place in np.flatnonzero(np.diff(chunks, prepend=-1)):  # where another chunk begins
            stop = place + np.argmax(np.append(chunks[place:], -1) != chunks[place])
            parts.append(self._taken(int(chunks[place]), rows[place:stop]))
        return np.concatenate(parts) if parts else np.empty((0, *self.shape[1:]), dtype=np.float32)

    def _taken(self, chunk: int, rows: np.ndarray) -> np.ndarray:
        """Return rows of one chunk."""
        arrow = need("pyarrow", f"Reading {self.table.path}")
        held = self.column.chunk(chunk)
        values = getattr(held, "storage", held).take(arrow.array(rows - self.starts[chunk]))
        for size in self.shape[1:]:
            if not is_list(values.type) or values.null_count or not _have_length(values, size):
                raise DataError(
                    f"A list in {self.name!r} of {self.table.path} is not of the shape {list(self.shape[1:])}; all must be."
                )
            values = values.flatten()
        if not is_number(values.type) or values.null_count:
            raise DataError(f"A list in {self.name!r} of {self.table.path} holds what is no number.")
        made: np.ndarray = values.to_numpy(zero_copy_only=False).reshape(len(rows), *self.shape[1:])
        return made


def shape_of_all(shape_of: Callable[[int], tuple[int, ...]], shown: np.ndarray) -> tuple[int, ...]:
    """Return the shape that inputs have: the commonest of up to 25 rows spread over those where `shown` [rows] is true.

    No single row decides so. One that cannot be read is left out; where none of them can, what `shape_of(row)` raises for the
    first of them is raised.
    """
    held = np.flatnonzero(shown)
    rows = held[np.unique(np.linspace(0, len(held) - 1, _SHOWN).astype(int))].tolist()
    shapes: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        with suppress(DataError):  # its client's mistake alone
            shapes[shape_of(row)] += 1
    return shapes.most_common(1)[0][0] if shapes else shape_of(rows[0])


def lists(table: Table, name: str, key: str, shown: np.ndarray) -> Lists:
    """Return a column of lists; `shown` [rows] says which rows show the shape of all, see `shape_of_all`."""
    column = table.column(name, key, may_be_empty=True)
    if not is_list(storage(column.type)):
        raise DataError(
            f"The column {name!r} of {table.path} is {column.type}; {key} must name lists of numbers."
        )

    def shape_of(row: int) -> tuple[int, ...]:
        first, shape = column[row].as_py(), []
        while isinstance(first, list):
            shape.append(len(first))
            first = first[0] if first else None
        return tuple(shape)

    shape = shape_of_all(shape_of, shown)
    starts = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
    return Lists(table, name, column, starts[:-1] if len(starts) > 1 else starts, (table.rows, *shape))


def _have_length(values: Any, size: int) -> bool:
    """Return whether all lists of an Arrow array have `size` entries."""
    fixed = getattr(values.type, "list_size", None)
    return bool(fixed == size if fixed is not None else (np.diff(values.offsets.to_numpy()) == size).all())
