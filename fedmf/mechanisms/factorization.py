"""A factorization A = B C of a workload, with what it costs and the stream that deploys it.

The matrix mechanism releases A x + B Z for rows Z of standard deviation z * sensitivity * clip norm. With one
participation an epoch, one client changes one row of x, so that C x moves by at most the largest COLUMN norm
of C.

    error of round t = sensitivity * ||row t of B||_2,     max error = the largest of them,
    rms error = their root mean square,
    loss L = sensitivity^2 ||B||_F^2 + what the noise adds to later rounds of the run,     root loss = sqrt(L).

All are the standard deviation of the released A x per unit of noise multiplier and clip norm. For an epoch alone no
round is later, and rms error = sqrt(L / T). `run_factorization` adds the epochs of a run up.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedmf.errors import DataError, SettingError
from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.workload import Float64, Floats, Workload


class RoundErrors(ABC):
    """What follows from the error of every round, of an epoch or of a run."""

    @property
    @abstractmethod
    def per_round_error(self) -> Float64:
        """The error of every round, float64."""

    @property
    def rms_error(self) -> float:
        """Root mean square of the per-round error."""
        return float(np.linalg.norm(self.per_round_error) / np.sqrt(len(self.per_round_error)))

    @property
    def max_error(self) -> float:
        """The largest per-round error."""
        return float(self.per_round_error.max())


@dataclass(frozen=True, eq=False)
class Factorization(RoundErrors):
    """One factorization, as deployed: every number is derived from the stream, not from an ideal behind it.

    `seconds` is the CPU time of the fit. How far the root loss is from the best possible, `family.relative_gap` tells.
    """

    family: str
    workload: Workload
    stream: NoiseStream
    seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """Rounds in an epoch, T."""
        return self.workload.rounds

    @cached_property
    def sensitivity(self) -> float:
        """The largest column 2-norm of C (the norm, not its square), for one participation an epoch."""
        return self.stream.sensitivity

    @cached_property
    def _of_unit_noise(self) -> tuple[Float64, Float64]:
        return self.stream.errors(self.workload)

    @cached_property
    def per_round_error(self) -> Float64:
        """Sensitivity times the row norms of B, (T,) float64."""
        return self.sensitivity * self._of_unit_noise[0]

    @cached_property
    def left(self) -> Float64:
        """Squared sensitivity times the covariance of momentum and output that unit noise leaves, (2, 2) float64."""
        return self.sensitivity**2 * self._of_unit_noise[1]

    @cached_property
    def root_loss(self) -> float:
        """sensitivity * ||B||_F, with the error of later rounds of the run where the workload has any."""
        own = float(self.per_round_error @ self.per_round_error)
        return float(np.sqrt(own + self.workload.later.loss(self.left, self.workload.momentum)))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what the stream computes; a saved state belongs to the stream of equal fingerprint."""
        tables = self.stream.tables
        text = f"{self.family} {type(self.stream).__name__} {self.rounds} {tables.shape}"
        return hashlib.sha256(text.encode() + tables.tobytes()).hexdigest()

    @cached_property
    def precision(self) -> tuple[float, float]:
        """c sum_t |b_t| and the rounding of the stream: what `fedmf.accounting.floating_point` must know of it."""
        shares = sum(abs(self.stream.own(step)) for step in range(self.rounds))
        return self.sensitivity * shares, self.stream.rounding()

    def materialize(self) -> tuple[Float64, Float64]:
        """Return the dense decoder B (T, m) and encoder C (m, T), float64, as deployed. For small T."""
        noising = self.stream.materialize_noising()
        return workloads.apply(self.workload, noising), self.stream.materialize_strategy()

    def costed_on(self, workload: Workload) -> "Factorization":
        """Return the factorization of `workload` with the same stream: the decoder becomes A' A^-1 B.

        A server that adds noise fitted to prefix sums and then runs momentum does this: private by post-processing, but not
        as accurate as C fitted to the server's workload. Raises `SettingError` for another number of rounds.
        """
        if workload.rounds != self.rounds:
            raise SettingError(f"the workload has {workload.rounds} rounds; the mechanism has {self.rounds}.")
        return self if workload == self.workload else replace(self, workload=workload)

    def with_tables(self, tables: Floats) -> "Factorization":
        """Return the factorization with other tables of its kind of stream, as they were kept.

        A run that resumes in another process must continue with the tables that its epoch began with: rows of one matrix
        before and of another after would have a larger sensitivity than either. Raises `DataError` for tables that the
        stream cannot have or that make no finite noise.
        """
        if tables.dtype != np.float32:
            raise DataError(f"tables of type {tables.dtype} are none of {self.family}.")
        try:
            with np.errstate(all="ignore"):
                made = replace(self, stream=type(self.stream)(self.rounds, tables))
                numbers = [made.sensitivity, made.left.sum(), *made.per_round_error]
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
            raise DataError(f"tables of shape {tables.shape} are none of {self.family}: {error}") from error
        if not np.isfinite(numbers).all():
            raise DataError(
                f"tables of shape {tables.shape} make no finite noise; they are none of {self.family}."
            )
        return made
