"""Where every random draw comes from: secret keys for privacy, public seeds for everything else.

One secret chain exists, on the server only. The first epoch key is the run secret; `ratchet` gives the next
epoch's key and cannot be undone, so that erasing a key protects its epoch. From an epoch key follow, by domain
separation, the noise rows and one mask key per (client, round). Public randomness (cohort shuffles, rotation
signs, initial models, data order) depends on a `PublicSeed`. The two are different types, so that swapping them
is refused at run time and visible in review.

A draw depends on where it is, not on what ran before: (key, purpose, position) give the same bits on any
machine.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.normals import BLOCK, SPARE, fill_normals

KEY_BYTES = 32


@dataclass(frozen=True)
class SecretKey:
    """A 256-bit secret whose text form never shows it.

    Only `reveal` gives the bytes, so that every disclosure can be searched for. Raises `SettingError` for a key
    of another length or with all bytes equal (no entropy).

    >>> SecretKey.generate()
    SecretKey(hidden)
    """

    _material: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self._material, bytes) or len(self._material) != KEY_BYTES:
            raise SettingError(
                f"a secret key must be {KEY_BYTES} bytes; this one has another type or length."
            )
        if self._material == self._material[:1] * KEY_BYTES:
            raise SettingError("a secret key must be random; all bytes of this one are equal.")

    def __repr__(self) -> str:
        return "SecretKey(hidden)"

    @classmethod
    def generate(cls) -> "SecretKey":
        """Return a fresh key from the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def reproducible(cls, seed: int) -> "SecretKey":
        """Return the key that `seed` names. Anyone can: a run that uses it is reproducible, NOT private."""
        return cls(hashlib.sha256(b"fedmf reproducible, NOT private" + _encode(seed)).digest())

    def derive(self, purpose: str, *position: int | str) -> "SecretKey":
        """Return HMAC-SHA256(key, purpose and position): an unrelated key for every purpose and position."""
        return SecretKey(hmac.digest(self._material, _encode(purpose, *position), "sha256"))

    def ratchet(self) -> "SecretKey":
        """Return the next epoch's key; this one cannot be computed from it."""
        return self.derive("next epoch")

    def mask_key(self, client: str, step: int) -> "SecretKey":
        """Return the mask key of `client` in round `step` (0-based) of the epoch this key belongs to."""
        return self.derive("mask", client, step)

    def reveal(self) -> bytes:
        """Return the 32 secret bytes, for the one client they are meant for or for the secret file."""
        return self._material


@dataclass(frozen=True)
class PublicSeed:
    """A seed that anyone may know: draws from it hide nothing. Raises `SettingError` outside 0 .. 2^63 - 1."""

    value: int

    def __post_init__(self) -> None:
        check_at_least("seed", self.value, 0)
        if self.value >= 2**63:
            raise SettingError(f"seed is {self.value}; it must be below 2^63.")

    def generator(self, purpose: str, *position: int | str) -> np.random.Generator:
        """Return a generator for one purpose and position, unrelated to those of all others.

        >>> PublicSeed(7).generator("cohorts", 0).integers(10, size=3).shape
        (3,)
        """
        digest = self.digest(purpose, *position)
        return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], "<u8")))

    def digest(self, purpose: str, *position: int | str) -> bytes:
        """Return 32 public bytes for one purpose and position, unrelated to those of all others."""
        return hashlib.sha256(_encode("public", self.value, purpose, *position)).digest()

    def signs(self, count: int, purpose: str) -> np.typing.NDArray[np.float32]:
        """Return `count` fair signs, +1 or -1, shape (count,), float32, the same bits on every platform."""
        digest = hashlib.shake_256(_encode("public", self.value, purpose)).digest((count + 7) // 8)
        return 1 - 2 * np.unpackbits(np.frombuffer(digest, np.uint8), count=count).astype(np.float32)


def uniform_words(key: SecretKey, count: int, *, first: int = 0) -> np.typing.NDArray[np.uint64]:
    """Return words first .. first+count-1 of the key's stream: (count,) uint64, AES-256 in counter mode."""
    block, skip = divmod(first, 2)
    return np.frombuffer(_keystream(key, block).update(bytes(8 * (count + skip))), "<u8", count, 8 * skip)


def gaussian_row(key: SecretKey, row: int, dimension: int) -> np.typing.NDArray[np.float64]:
    """Return fresh row `row` of the epoch that `key` belongs to: (dimension,) float64 of independent half-integers.

    They are normal numbers times 2^44 on a lattice, of the law that `fedmf.normals` states, from an AES-256 counter
    stream keyed by (epoch key, row). The same bits on every machine; a shorter row is the beginning of a longer one.
    """
    numbers, block = np.empty(dimension), np.empty(BLOCK)
    raw = bytearray(8 * (BLOCK + SPARE) + 15)  # update_into asks for one block less a byte to spare
    words = np.frombuffer(raw, "<u8", BLOCK + SPARE)
    stream, zeros = _keystream(key.derive("noise row", row), 0), bytes(8 * (BLOCK + SPARE))
    for start in range(0, dimension, BLOCK):
        stream.update_into(zeros, raw)
        whole = numbers[start : start + BLOCK] if start + BLOCK <= dimension else block
        fill_normals(words, whole, lambda count: np.frombuffer(stream.update(bytes(8 * count)), "<u8"))
    if rest := dimension % BLOCK:
        numbers[dimension - rest :] = block[:rest]
    return numbers


def _keystream(key: SecretKey, block: int):  # type: ignore[no-untyped-def]
    """Return an encryptor whose output on zeros is the key's stream from 16-byte block `block` on."""
    return Cipher(algorithms.AES(key.reveal()), modes.CTR(block.to_bytes(16, "big"))).encryptor()


def _encode(*parts: int | str) -> bytes:
    """Return the parts as bytes, each with its type and length, so that no two lists of parts collide."""
    encoded: list[bytes] = []
    for part in parts:
        text = (("s" if isinstance(part, str) else "i") + str(part)).encode()
        encoded += len(text).to_bytes(4, "big"), text
    return b"".join(encoded)
