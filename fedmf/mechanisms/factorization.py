"""A factorization A = B C of a workload, with what it costs and the stream that deploys it.

The matrix mechanism releases A x + B Z for rows Z of standard deviation z * sensitivity * clip norm. With one
participation an epoch, one client changes one row of x, so that C x moves by at most the largest COLUMN norm
of C.

    loss L = sensitivity^2 ||B||_F^2,     root loss = sqrt(L),     rms error = sqrt(L / T),
    error of round t = sensitivity * ||row t of B||_2,     max error = the largest of them.

All are the standard deviation of the released A x per unit of noise multiplier and clip norm.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.arrays import Float32, Float64
from fedmf.mechanisms.streams.protocol import NoiseStream
from fedmf.mechanisms.workload import Workload


@dataclass(frozen=True, eq=False)
class Factorization:
    """One factorization, as deployed: every number holds for the stream, not for an ideal behind it.

    `sensitivity` is the largest column 2-norm of C (the norm, not its square), for one participation an
    epoch; `per_round_error` (T,) float64 is sensitivity times the row norms of B; `seconds` is the CPU time
    of the fit when it was computed. `emitted` (T, T) float32 is what the stream of a family of one's own was
    seen to emit for the identity, where nothing else tells for certain what it computes. How far the root
    loss is from the best possible, `bounds.relative_gap` says.
    """

    family: str
    workload: Workload
    sensitivity: float
    per_round_error: Float64
    stream: NoiseStream
    seconds: float = 0.0
    emitted: Float32 | None = None

    @property
    def rounds(self) -> int:
        """Rounds in an epoch, T."""
        return self.workload.rounds

    @property
    def root_loss(self) -> float:
        """sensitivity * ||B||_F."""
        return float(np.linalg.norm(self.per_round_error))

    @property
    def rms_error(self) -> float:
        """Root mean square over rounds of the per-round error."""
        return self.root_loss / float(np.sqrt(self.rounds))

    @property
    def max_error(self) -> float:
        """The largest per-round error."""
        return float(self.per_round_error.max())

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what the stream computes; a saved state belongs to the stream of equal fingerprint."""
        digest = hashlib.sha256(f"{self.family} {self.workload}".encode())
        described = vars(self.stream) if self.emitted is None else {"emitted": self.emitted}
        for name, value in sorted(described.items()):
            digest.update(name.encode())
            digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
        return digest.hexdigest()

    def materialize(self) -> tuple[Float64, Float64]:
        """Return the dense decoder B (T, m) and encoder C (m, T), float64, as deployed. For small T."""
        noising = self.stream.materialize_noising()
        return workloads.apply(self.workload, noising), self.stream.materialize_strategy()
