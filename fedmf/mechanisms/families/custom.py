"""Families of your own: a matrix, a function that makes one, or a `Family` value. Nothing is taken on trust.

`strategy_family` takes C and `noising_family` takes C^-1, each as a dense array or as a function of the
workload; the stream is then that of the dense matrix, which keeps every fresh row of an epoch. A `Family`
brings its own stream, which may keep fewer.

Privacy rests on the sensitivity, and noise is what the stream emits, whatever its author says. So `verified`
feeds the stream the identity: row t of what comes back is row t of the C^-1 that is deployed. From exactly
these float32 numbers come sensitivity and errors, and what the family claims must agree with them.

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
from fedmf.mechanisms.arrays import Float32, Float64, check_lower_triangular
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.streams import dense
from fedmf.mechanisms.streams.dense import DenseStream
from fedmf.mechanisms.streams.protocol import NoiseStream, StreamState
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.mechanisms.streams.toeplitz import ToeplitzStream
from fedmf.mechanisms.workload import Workload

Matrix = ArrayLike | Callable[[Workload], ArrayLike]

MOST_ROUNDS = 4096  # what a stream emits is held as a dense matrix
# Float32 arithmetic may move the noise by 2^-24 ||C| |C^-1||, relative to C: by less than TOLERANCE then.
CONDITION = 1e5
TOLERANCE = 1e-2  # relative to C: of what is claimed against what is emitted
FEW, WIDEST = 3, (1 << 16) + 9  # columns of random rows: the second is more than a block of any stream
MOST_NUMBERS = 1 << 24  # of the random rows of an epoch: long epochs are tried with fewer columns
COMPARED = 64  # columns that are looked at
DESCRIBED = (DenseStream, RecurrentStream, ToeplitzStream)  # their fields say what they compute


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
    """Return the factorization of a family of one's own, costed by what its stream emits.

    Never from the cache on disk: the code behind a name can change. Raises `SettingError` for a stream that
    does not do what streams promise, emits a matrix that is no invertible C^-1, or does not emit what the
    family claims: the dense matrices of its stream and the sensitivity of its fit.
    """
    if workload.rounds > MOST_ROUNDS:
        raise SettingError(
            f"rounds is {workload.rounds}; {family.name} is checked by the dense matrix that it emits, "
            f"so an epoch can have at most {MOST_ROUNDS} rounds."
        )
    begun = time.thread_time()
    fitted = family.fit(workload, **settings)
    _check_fitted(family.name, fitted)
    seconds = time.thread_time() - begun
    tables = fitted.tables.copy()  # whoever keeps the fitted ones cannot change the stream
    tables.flags.writeable = False
    stream = family.stream(workload.rounds, tables)
    _check_stream(family.name, stream, workload.rounds)
    emitted = _emit(family.name, stream, np.eye(workload.rounds, dtype=np.float32), donate=True)
    noising = emitted.astype(np.float64)
    check_lower_triangular(f"the matrix that the stream of {family.name} emits", noising)
    strategy = _inverse(noising)
    _check_condition(family.name, noising, strategy)
    sensitivity, per_round_error, left = dense.cost(noising, workload)
    _check_claims(family.name, stream, fitted.sensitivity, noising, strategy)
    _check_linear(family.name, stream, noising, strategy)
    unknown = None if type(stream) in DESCRIBED else emitted
    return Factorization(family.name, workload, sensitivity, per_round_error, left, stream, seconds, unknown)


def _check_fitted(name: str, fitted: object) -> None:
    if not isinstance(fitted, Fitted):
        raise SettingError(
            f"the fit of {name} returned an object of type {type(fitted).__name__}; it must return a fedmf.mechanisms.Fitted."
        )
    if not isinstance(fitted.tables, np.ndarray) or fitted.tables.dtype != np.float32:
        raise SettingError(f"the tables that {name} fitted must be a float32 array, as they are streamed.")


def _check_stream(name: str, stream: object, rounds: int) -> None:
    if not isinstance(stream, NoiseStream):
        raise SettingError(
            f"{name} streams by an object of type {type(stream).__name__}, which lacks a part of a "
            "fedmf.mechanisms.NoiseStream; it must have all of them."
        )
    if (stream.rounds, stream.fresh_rows) != (rounds, rounds):
        raise SettingError(
            f"the stream of {name} takes {stream.fresh_rows} fresh rows in {stream.rounds} rounds; "
            f"it must take one a round, {rounds}."
        )


def _emit(name: str, stream: NoiseStream, fresh: Float32, *, donate: bool) -> Float32:
    """Return the noise rows (T, d) for fresh rows (T, d), each step checked.

    Without `donate` every state is saved and loaded on the way, as between the rounds of a resumed run.
    """
    state = stream.init(fresh.shape[1])
    rows = np.empty(fresh.shape, dtype=np.float32)
    for step in range(len(fresh)):
        if not donate:
            state = StreamState.from_arrays(state.to_arrays())
        consumed = stream.rows_of(step)
        row, state = stream.next(fresh[consumed.start : consumed.stop], state, donate=donate)
        if row.dtype != np.float32 or row.shape != fresh.shape[1:]:
            raise SettingError(
                f"the stream of {name} emits {row.dtype} of shape {row.shape}; "
                f"it must emit float32 rows of shape {fresh.shape[1:]}."
            )
        if not isinstance(state, StreamState) or state.step != step + 1:
            raise SettingError(
                f"the stream of {name} does not return the StreamState of step {step + 1} after step {step}."
            )
        rows[step] = row
    return rows


def _inverse(matrix: Float64) -> Float64:
    """Return the inverse; not finite where the numbers run out, which `_check_condition` then refuses."""
    with np.errstate(over="ignore", invalid="ignore"):
        return dense.inverse(matrix)


def _check_condition(name: str, noising: Float64, strategy: Float64) -> None:
    """Raise `SettingError` where float32 arithmetic would not keep the noise; for either order of the two."""
    with np.errstate(over="ignore", invalid="ignore"):
        condition = max(_row_sums(strategy, noising), _row_sums(noising, strategy))
    if not condition <= CONDITION:
        raise SettingError(
            f"the matrix of {name} has condition number {condition:.2g}; noise in float32 needs at most "
            f"{CONDITION:.0e}."
        )


def _row_sums(left: Float64, right: Float64) -> float:
    """Return the largest row sum of |left| |right|."""
    return float((np.abs(left) @ np.abs(right).sum(axis=1)).max())


def _check_range(name: str, noising: Float64) -> None:
    """Raise `SettingError` where rounding to float32 would lose the matrix altogether."""
    limits = np.finfo(np.float32)
    if np.abs(noising).max() > limits.max or np.abs(np.diag(noising)).min() < limits.tiny:
        raise SettingError(f"C^-1 of {name} leaves the range of float32; multiply the matrix by a constant.")


def _check_claims(
    name: str, stream: NoiseStream, sensitivity: float, noising: Float64, strategy: Float64
) -> None:
    """Raise `SettingError` unless the stream's dense matrices and the fit's sensitivity are those emitted."""
    claimed, inverse = stream.materialize_noising(), stream.materialize_strategy()
    if claimed.shape != noising.shape or not _row_sums(strategy, claimed - noising) <= TOLERANCE:
        raise SettingError(
            f"the stream of {name} does not emit the C^-1 that its materialize_noising returns; "
            "noise of another covariance would be added than is accounted."
        )
    if inverse.shape != strategy.shape or not _row_sums(noising, inverse - strategy) <= TOLERANCE:
        raise SettingError(
            f"the C that materialize_strategy of {name} returns is not the inverse of what its stream emits."
        )
    computed = float(np.linalg.norm(strategy, axis=0).max())
    if not abs(sensitivity - computed) <= TOLERANCE * computed:
        raise SettingError(
            f"the fit of {name} says that its sensitivity is {sensitivity:.6g}; the largest column norm of "
            f"the C that its stream deploys is {computed:.6g}."
        )


def _check_linear(name: str, stream: NoiseStream, noising: Float64, strategy: Float64) -> None:
    """Raise `SettingError` unless random rows, few and as many as a model's, meet the matrix of the identity."""
    rounds = len(noising)
    for width in (FEW, min(WIDEST, max(MOST_NUMBERS // rounds, rounds + 1))):
        fresh = np.random.default_rng(width).standard_normal((rounds, width), dtype=np.float32)
        rows = _emit(name, stream, fresh.copy(), donate=False)
        seen = np.unique(np.linspace(0, width - 1, COMPARED).astype(int))  # both ends among them
        difference = strategy @ (rows[:, seen] - noising @ fresh[:, seen])
        if not np.abs(difference).max() <= TOLERANCE:
            raise SettingError(
                f"the stream of {name} does not emit the same matrix times its fresh rows each time; "
                "it must be linear and hold all that changes in its state."
            )
