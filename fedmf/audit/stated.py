"""What a stream of releases is stated to be: noise, sensitivity and bounds, as a tester needs them.

In round t of an epoch a server releases the sum of what its clients sent plus sigma (N Z)_t, for rows Z of independent
N(0, 1) and the noising matrix N: C^-1 for a square strategy matrix C, A^-1 B for A = B C in general (m > T rows of Z for
trees). The next epoch starts with fresh Z.

Two releases with the same Z differ by the clients' part D (T x d) alone, and what that tells an adversary is the length
of W D over sigma, with W = L^-1 for the lower triangular L of N N^T = L L^T: the rows of W (N Z) are iid N(0, 1). W is the
map through which this package looks. For square lower triangular C with a positive diagonal it IS C. For the others C D
may be longer than W D, never shorter, because W D = (W N) (C D) and W N has orthonormal rows: the accounted
column norms of C bound what W measures (docs/privacy.md, section 2, with M = W A).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from fedmf.checks import check_at_least, check_keep_probability, check_non_negative, check_positive
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Float64
from fedmf.plan import Plan


@dataclass(frozen=True, eq=False)
class StatedEpoch:
    """The noise of one epoch as stated.

    `noising` is N, (T, m) of full row rank; `sensitivity` the largest column 2-norm of C, as it was accounted; `sigma` the
    standard deviation of the entries of sigma Z, in units of what clients send. Raises `SettingError` for other shapes and
    values.
    """

    noising: Float64
    sensitivity: float
    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "noising", numbers("the noising matrix", self.noising))
        check_positive("sensitivity", self.sensitivity)
        check_non_negative("sigma", self.sigma)
        if self.noising.ndim != 2 or self.noising.shape[0] > self.noising.shape[1]:
            raise SettingError(
                f"the noising matrix has shape {self.noising.shape}; it must have a row for every round and at least as "
                "many columns."
            )
        if not np.isfinite(self.noising).all():
            raise SettingError("the noising matrix holds a number that is not finite; all must be.")
        if np.linalg.matrix_rank(self.noising) < self.rounds:
            raise SettingError(
                f"the noising matrix has rank {np.linalg.matrix_rank(self.noising)}, but {self.rounds} rows: a sum of its "
                "noise rows is zero, and the rounds together are not protected at all."
            )

        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            maps = [self.whitening, self.whitening / self.sigma] if self.sigma else [self.whitening]
        if not all(np.isfinite(whitening).all() for whitening in maps):
            raise SettingError(
                f"the noising matrix, of entries up to {np.abs(self.noising).max():.4g}, or sigma, {self.sigma:.4g}, is so "
                "small that the map to independent noise overflows; give both in units in which they are near 1."
            )

    @property
    def rounds(self) -> int:
        """Rounds of the epoch, T."""
        return len(self.noising)

    @cached_property
    def whitening(self) -> Float64:
        """W, (T, T) lower triangular with a positive diagonal: W N has orthonormal rows."""
        _, upper = np.linalg.qr(self.noising.T)  # N N^T = R^T R, without squaring the condition of N
        lower = upper.T * np.sign(np.diag(upper))
        return np.asarray(solve_triangular(lower, np.eye(self.rounds), lower=True), np.float64)


@dataclass(frozen=True, eq=False)
class Stated:
    """A run as stated: its epochs, and what every client's vector is held to before its mask.

    `l2_norm` and `linf_norm` (None: nothing beyond `l2_norm`) bound the whole vector, `keep_probability` is that of each
    coordinate. Raises `SettingError` for epochs of different lengths and values out of range.
    """

    epochs: tuple[StatedEpoch, ...]
    l2_norm: float
    linf_norm: float | None = None
    keep_probability: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, Sequence) or not all(
            isinstance(epoch, StatedEpoch) for epoch in self.epochs
        ):
            raise SettingError(
                f"epochs is {self.epochs!r}; it must be a tuple with a StatedEpoch for each epoch."
            )
        object.__setattr__(self, "epochs", tuple(self.epochs))
        check_at_least("the number of epochs", len(self.epochs), 1)
        check_positive("l2_norm", self.l2_norm)
        if self.linf_norm is not None:
            check_positive("linf_norm", self.linf_norm)
        check_keep_probability(self.keep_probability)
        for epoch in self.epochs:
            for bound in (self.l2_norm, self.linf_norm or self.l2_norm):
                accounted = float(epoch.sensitivity) * float(bound)
                if not (np.isfinite(2 * accounted) and accounted > 0):  # twice: one vector or another
                    raise SettingError(
                        f"sensitivity {epoch.sensitivity:.4g} times a bound of {bound:.4g} is {accounted:.4g}; what is "
                        "accounted must be a finite number above 0."
                    )
        lengths = {epoch.rounds for epoch in self.epochs}
        if len(lengths) > 1:
            raise SettingError(f"the epochs have {sorted(lengths)} rounds; all must have the same.")

    @classmethod
    def of_strategy(
        cls,
        strategy: npt.ArrayLike,
        *,
        sigma: float,
        l2_norm: float,
        linf_norm: float | None = None,
        keep_probability: float = 1.0,
        epochs: int = 1,
    ) -> Self:
        """Return what a square strategy matrix C states: noise sigma C^-1 Z in each epoch, sensitivity its column norm.

        Raises `SettingError` for a C that is not square, not lower triangular, or has no inverse; where C has more rows than columns, give the
        noising matrix itself to `StatedEpoch`.
        """
        C = numbers("the strategy matrix", strategy)
        check_at_least("epochs", epochs, 1)
        if C.ndim != 2 or C.shape[0] != C.shape[1]:
            raise SettingError(
                f"the strategy matrix has shape {C.shape}; of_strategy takes square ones. For others give StatedEpoch "
                "the noising matrix A^-1 B and the largest column norm of C."
            )
        try:
            noising = np.asarray(np.linalg.inv(C), np.float64)
        except np.linalg.LinAlgError as error:
            raise SettingError("the strategy matrix has no inverse; it must have one.") from error
        if np.any(np.triu(C, 1)):
            raise SettingError(
                "the strategy matrix has entries above its diagonal; of_strategy takes lower triangular ones, because noise "
                "of a later round cannot be in an earlier release. Give StatedEpoch the noising matrix of others."
            )
        epoch = StatedEpoch(noising, float(np.linalg.norm(C, axis=0).max()), sigma)
        return cls((epoch,) * int(epochs), l2_norm, linf_norm, keep_probability)

    @classmethod
    def of_plan(cls, plan: Plan) -> Self:
        """Return what a plan states, with the matrices that its streams deploy; for short epochs: they are dense.

        Raises `SettingError` for a plan without an L2 bound, which states nothing.
        """
        if plan.bounds.radius is None:
            raise SettingError("the plan bounds no client's vector, so that it states nothing to test.")
        made: dict[int, StatedEpoch] = {}
        for number, epoch in enumerate(plan.factorization.epochs):
            if id(epoch) not in made:
                noising = epoch.stream.materialize_noising()
                made[id(epoch)] = StatedEpoch(noising, epoch.sensitivity, plan.sigma_in(number))
        epochs = tuple(made[id(epoch)] for epoch in plan.factorization.epochs)
        return cls(epochs, plan.bounds.radius, plan.bounds.linf_norm, plan.compression.keep_probability)

    @property
    def rounds(self) -> int:
        """Rounds of an epoch, T."""
        return self.epochs[0].rounds

    def whitened(self, releases: Float64) -> Float64:
        """Return W (releases) / sigma, epoch by epoch, for releases (.., epochs, T, d): noise becomes iid N(0, 1).

        Raises `SettingError` for releases of another shape, and where a stated sigma is 0.
        """
        self.check_shape("releases", releases)
        if not all(epoch.sigma for epoch in self.epochs):
            raise SettingError("sigma is 0 in an epoch: nothing is stated of its noise.")
        maps = np.stack([epoch.whitening / epoch.sigma for epoch in self.epochs])
        return np.asarray(maps @ releases)

    def check_shape(self, name: str, releases: Float64) -> None:
        """Raise `SettingError` unless `releases` is (.., epochs, T, d)."""
        expected = (len(self.epochs), self.rounds)
        if releases.ndim < 3 or releases.shape[-3:-1] != expected:
            raise SettingError(
                f"{name} have shape {releases.shape}; the last three axes must be {expected[0]} epochs, "
                f"{expected[1]} rounds and the coordinates."
            )


def numbers(name: str, given: npt.ArrayLike) -> Float64:
    """Return an array of float64. Raises `SettingError` for what is none, and for an empty one."""
    try:
        read = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise SettingError(f"{name} cannot be read as an array of numbers ({error}).") from error
    if (
        read.size and read.dtype.kind not in "biuf"
    ):  # complex numbers, texts, None: NumPy would make floats of them
        raise SettingError(
            f"{name} cannot be read as an array of numbers; they are of type {read.dtype}, and must be real numbers."
        )
    with np.errstate(
        over="ignore"
    ):  # a wider number that float64 does not hold is infinite, and treated as that
        found = np.asarray(read, np.float64)
    if not found.size:
        raise SettingError(f"{name} have shape {found.shape}; there must be a number at least.")
    return found


def spread(name: str, given: npt.ArrayLike, shape: tuple[int, ...]) -> Float64:
    """Return an array broadcast to `shape`. Raises `SettingError` where it does not fit."""
    found = numbers(name, given)
    try:
        return np.broadcast_to(found, shape)
    except ValueError as error:
        raise SettingError(f"{name} has shape {found.shape}, which does not fit {shape}.") from error


def own_steps(steps: Sequence[int | None], stated: Stated) -> tuple[int | None, ...]:
    """Return the step of each epoch in which a client takes part (None: in no round of it), checked."""
    if not isinstance(steps, Sequence | np.ndarray) or isinstance(steps, str):
        raise SettingError(
            f"own_rounds is {steps!r}; it must be a list with a step, or None, for each epoch."
        )
    if len(steps) != len(stated.epochs):
        raise SettingError(
            f"own_rounds has {len(steps)} entries for {len(stated.epochs)} epochs; give one for each, None for an epoch "
            "without the client."
        )
    for step in steps:
        if step is not None and (isinstance(step, bool) or not isinstance(step, int | np.integer)):
            raise SettingError(
                f"own_rounds holds {step!r}; each entry is a step, a whole number from 0, or None: what is stated is the "
                "sensitivity of one participation in an epoch."
            )
        if step is not None and not 0 <= step < stated.rounds:
            raise SettingError(f"own_rounds holds {step}; an epoch has steps 0 to {stated.rounds - 1}.")
    return tuple(steps)
