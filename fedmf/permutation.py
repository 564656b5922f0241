"""A keyed pseudo-random permutation of 0 .. size-1, evaluated where it is needed and nowhere else.

An alternating Feistel network with modular addition (Black and Rogaway, "Ciphers with arbitrary finite domains",
CT-RSA 2002). With a = ceil(sqrt(size)) and b = ceil(size / a) a number is x = a r + l, l below a, r below b; in turn

    l <- l + F_i(r) mod a,        r <- r + F_i(l) mod b,

each of which can be undone, so that the whole is a permutation of 0 .. a b - 1 whatever F is. F_i(v) is the first half of
the AES-256 block of (i, v), 64 bits: taken mod a it is uniform to a / 2^64. Where an image is beyond `size` the network is
applied again until it is not (cycle walking), which makes it one of 0 .. size-1: fewer than a of the a b numbers are
beyond, so that one in sqrt(size) is walked on.

>>> sorted(Permutation(10, bytes(range(32)))(np.arange(10)).tolist())
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from fedmf.checks import check_at_least
from fedmf.errors import SettingError

ROUNDS = 24
"""Steps of the network. Four make it a permutation that few queries cannot tell from a uniform one (Luby and Rackoff 1988);
over all of a small domain more are needed, and tests/fedmf/test_permutation.py looks at those."""

KEY_BYTES = 32
MOST = 2**62  # sums of two halves, and a b, stay far below 2^63


@dataclass(frozen=True)
class Permutation:
    """The permutation of 0 .. size-1 that a key of 32 bytes names; a public one for what is public.

    Raises `SettingError` for a size outside 1 .. 2^62 and a key of another length.
    """

    size: int
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_at_least("size", self.size, 1)
        if self.size > MOST:
            raise SettingError(f"size is {self.size}; it must be at most {MOST}.")
        if len(self.key) != KEY_BYTES:
            raise SettingError(f"the key has {len(self.key)} bytes; it must have {KEY_BYTES}.")

    def __call__(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the images of `numbers`, (n,) int64 from 0 .. size-1, in O(n). Raises `SettingError` for others."""
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.size:
            raise SettingError(
                f"the numbers run from {numbers.min()} to {numbers.max()}; they must be from 0 to {self.size - 1}."
            )
        images = self._network(np.asarray(numbers, np.int64))
        while (beyond := np.flatnonzero(images >= self.size)).size:
            images[beyond] = self._network(images[beyond])
        return images

    def _network(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the images of `numbers` under the permutation of 0 .. a b - 1."""
        a = math.isqrt(self.size - 1) + 1
        b = -(-self.size // a)
        right, left = np.divmod(numbers, a)
        # Blocks on their own are what a round function is: nothing is encrypted, so nothing repeats that must not.
        cipher = Cipher(algorithms.AES(self.key), modes.ECB()).encryptor()
        for step in range(0, ROUNDS, 2):
            left = (left + _function(cipher, step, right, a)) % a
            right = (right + _function(cipher, step + 1, left, b)) % b
        images: npt.NDArray[np.int64] = a * right + left
        return images


def _function(
    cipher: CipherContext, step: int, values: npt.NDArray[np.int64], modulus: int
) -> npt.NDArray[np.int64]:
    """Return F_step of `values`, each from 0 .. modulus-1."""
    blocks = np.empty((len(values), 2), "<u8")
    blocks[:, 0], blocks[:, 1] = step, values
    words = np.frombuffer(cipher.update(blocks.tobytes()), "<u8")[::2]
    return (words % np.uint64(modulus)).astype(np.int64)
