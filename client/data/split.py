"""Whose the examples of a file are, and which of them are the test set: as the file says, or a fifth of each user's."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmf.errors import DataError

SPLIT_SEED = 0
"""Public and fixed: it chooses the test examples of files without a split, whatever a run's seed is."""
_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64 (Steele, Lea and Flood 2014)


def fifth_of_each(
    users: np.ndarray,
    *,
    seed: int,
    names: np.ndarray | Sequence[str | int] | None = None,
    may_be_none: bool = False,
) -> np.ndarray:
    """Return a boolean mask [N] that chooses floor(n/5) of the n rows of each user, by a public seed.

    Which rows of a user are chosen follows from the seed, the user's name and number of rows, and from nothing of other
    users: what a client trains on must be a function of its own data. `users` [N] are names, or, where `names` are given,
    places among these. Raises `DataError` where no test example is left, unless there `may_be_none`: in a process that plays
    clients and needs no test set, one user's number of rows must not decide what becomes of the others.

    >>> mask = fifth_of_each(np.repeat([4, 9], [10, 4]), seed=0)
    >>> int(mask[:10].sum()), int(mask[10:].sum())
    (2, 0)
    """
    held, numbers, counts = np.unique(users, return_inverse=True, return_counts=True)
    found = held if names is None else [names[place] for place in held]
    starts = np.cumsum(counts) - counts
    place = np.empty(len(users), dtype=np.int64)  # among the rows of its user
    within = np.arange(len(users)) - np.repeat(starts, counts)
    place[np.argsort(numbers, kind="stable")] = within
    streams = _mixed(_as_numbers(found) + np.uint64(seed))
    draws = _mixed(streams[numbers] + place.astype(np.uint64) * _STEP)
    place[np.lexsort((draws, numbers))] = within  # and now in the order of the draws
    chosen: np.ndarray = place < counts[numbers] // 5
    if not chosen.any() and not may_be_none:
        raise DataError(
            "A fifth of each user's examples is the test set where the data have no split, but no user has five: the "
            f"largest has {counts.max(initial=0)}. Mark test examples with split = 1 and the others with 0."
        )
    return chosen


def _as_numbers(names: np.ndarray | Sequence[str | int]) -> np.ndarray:
    """Return a number for each user, uint64, by its name alone: a whole number is its own, a text has a digest."""
    held = names.tolist() if isinstance(names, np.ndarray) else names
    if all(isinstance(name, int) for name in held):
        return np.asarray(names).astype(np.uint64)
    texts = (str(name).encode("utf-8", "surrogatepass") for name in held)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return draws that look uniform, uint64, each a function of one number: the steps of SplitMix64."""
    mixed = numbers + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


@dataclass(frozen=True)
class Parted:
    """Which examples [N] are the `test` set, and whether it `is_needed`: to be scored on, and so to be right.

    A process that plays clients needs none. There a test example is one user's value as any other.
    """

    test: np.ndarray
    is_needed: bool

    @property
    def shown(self) -> np.ndarray:
        """The examples that say what all are: the test set, which is public, or all, so that no single one decides."""
        return self.test if self.is_needed else np.ones_like(self.test)

    def refuse(self, wrong: np.ndarray, what: str, advice: str) -> None:
        """Raise `DataError` where an example of a needed test set is `wrong` [N]: `what`, with {} for its row, and advice."""
        odd = self.test & wrong
        if self.is_needed and odd.any():
            raise DataError(f"{what.format(f'row {int(np.argmax(odd)) + 1}, a test row')}; {advice}.")


@dataclass(frozen=True)
class Users:
    """Whose the examples are: example i belongs to the user `names[numbers[i]]`, `names` being in their order."""

    numbers: np.ndarray
    names: Sequence[str | int]

    @classmethod
    def of(cls, names: np.ndarray) -> "Users":
        """Return the users of examples whose names are `names` [N]."""
        found, numbers = np.unique(names, return_inverse=True)
        return cls(numbers, found.tolist())

    def parted(self, path: object, said: np.ndarray | None, *, mark: str, clients_only: bool) -> Parted:
        """Return which examples are the test set: those [N] that the file at `path` `said`, else a fifth of each user's.

        Raises `DataError` unless some are and others are not. `mark` says how the file marks an example, with {} for 0 or
        1. With `clients_only`, where no test set is needed, there need be none.
        """
        if said is None:
            said = fifth_of_each(self.numbers, seed=SPLIT_SEED, names=self.names, may_be_none=clients_only)
        if said.all() or not (clients_only or said.any()):
            missing, other = ("training", 0) if said.all() else ("test", 1)
            raise DataError(
                f"{path} has no {missing} example; mark some with {mark.format(other)}, or leave the split out: a fifth of "
                "each user's examples is the test set then."
            )
        return Parted(said, is_needed=not clients_only)
