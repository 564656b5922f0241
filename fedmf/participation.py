"""Who takes part when: every epoch splits the clients into disjoint cohorts.

The privacy theorem covers one participation per client and epoch (docs/theory.md, section 1). The schedule
gives at most one; the register refuses a second one at the moment of release, whatever path led there
(retry, resume, duplicate).

The order of many clients is a keyed pseudo-random permutation of 0 .. size-1, evaluated where it is needed and nowhere
else: an alternating Feistel network with modular addition (Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). With a = ceil(sqrt(size)) and b = ceil(size / a) a number is x = a r + l, l below a, r below b; in turn

    l <- l + F_i(r) mod a,        r <- r + F_i(l) mod b,

each of which can be undone, so that the whole is a permutation of 0 .. a b - 1 whatever F is. F_i(v) is the first half of
the AES-256 block of (i, v), 64 bits: taken mod a it is uniform to a / 2^64. Where an image is beyond `size` the network is
applied again until it is not (cycle walking), which makes it one of 0 .. size-1: fewer than a of the a b numbers are
beyond, so that one in sqrt(size) is walked on.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmf.checks import check_at_least
from fedmf.errors import ParticipationError, SettingError
from fedmf.randomness import PublicSeed

Indices = np.typing.NDArray[np.int64]

# Up to so many clients an epoch's arrangement is a shuffle, exactly uniform and made in a millisecond.
SHUFFLED = 2**16

# Four make it a permutation that few queries cannot tell from a uniform one (Luby and Rackoff 1988); over all of a small
# domain more are needed, and tests/fedmf/test_randomness.py looks at those.
NETWORK_STEPS = 24

MOST = 2**62  # numbers to permute: sums of two halves, and a b, stay far below 2^63


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
        return tuple(
            end - start for start, end in pairwise([*(part.first for part in self.parts), self.epochs])
        )

    def extended(self, after: int, epochs: int) -> "Participation":
        """Return the participation of a run that ended after `after` epochs and continues for `epochs` more.

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
        """Return how far a learning-rate schedule is when `rounds` are done, in [0, 1): it restarts with each part.

        >>> longer = Participation(100, 10, 10, 8).extended(8, 2)
        >>> [longer.progress(rounds) for rounds in (0, 40, 80, 90)]
        [0.0, 0.5, 0.0, 0.5]
        """
        part = next(part for part in reversed(self.parts) if part.first * self.rounds_per_epoch <= rounds)
        return (rounds - part.first * self.rounds_per_epoch) / (part.epochs * self.rounds_per_epoch)


def draw_cohort(clients: int, cohort_size: int, *, epoch: int, step: int, seed: PublicSeed) -> Indices:
    """Return the indices of the clients of round `step` (0-based) of `epoch`, (n,) int64, as a fresh array.

    The images of n t .. n t + n - 1 under a permutation of all clients that the public seed and the epoch name, so that the
    cohorts of an epoch are disjoint; O(cohort) work and memory. Up to `SHUFFLED` clients it is a shuffle, beyond them
    `permuted`. Anyone who knows the seed can redo it: no amplification by sampling is claimed.

    >>> draw_cohort(10**9, 3, epoch=0, step=999_999, seed=PublicSeed(1)).tolist()
    [566610623, 606087478, 939581624]
    """
    places = np.arange(step * cohort_size, (step + 1) * cohort_size)
    assert 0 <= places[0] <= places[-1] < clients, "a round beyond the epoch"
    if clients <= SHUFFLED:
        return _shuffled(clients, epoch, seed)[places]
    return permuted(places, clients, seed.digest("order of clients", epoch))


@lru_cache(maxsize=2)  # every round of an epoch asks for the same one
def _shuffled(clients: int, epoch: int, seed: PublicSeed) -> Indices:
    """Return all clients in a uniformly random order, (clients,) int64, read-only."""
    order = seed.generator("cohorts", epoch).permutation(clients)
    order.setflags(write=False)
    return order


def permuted(numbers: Indices, size: int, key: bytes) -> Indices:
    """Return the images of `numbers`, (n,) int64, under the permutation of 0 .. size-1 that a key of 32 bytes names; O(n).

    >>> sorted(permuted(np.arange(10), 10, bytes(range(32))).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    assert 1 <= size <= MOST
    assert not numbers.size or 0 <= numbers.min() <= numbers.max() < size
    images = _network(np.asarray(numbers, np.int64), size, key)
    while (beyond := np.flatnonzero(images >= size)).size:
        images[beyond] = _network(images[beyond], size, key)
    return images


def _network(numbers: Indices, size: int, key: bytes) -> Indices:
    """Return the images of `numbers` under the permutation of 0 .. a b - 1."""
    a = math.isqrt(size - 1) + 1
    b = -(-size // a)
    right, left = np.divmod(numbers, a)
    # Blocks on their own are what a round function is: nothing is encrypted, so nothing repeats that must not.
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()

    def function(step: int, values: Indices, modulus: int) -> Indices:  # F_step of values, 0 .. modulus-1
        blocks = np.empty((len(values), 2), "<u8")
        blocks[:, 0], blocks[:, 1] = step, values
        words = np.frombuffer(cipher.update(blocks.tobytes()), "<u8")[::2]
        return (words % np.uint64(modulus)).astype(np.int64)

    for step in range(0, NETWORK_STEPS, 2):
        left = (left + function(step, right, a)) % a
        right = (right + function(step + 1, left, b)) % b
    return a * right + left
