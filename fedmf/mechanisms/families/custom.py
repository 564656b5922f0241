"""Families of your own: a matrix, a function that makes one, or a `Family` value. Nothing is taken on trust.

`strategy_family` takes C and `noising_family` takes C^-1, each as a dense array or as a function of the
workload; the stream is then that of the dense matrix, which keeps every fresh row of an epoch. A `Family`
brings tables and the stream of this package that they are for, which may keep fewer: a `RecurrentStream` takes whatever
a state of r rows can make. How far rounding moves the noise of these streams is proved; a step of one's own is refused.

Privacy rests on the sensitivity, and noise is what the stream deploys, whatever its author says: from its float32
tables come sensitivity and errors, and the sensitivity that the family claims must agree with them.

>>> from fedmf.mechanisms import design, prefix_sum
>>> def halving(workload):
...     return np.tril(0.5 ** np.subtract.outer(np.arange(workload.rounds), np.arange(workload.rounds)))
>>> round(design(strategy_family("halving", halving), prefix_sum(8)).sensitivity, 4)
1.1547
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64, check_lower_triangular
from fedmf.mechanisms.deployed import KINDS
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import dense
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Workload

Matrix = ArrayLike | Callable[[Workload], ArrayLike]

MOST_ROUNDS = 4096  # the matrix that a stream deploys is held as a dense one
CONDITION = 1e5  # up to which the column norms of C are computed to ten digits
TOLERANCE = 1e-2  # relative: of the sensitivity that is claimed against the one deployed
STREAMS = (DenseStream, RecurrentStream, ToeplitzStream)  # of a family of one's own


def strategy_family(name: str, matrix: Matrix) -> Family:
    """Return the family whose strategy matrix is C = `matrix`, (T, T) lower triangular, or `matrix(workload)`.

    `design` raises `SettingError` for a matrix that is not square, of the workload's T rounds, real, finite,
    lower triangular, invertible and well conditioned.
    """
    return Family(name, partial(_fit, name, matrix, dense.inverse), DenseStream, most_rounds=MOST_ROUNDS)


def noising_family(name: str, matrix: Matrix) -> Family:
    """Return the family whose noise is C^-1 z with C^-1 = `matrix`, (T, T), or `matrix(workload)`.

    Checked as in `strategy_family`.
    """
    return Family(name, partial(_fit, name, matrix, np.asarray), DenseStream, most_rounds=MOST_ROUNDS)


def _fit(name: str, matrix: Matrix, to_noising: Callable[[Float64], Float64], workload: Workload) -> Fitted:
    """Return the dense C^-1, rounded to float32, with its cost."""
    given = _as_float64(name, matrix(workload) if callable(matrix) else matrix)
    check_lower_triangular(f"the matrix of {name}", given)
    if len(given) != workload.rounds:
        raise SettingError(
            f"the matrix of {name} has {len(given)} rows; an epoch has {workload.rounds} rounds, "
            "so it must have as many."
        )
    _check_condition(name, given, _inverse(given))
    noising = to_noising(given)
    _check_range(name, noising)
    return dense.rounded_with_cost(noising, workload)


def _as_float64(name: str, given: ArrayLike) -> Float64:
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise SettingError(
            f"the matrix of {name} is no array ({error}); its rows must be of one length."
        ) from error
    if array.dtype.kind not in "iuf":
        raise SettingError(f"the matrix of {name} holds {array.dtype}; it must hold real numbers.")
    return array.astype(np.float64)


def verified(family: Family, workload: Workload, settings: Mapping[str, int | None]) -> Factorization:
    """Return the factorization of a family of one's own, costed by the matrix that its stream deploys.

    Never from the cache on disk: the code behind a name can change. Raises `SettingError` for a stream of another kind
    than the package's, whose rounding nobody has bounded; for a matrix that is no invertible C^-1; and for a fit whose
    sensitivity is not that of its stream.
    """
    if workload.rounds > MOST_ROUNDS:
        raise SettingError(
            f"rounds is {workload.rounds}; {family.name} is checked by its dense matrix, so an epoch can have at most "
            f"{MOST_ROUNDS} rounds."
        )
    begun = time.thread_time()
    fitted = family.fit(workload, **settings)
    _check_fitted(family.name, fitted)
    seconds = time.thread_time() - begun
    stream = _own_copy(family.name, family.stream(workload.rounds, fitted.tables), workload.rounds)
    noising = stream.materialize_noising()
    check_lower_triangular(f"the C^-1 that the stream of {family.name} deploys", noising)
    strategy = _inverse(noising)
    _check_condition(family.name, noising, strategy)
    sensitivity, per_round_error, left = dense.cost(noising, workload)
    if not abs(fitted.sensitivity - sensitivity) <= TOLERANCE * sensitivity:
        raise SettingError(
            f"the fit of {family.name} says that its sensitivity is {fitted.sensitivity:.6g}; the largest column norm of "
            f"the C that its stream deploys is {sensitivity:.6g}."
        )
    mechanism = Factorization(family.name, workload, sensitivity, per_round_error, left, stream, seconds)
    if not np.isfinite(mechanism.precision).all():
        raise SettingError(
            f"the state of {family.name} grows beyond all numbers; rounding in it cannot be bounded."
        )
    return mechanism


def _check_fitted(name: str, fitted: object) -> None:
    if not isinstance(fitted, Fitted):
        raise SettingError(
            f"the fit of {name} returned an object of type {type(fitted).__name__}; it must return a fedmf.mechanisms.Fitted."
        )
    if not isinstance(fitted.sensitivity, float | int | np.floating):
        raise SettingError(
            f"the sensitivity that {name} fitted is {fitted.sensitivity!r}; it must be a number."
        )
    if not isinstance(fitted.tables, np.ndarray) or fitted.tables.dtype != np.float32:
        raise SettingError(f"the tables that {name} fitted must be a float32 array, as they are streamed.")


def _own_copy(name: str, stream: object, rounds: int) -> NoiseStream:
    """Return the stream with tables that nobody else can change."""
    if type(stream) not in STREAMS:
        known = ", ".join(kind.__name__ for kind in STREAMS)
        raise SettingError(
            f"{name} streams by an object of type {type(stream).__name__}; it must be one of {known}, whose arithmetic is "
            "proved to keep the noise private."
        )
    kind = KINDS[type(stream)]
    tables = getattr(stream, kind.field)
    if not isinstance(tables, np.ndarray) or tables.dtype != np.float32:
        raise SettingError(f"the stream of {name} must hold its tables as a float32 array.")
    is_square = tables.ndim < 2 or tables.shape[-1] == tables.shape[-2] > tables.ndim - 2
    if tables.ndim != kind.axes or not tables.size or not is_square:
        raise SettingError(
            f"the tables of {name} have shape {tables.shape}, which a {type(stream).__name__} cannot have."
        )
    if type(stream) is ToeplitzStream and tables[0] != 1:
        raise SettingError(
            f"the first coefficient of {name} is {tables[0]:g}; a ToeplitzStream takes it to be 1."
        )
    tables = np.array(tables, copy=True, subok=False)
    tables.flags.writeable = False
    return kind.make(rounds, tables)


def _inverse(matrix: Float64) -> Float64:
    """Return the inverse; not finite where the numbers run out, which `_check_condition` then refuses."""
    with np.errstate(over="ignore", invalid="ignore"):
        return dense.inverse(matrix)


def _check_condition(name: str, noising: Float64, strategy: Float64) -> None:
    """Raise `SettingError` where C^-1 as deployed tells too little of C; for either order of the two."""
    with np.errstate(over="ignore", invalid="ignore"):
        condition = max(_row_sums(strategy, noising), _row_sums(noising, strategy))
    if not condition <= CONDITION:
        raise SettingError(
            f"the matrix of {name} has condition number {condition:.2g}; it must have at most {CONDITION:.0e}, or its "
            "sensitivity cannot be computed exactly enough."
        )


def _row_sums(left: Float64, right: Float64) -> float:
    """Return the largest row sum of |left| |right|."""
    return float((np.abs(left) @ np.abs(right).sum(axis=1)).max())


def _check_range(name: str, noising: Float64) -> None:
    """Raise `SettingError` where rounding to float32 would lose the matrix altogether."""
    limits = np.finfo(np.float32)
    if np.abs(noising).max() > limits.max or np.abs(np.diag(noising)).min() < limits.tiny:
        raise SettingError(f"C^-1 of {name} leaves the range of float32; multiply the matrix by a constant.")
