"""What a stream of releases is stated to be: noise, sensitivity and bounds, as a tester needs them.

In round t of an epoch a server releases the sum of what its clients sent plus sigma (N Z)_t, for rows Z of independent
N(0, 1) and the noising matrix N: C^-1 for a square strategy matrix C, A^-1 B for A = B C in general (m > T rows of Z for
trees). The next epoch starts with fresh Z.

Two releases with the same Z differ by the clients' part D (T x d) alone, and what that tells an adversary is the length
of W D over sigma, with W = L^-1 for the lower triangular L of N N^T = L L^T: the rows of W (N Z) are iid N(0, 1). For
square lower triangular C with a positive diagonal W is C. For the others C D may be longer than W D, never shorter,
because W D = (W N) (C D) and W N has orthonormal rows: the accounted column norms of C bound what W measures.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from fedmf.checks import check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.mechanisms.workload import Float64
from fedmf.plan import Plan


@dataclass(frozen=True, eq=False)
class StatedEpoch:
    """The stated noise of one epoch.

    `noising` is N, (T, m) of full row rank; `sensitivity` the largest column 2-norm of C, as it was accounted; `sigma` the
    standard deviation of the entries of sigma Z, in units of what clients send.
    """

    noising: Float64
    sensitivity: float
    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noising", np.asarray(self.noising, np.float64))
        check_positive("sensitivity", self.sensitivity)
        check_non_negative("sigma", self.sigma)
        shape = self.noising.shape
        if (
            len(shape) != 2
            or not np.isfinite(self.noising).all()
            or np.linalg.matrix_rank(self.noising) < shape[0]
        ):
            raise SettingError(
                f"the noising matrix has shape {shape}; it must be finite, with a row for each round, and no sum of its rows "
                "may be zero."
            )

    @cached_property
    def whitening(self) -> Float64:
        """W, (T, T) lower triangular with a positive diagonal: W N has orthonormal rows."""
        _, upper = np.linalg.qr(self.noising.T)  # N N^T = R^T R, without squaring the condition of N
        lower = upper.T * np.sign(np.diag(upper))
        return np.asarray(solve_triangular(lower, np.eye(len(lower)), lower=True), np.float64)


@dataclass(frozen=True, eq=False)
class Stated:
    """The statement of a run: its epochs, and the bounds on every client's whole vector before its mask."""

    epochs: tuple[StatedEpoch, ...]
    l2_norm: float
    linf_norm: float | None = None

    def __post_init__(self) -> None:
        check_positive("l2_norm", self.l2_norm)
        if self.linf_norm is not None:
            check_positive("linf_norm", self.linf_norm)
        if len({len(epoch.noising) for epoch in self.epochs}) != 1:
            raise SettingError(
                "epochs must hold a StatedEpoch for each epoch, at least one, all of the same number of rounds."
            )

    @classmethod
    def of_strategy(
        cls,
        strategy: npt.ArrayLike,
        *,
        sigma: float,
        l2_norm: float,
        linf_norm: float | None = None,
        epochs: int = 1,
    ) -> Self:
        """Return what an invertible C states: noise sigma C^-1 Z in each epoch, sensitivity its largest column norm.

        For others give StatedEpoch the noising matrix A^-1 B and the largest column norm of C.
        """
        matrix = np.asarray(strategy, np.float64)
        noising = np.asarray(np.linalg.inv(matrix), np.float64)  # `LinAlgError` for a C that has no inverse
        epoch = StatedEpoch(noising, float(np.linalg.norm(matrix, axis=0).max()), sigma)
        return cls((epoch,) * epochs, l2_norm, linf_norm)

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        """Return what a plan states, with the matrices that its streams deploy: dense, so for short epochs.

        Sensitivity and sigma of each epoch follow from its own C, not from what the plan computed of it. A plan that bounds no
        client's vector states nothing: `l2_norm` is then a `SettingError`.
        """
        made = []
        for stream in (epoch.stream for epoch in plan.factorization.epochs):
            sensitivity = float(np.linalg.norm(stream.materialize_strategy(), axis=0).max())
            sigma = plan.noise_multiplier * sensitivity * (plan.counted_radius or 0.0)
            made.append(StatedEpoch(stream.materialize_noising(), sensitivity, sigma))
        return cls(tuple(made), plan.bounds.radius or 0.0, plan.bounds.linf_norm)

    @property
    def sigmas(self) -> Float64:
        """Sigma of each epoch, (epochs, 1, 1)."""
        return np.array([epoch.sigma for epoch in self.epochs], np.float64)[:, None, None]

    def whitened(self, releases: Float64) -> Float64:
        """Return W (releases) / sigma, epoch by epoch, for releases (.., epochs, T, d): noise becomes iid N(0, 1)."""
        if not self.sigmas.all():
            raise SettingError("sigma is 0 in an epoch: nothing is stated of its noise.")
        return np.asarray(np.stack([epoch.whitening for epoch in self.epochs]) / self.sigmas @ releases)

    def check_shape(self, name: str, releases: Float64, axes: int) -> None:
        """Raise `SettingError` unless `releases` has so many axes, of which the last are (epochs, T, d)."""
        expected = (len(self.epochs), len(self.epochs[0].noising))
        if releases.ndim != axes or releases.shape[-3:-1] != expected:
            runs = "runs, " if axes > 3 else ""
            raise SettingError(
                f"{name} have shape {releases.shape}; it must be ({runs}{expected[0]} epochs, {expected[1]} rounds, d)."
            )
