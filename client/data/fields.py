"""What every example of TFF's files holds: names of columns, their types and the shape of one value."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from client.data.reading import reading
from fedmf.errors import DataError

FLOATS, INTEGERS, TEXTS = "f", "iu", "SO"


@dataclass(frozen=True)
class Field:
    """One column: `kinds` are numpy's letters for the types that it may have, `shape` that of one value."""

    kinds: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Say what it holds."""
        name = {FLOATS: "floats", INTEGERS: "integers", TEXTS: "texts"}[self.kinds]
        return f"{name} {list(self.shape)}" if self.shape else name


Fields = Mapping[str, Field]


def check_group(group: Any, fields: Fields, who: str) -> int:
    """Return how many examples a user's HDF5 group holds; raise `DataError` for other types or shapes than `fields`.

    Nothing but what the file says of its columns is read: the rows of the first field are counted. That the others
    have as many is seen when the user is.
    """
    counts = []
    for name, field in fields.items():
        column = group.get(name) if hasattr(group, "keys") else None
        if column is None or not hasattr(column, "dtype"):
            held = ", ".join(group) if hasattr(group, "keys") else "no columns"
            raise DataError(
                f"{who} lacks {name}; it holds {held or 'nothing'} and must hold {', '.join(fields)}."
            )
        if column.dtype.kind not in field.kinds or column.shape is None or column.shape[1:] != field.shape:
            raise DataError(
                f"{who} holds {name} as {column.dtype} {column.shape}; it must be {field}, one for each."
            )
        if not column.shape:
            raise DataError(
                f"{who} holds one {name} instead of a column; it must be {field}, one for each example."
            )
        counts.append(column.shape[0])
    return int(counts[0])


def numbers(columns: Mapping[str, Any], name: str, field: Field) -> np.ndarray:
    """Return a column of numbers as [n, *shape]; raise `DataError` for one that is not `field`."""
    values = np.asarray(_present(columns, name))
    if values.dtype.kind not in field.kinds or prod(values.shape[1:]) != prod(field.shape):
        raise DataError(
            f"A stored example holds {name} as {values.dtype} {values.shape[1:]}; it must be {field}."
        )
    return values.reshape(-1, *field.shape)


def texts(columns: Mapping[str, Any], name: str, encoding: str = "utf-8") -> list[str]:
    """Return a column of texts; raise `DataError` for one that holds something else."""
    values = _present(columns, name)
    if not all(isinstance(value, bytes) for value in values):
        raise DataError(f"A stored example holds a {name} that is no text; it must be bytes of UTF-8.")
    with reading(f"A stored {name}", "UTF-8"):
        return [value.decode(encoding) for value in values]


def _present(columns: Mapping[str, Any], name: str) -> Any:
    """Return a column that must be there."""
    if name not in columns:
        raise DataError(f"A stored example lacks {name}; it holds {', '.join(columns) or 'nothing'}.")
    return columns[name]
