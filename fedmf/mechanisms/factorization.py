"""A factorization A = B C of a workload, with what it costs and the stream that deploys it.

The matrix mechanism releases A x + B Z for rows Z of standard deviation z * sensitivity * clip norm. With one
participation an epoch, one client changes one row of x, so that C x moves by at most the largest COLUMN norm
of C.

    error of round t = sensitivity * ||row t of B||_2,     max error = the largest of them,
    rms error = their root mean square,
    loss L = sensitivity^2 ||B||_F^2 + what the noise adds to later rounds of the run,     root loss = sqrt(L).

All are the standard deviation of the released A x per unit of noise multiplier and clip norm. For an epoch alone no
round is later, and rms error = sqrt(L / T). `run` adds the epochs of a run up.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float64
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.workload import Workload


def root_loss(workload: Workload, per_round_error: Float64, left: Float64) -> float:
    """Return the root of the summed squared error of an epoch's noise, over its rounds (T,) and all later ones.

    `left` (2, 2) is the covariance of momentum and output after the last round.
    """
    own = float(per_round_error @ per_round_error)
    return float(np.sqrt(own + workload.later.loss(left, workload.momentum)))


@dataclass(frozen=True, eq=False)
class Factorization:
    """One factorization, as deployed: every number holds for the stream, not for an ideal behind it.

    `sensitivity` is the largest column 2-norm of C (the norm, not its square), for one participation an
    epoch; `per_round_error` (T,) float64 is sensitivity times the row norms of B; `left` (2, 2) float64 is squared
    sensitivity times the covariance of momentum and output that unit noise leaves after the last round; `seconds` is
    the CPU time of the fit when it was computed. How far the root loss is from the best possible, `bounds.relative_gap`
    says.
    """

    family: str
    workload: Workload
    sensitivity: float
    per_round_error: Float64
    left: Float64
    stream: NoiseStream
    seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """Rounds in an epoch, T."""
        return self.workload.rounds

    @property
    def root_loss(self) -> float:
        """sensitivity * ||B||_F, with the error of later rounds of the run where the workload has any."""
        return root_loss(self.workload, self.per_round_error, self.left)

    @property
    def rms_error(self) -> float:
        """Root mean square of the per-round error over the rounds of the epoch."""
        return float(np.linalg.norm(self.per_round_error)) / float(np.sqrt(self.rounds))

    @property
    def max_error(self) -> float:
        """The largest per-round error."""
        return float(self.per_round_error.max())

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what the stream computes; a saved state belongs to the stream of equal fingerprint."""
        digest = hashlib.sha256(self.family.encode())
        for name, value in sorted(vars(self.stream).items()):
            digest.update(name.encode())
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return digest.hexdigest()

    @cached_property
    def precision(self) -> tuple[float, float]:
        """c sum_t |b_t| and the rounding of the stream: what `fedmf.accounting.floating_point` must know of it."""
        shares = sum(abs(self.stream.own(step)) for step in range(self.rounds))
        return self.sensitivity * shares, self.stream.rounding(self.sensitivity)

    def materialize(self) -> tuple[Float64, Float64]:
        """Return the dense decoder B (T, m) and encoder C (m, T), float64, as deployed. For small T."""
        noising = self.stream.materialize_noising()
        return workloads.apply(self.workload, noising), self.stream.materialize_strategy()
