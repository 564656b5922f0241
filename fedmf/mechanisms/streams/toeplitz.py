"""Lower triangular Toeplitz matrices by their coefficients, and their noise stream.

A matrix is its first column `coefs`: products are truncated convolutions, the inverse is a power series. C^-1 z is
streamed by substitution, x_t = z_t - sum_k c_k x_{t-k} with c_0 = 1, from the last rows x: one fewer than C has bands.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmf.mechanisms import workload as workloads
from fedmf.mechanisms.streams.protocol import ON_RELEASE, Draw, NoiseStream, blocks
from fedmf.mechanisms.workload import Float64, Workload
from fedmf.normals import UNIT

ADDED = 64  # rows that one product adds up


def multiply(left: Float64, right: Float64, rounds: int) -> Float64:
    """Return the first `rounds` coefficients of the product."""
    if max(len(left), len(right)) <= 256:
        return np.convolve(left, right)[:rounds]
    from scipy.signal import fftconvolve  # imported late: it takes 0.7 s

    return np.asarray(fftconvolve(left, right)[:rounds], np.float64)


def inverse(coefs: Float64, rounds: int) -> Float64:
    """Return the first `rounds` coefficients of the inverse; O(rounds * bands).

    >>> inverse(np.array([1.0, -1.0]), 4)
    array([1., 1., 1., 1.])
    """
    impulse = np.eye(1, rounds)[0]
    if len(coefs) == 1:
        return np.asarray(impulse / coefs[0], np.float64)
    from scipy.signal import lfilter  # imported late: it takes 0.7 s

    return np.asarray(lfilter([1.0], coefs, impulse), np.float64)


def row_norms(noising: Float64, workload: Workload) -> tuple[Float64, Float64]:
    """Return the row norms (T,) of B = A N for Toeplitz N with coefficients `noising` of length T, and what is left.

    That is the covariance (2, 2) of momentum and output after the last round, for unit noise. O(T) for a Toeplitz
    workload; O(T^2) time and O(T) memory for a learning-rate schedule, where row t of B is row t - 1 plus eta_t times the
    reversed coefficients of M_beta N.
    """
    averaged = workloads.recursion(workload.momentum, noising)[::-1].copy()
    if len(set(workloads.rates(workload))) == 1:  # then A is a Toeplitz matrix too
        decoder = workloads.apply(workload, noising)
        return np.sqrt(np.cumsum(decoder**2)), _gram(averaged, decoder[::-1])
    row, norms = np.zeros(workload.rounds), np.empty(workload.rounds)
    for step, rate in enumerate(workloads.rates(workload)):
        # Row t of A N: row t - 1 plus eta_t times row t of M_beta N, its coefficients in reverse.
        row[: step + 1] += rate * averaged[workload.rounds - 1 - step :]
        norms[step] = np.linalg.norm(row[: step + 1])
    return norms, _gram(averaged, row)


def _gram(momentum: Float64, output: Float64) -> Float64:
    """Return the covariance (2, 2) of two rows that multiply the same unit noise."""
    rows = np.stack([momentum, output])
    return rows @ rows.T


@dataclass(frozen=True, eq=False)
class ToeplitzStream(NoiseStream):
    """A noise stream of `rounds` steps for Toeplitz C whose coefficients are its tables, (bands,) float32.

    The state holds the last bands - 1 noise rows in a ring: row x_s lies at place s mod (bands - 1).
    """

    takes = "one a band, the first of them 1"

    def _fits(self) -> bool:
        return self.tables.ndim == 1 and bool(self.tables[0] == 1)

    @property
    def buffers(self) -> int:
        return len(self.tables) - 1

    def own(self, step: int) -> float:
        return 1.0

    @cached_property
    def sensitivity(self) -> float:
        return float(np.linalg.norm(self._exact[: self.rounds]))

    def errors(self, workload: Workload) -> tuple[Float64, Float64]:
        return row_norms(inverse(self._exact, self.rounds), workload)

    @property
    def _exact(self) -> Float64:
        return self.tables.astype(np.float64)

    def _step(self, step: int, fresh: Float64, buffers: Float64, mean: Float64, draw: Draw) -> None:
        filled = min(step, self.buffers)
        ages = (step - 1 - np.arange(filled)) % max(self.buffers, 1) + 1
        # c_k in the order in which the ring holds x_{step - k}
        weights = self.tables[ages].astype(np.float64)
        for block in blocks(len(mean), min(filled, ADDED) + 1):
            mean[block] = 0
            for first in range(0, filled, ADDED):  # few at once: a sum of n rounded n times
                group = slice(first, min(first + ADDED, filled))
                mean[block] -= weights[group] @ buffers[group, block]
        if self.buffers:
            np.add(mean, fresh, out=buffers[step % self.buffers])

    def rounding(self) -> float:
        """Return the bound; see `NoiseStream.rounding`.

        A kept row x is rounded once, and what a step makes of the rows at most `ADDED` times in a group and once a group.
        """
        largest = float(np.linalg.norm(inverse(self._exact, self.rounds)))  # standard deviation of a row x
        roundings = ADDED + self.buffers / ADDED + 1 + ON_RELEASE
        sizes = np.cumsum(np.abs(self._exact))[np.minimum(np.arange(self.rounds), self.buffers)]
        return float(self.sensitivity * UNIT * largest * (1 + roundings * sizes).sum())
