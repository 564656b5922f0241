"""Who takes part when: every epoch splits the clients into disjoint cohorts.

The privacy theorem covers one participation per client and epoch (docs/theory.md, section 1). The schedule
gives at most one; the register refuses a second one at the moment of release, whatever path led there
(retry, resume, duplicate).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Self, overload

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_at_least
from fedmf.errors import ParticipationError, SettingError
from fedmf.permutation import Permutation
from fedmf.randomness import PublicSeed

SHUFFLED = 2**16
"""Up to so many clients an epoch's arrangement is a shuffle, exactly uniform and made in a millisecond."""


def rounds_that_fit(clients: int, cohort_size: int, rounds_per_epoch: int | None = None) -> int:
    """Return the rounds per epoch: `rounds_per_epoch`, or floor(clients / cohort_size) if None.

    Raises `ParticipationError` when disjoint cohorts do not fit: cohort_size * rounds_per_epoch <= clients is
    required.

    >>> rounds_that_fit(1437, 64)
    22
    """
    check_at_least("clients", clients, 1)
    check_at_least("cohort_size", cohort_size, 1)
    largest = clients // cohort_size
    if largest == 0:
        raise ParticipationError(
            f"cohort_size is {cohort_size}, but there are only {clients} clients; at most {clients} fits."
        )
    if rounds_per_epoch is None:
        return largest
    check_at_least("rounds_per_epoch", rounds_per_epoch, 1)
    if rounds_per_epoch > largest:
        smaller = clients // rounds_per_epoch
        raise ParticipationError(
            f"{rounds_per_epoch} disjoint cohorts of {cohort_size} need "
            f"{rounds_per_epoch * cohort_size} clients, but there are {clients}; "
            f"the largest rounds_per_epoch that fits is {largest}"
            + (f", the largest cohort_size that fits is {smaller}." if smaller else ".")
        )
    return rounds_per_epoch


@dataclass(frozen=True)
class Part:
    """Epochs that were planned together: `epochs` of them from number `first` (0-based) on."""

    first: int
    epochs: int


@dataclass(frozen=True)
class Participation:
    """Who takes part: `clients` N, cohorts of `cohort_size` n, `rounds_per_epoch` T, `epochs` E; n T <= N.

    `added` is empty but for a run that was extended after it had ended: `extended` makes one. Raises `SettingError` for
    a number below 1, `ParticipationError` where the cohorts do not fit.
    """

    clients: int
    cohort_size: int
    rounds_per_epoch: int
    epochs: int
    added: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        check_at_least("epochs", self.epochs, 1)
        rounds_that_fit(self.clients, self.cohort_size, self.rounds_per_epoch)

    @cached_property
    def rounds(self) -> int:
        """All rounds of the run, E T."""
        return self.epochs * self.rounds_per_epoch

    @property
    def parts(self) -> tuple[Part, ...]:
        """The run in the parts in which it was planned: one, but for a run that was extended."""
        return self.added or (Part(0, self.epochs),)

    @property
    def epochs_of_parts(self) -> tuple[int, ...]:
        """How many epochs of each part there are; they add up to `epochs`."""
        starts = [part.first for part in self.parts]
        return tuple(end - start for start, end in pairwise([*starts, self.epochs]))

    def extended(self, after: int, epochs: int) -> Self:
        """Return the participation of a run that ended after `after` epochs and goes on for `epochs` more.

        Raises `SettingError` where the last part cannot have ended there.

        >>> Participation(100, 10, 10, 8).extended(8, 2).epochs_of_parts
        (8, 2)
        """
        check_at_least("epochs", epochs, 1)
        last = self.parts[-1]
        if not last.first < after <= self.epochs:
            raise SettingError(
                f"after is {after}; a part of the epochs {last.first + 1} to {self.epochs} ends with one of them."
            )
        return replace(self, epochs=after + epochs, added=(*self.parts, Part(after, epochs)))

    def progress(self, rounds: int) -> float:
        """Return how far a learning-rate schedule is when `rounds` are done, in [0, 1): it runs anew over each part.

        >>> longer = Participation(100, 10, 10, 8).extended(8, 2)
        >>> [longer.progress(rounds) for rounds in (0, 40, 80, 90)]
        [0.0, 0.5, 0.0, 0.5]
        """
        part = next(part for part in reversed(self.parts) if part.first * self.rounds_per_epoch <= rounds)
        return (rounds - part.first * self.rounds_per_epoch) / (part.epochs * self.rounds_per_epoch)


@dataclass(frozen=True)
class Cohorts(Sequence[npt.NDArray[np.int64]]):
    """The disjoint cohorts of one epoch, each drawn when it is asked for: O(cohort) work and memory a round.

    Cohort t holds the images of n t .. n t + n - 1 under a permutation of all clients that the public seed and the epoch
    name: a shuffle up to `SHUFFLED` clients, beyond them `fedmf.permutation`. Anyone who knows the seed can redo it: no
    amplification by sampling is claimed, and privacy needs of it only that a client is in at most one cohort of an epoch.
    """

    clients: int
    cohort_size: int
    rounds: int
    epoch: int
    seed: PublicSeed

    def __post_init__(self) -> None:
        rounds_that_fit(self.clients, self.cohort_size, self.rounds)

    def __len__(self) -> int:
        """Return the number of rounds of the epoch."""
        return self.rounds

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[np.int64]: ...
    @overload
    def __getitem__(self, index: slice) -> list[npt.NDArray[np.int64]]: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[np.int64] | list[npt.NDArray[np.int64]]:
        """Return the clients of a round (0-based), (n,) int64, as a fresh array; a list of several rounds' for a slice."""
        if isinstance(index, slice):
            return [self[step] for step in range(*index.indices(self.rounds))]
        first = range(self.rounds)[index] * self.cohort_size
        places = np.arange(first, first + self.cohort_size)
        if self.clients <= SHUFFLED:
            return _shuffled(self.clients, self.epoch, self.seed)[places]
        return Permutation(self.clients, self.seed.digest("order of clients", self.epoch))(places)


@lru_cache(maxsize=2)  # every round of an epoch asks for the same ones
def epoch_cohorts(
    clients: int, cohort_size: int, rounds_per_epoch: int, *, epoch: int, seed: PublicSeed
) -> Cohorts:
    """Return the disjoint cohorts of `epoch` (0-based) as client indices: `rounds_per_epoch` of `cohort_size`.

    Raises `ParticipationError` where they do not fit.

    >>> cohorts = epoch_cohorts(10**9, 3, 10**6, epoch=0, seed=PublicSeed(1))
    >>> cohorts[999_999].tolist()
    [566610623, 606087478, 939581624]
    """
    return Cohorts(clients, cohort_size, rounds_per_epoch, epoch, seed)


@lru_cache(maxsize=2)  # every round of an epoch asks for the same one
def _shuffled(clients: int, epoch: int, seed: PublicSeed) -> npt.NDArray[np.int64]:
    """Return all clients in a uniformly random order, (clients,) int64, read-only."""
    order = seed.generator("cohorts", epoch).permutation(clients)
    order.setflags(write=False)
    return order
