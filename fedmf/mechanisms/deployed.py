"""What is deployed of a factorization: its family and one float32 array, from which all else follows again.

A run that goes on in another process must go on with the tables that its epoch began with: rows of one matrix before
and of another after would have a larger sensitivity than either. Tables that were kept are therefore deployed again as
they are, and sensitivity and errors computed from them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmf.errors import DataError
from fedmf.mechanisms.arrays import Float32
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families.protocol import Deploy
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import dense, recurrence, toeplitz, tree
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.streams.tree import TreeStream
from fedmf.mechanisms.workload import Workload


@dataclass(frozen=True)
class Kind:
    """A stream by what it is made from: the field that holds its tables, their axes, and how they are costed."""

    field: str
    axes: int
    make: Deploy
    rounded_with_cost: Callable[[Any, Workload], Fitted]


KINDS: Mapping[type, Kind] = {
    RecurrentStream: Kind("tables", 3, RecurrentStream, recurrence.rounded_with_cost),
    ToeplitzStream: Kind("coefs", 1, ToeplitzStream, toeplitz.rounded_with_cost),
    TreeStream: Kind("weights", 1, TreeStream, tree.rounded_with_cost),
    DenseStream: Kind("noising", 2, DenseStream, dense.rounded_with_cost),
}


def tables_of(mechanism: Factorization) -> Float32:
    """Return the array from which the stream is made."""
    return np.asarray(getattr(mechanism.stream, KINDS[type(mechanism.stream)].field), dtype=np.float32)


def with_tables(mechanism: Factorization, tables: Float32) -> Factorization:
    """Return `mechanism` with other tables of its kind, costed anew on its workload.

    Raises `DataError` for tables that its kind of stream cannot have or that make no finite noise.
    """
    current = tables_of(mechanism)
    if tables.ndim != current.ndim or tables.dtype != np.float32:
        raise DataError(
            f"tables of shape {tables.shape} and type {tables.dtype} are none of {mechanism.family}."
        )
    kind = KINDS[type(mechanism.stream)]
    try:
        with np.errstate(all="ignore"):
            fitted = kind.rounded_with_cost(tables, mechanism.workload)
    except (ValueError, IndexError, ArithmeticError, np.linalg.LinAlgError) as error:
        raise DataError(f"tables of shape {tables.shape} are none of {mechanism.family}: {error}.") from error
    if (
        fitted.left is None
        or not np.isfinite([fitted.sensitivity, fitted.left.sum(), *fitted.per_round_error]).all()
    ):
        raise DataError(
            f"tables of shape {tables.shape} make no finite noise; they are none of {mechanism.family}."
        )
    return replace(
        mechanism,
        sensitivity=fitted.sensitivity,
        per_round_error=fitted.per_round_error,
        left=fitted.left,
        stream=kind.make(mechanism.rounds, fitted.tables),
    )
