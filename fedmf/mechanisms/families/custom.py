"""Custom families: a matrix, a function that makes one, or a `Family` value. Nothing is taken on trust.

`strategy_family` takes C and `noising_family` takes C^-1, each as a dense array or as a function of the workload; the
stream is then that of the dense matrix, which draws all earlier fresh rows of the epoch again in every round. A custom
`Family` returns any stream of this package, also one that keeps a state instead: a `RecurrentStream` takes whatever a state
of r rows can make. How far rounding moves the noise of these streams is proved; another class of stream is an error.

Privacy rests on the sensitivity, so sensitivity and errors are derived from the float32 tables that the stream deploys.

>>> from fedmf.mechanisms import design, prefix_sum
>>> def halving(workload):
...     return np.tril(0.5 ** np.subtract.outer(np.arange(workload.rounds), np.arange(workload.rounds)))
>>> round(design(strategy_family("halving", halving), prefix_sum(8)).sensitivity, 4)
1.1547
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from fedmf.errors import SettingError, one_line
from fedmf.mechanisms.families import Family
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import inverse
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Float64, Workload

Matrix = ArrayLike | Callable[[Workload], ArrayLike]

MOST_ROUNDS = 4096  # the matrix that a stream deploys is held as a dense one
CONDITION = 1e5  # up to which the column norms of C are computed to ten digits
STREAMS = (DenseStream, RecurrentStream, ToeplitzStream)  # of custom families


def strategy_family(name: str, matrix: Matrix) -> Family:
    """Return the family whose strategy matrix is C = `matrix`, (T, T) lower triangular, or `matrix(workload)`.

    `design` raises `SettingError` for a matrix that is not square, of the workload's T rounds, real, finite,
    lower triangular, invertible and well conditioned.
    """
    return Family(name, partial(_fit, name, matrix, is_noising=False), most_rounds=MOST_ROUNDS)


def noising_family(name: str, matrix: Matrix) -> Family:
    """Return the family whose noise is C^-1 z with C^-1 = `matrix`, (T, T), or `matrix(workload)`.

    Checked as in `strategy_family`.
    """
    return Family(name, partial(_fit, name, matrix, is_noising=True), most_rounds=MOST_ROUNDS)


def _fit(name: str, matrix: Matrix, workload: Workload, *, is_noising: bool) -> DenseStream:
    try:
        given = np.asarray(matrix(workload) if callable(matrix) else matrix)
    except (Exception, SystemExit) as error:  # of the user's function, or of rows of different lengths
        maker = f" by {getattr(matrix, '__qualname__', matrix)}" if callable(matrix) else ""
        raise SettingError(f"the matrix of {name} cannot be made{maker}: {one_line(error)}.") from error
    shape = (workload.rounds, workload.rounds)
    is_real = given.shape == shape and given.dtype.kind in "iuf" and bool(np.isfinite(given).all())
    if not is_real or np.triu(given, 1).any() or not np.diag(given).all():
        raise SettingError(
            f"the matrix of {name} has shape {given.shape} of {given.dtype}; it must have shape {shape}, for the rounds "
            "of an epoch, and hold real, finite numbers, 0 above the diagonal and not 0 on it."
        )
    given = given.astype(np.float64)
    check_condition(name, given)
    noising, limits = given if is_noising else np.tril(inverse(given)), np.finfo(np.float32)
    if np.abs(noising).max() > limits.max or np.abs(np.diag(noising)).min() < limits.tiny:
        raise SettingError(f"C^-1 of {name} leaves the range of float32; multiply the matrix by a constant.")
    return DenseStream(workload.rounds, noising)


def check_stream_of(family: Family, stream: object, workload: Workload) -> None:
    """Raise `SettingError` unless a custom `family` has fitted a stream of this package whose cost is known exactly.

    That is, the stream has the rounds of the `workload`, its matrix is well conditioned and its rounding is bounded.
    """
    name = family.name
    if not isinstance(stream, STREAMS) or type(stream) not in STREAMS:
        known = ", ".join(kind.__name__ for kind in STREAMS)
        raise SettingError(
            f"{name} streams by an object of type {type(stream).__name__}; it must be one of {known}, whose arithmetic is "
            "proved to keep the noise private."
        )
    if stream.rounds != workload.rounds or stream.rounds > MOST_ROUNDS:
        raise SettingError(
            f"the stream of {name} has {stream.rounds} rounds; it must have those of an epoch, {workload.rounds}, and at "
            f"most {MOST_ROUNDS}, as its dense matrix is checked."
        )
    check_condition(name, stream.materialize_noising())
    if not np.isfinite(stream.rounding()):
        raise SettingError(f"the state of {name} grows beyond all numbers; rounding in it cannot be bounded.")


def check_condition(name: str, matrix: Float64) -> None:
    """Raise `SettingError` where a lower triangular matrix determines too little of its inverse, in either order."""
    with np.errstate(over="ignore", invalid="ignore"):
        other = inverse(matrix)
        # The largest row sum of |left| |right|.
        pairs = ((np.abs(other), np.abs(matrix)), (np.abs(matrix), np.abs(other)))
        condition = max(float((left @ right.sum(axis=1)).max()) for left, right in pairs)
    if not condition <= CONDITION:
        raise SettingError(
            f"the matrix of {name} has condition number {condition:.2g}; it must have at most {CONDITION:.0e}, or its "
            "sensitivity cannot be computed exactly enough."
        )
