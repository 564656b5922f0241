"""A digest under a key of texts and arrays, each with its type and size, so that no two lists of them collide."""

import hashlib

import numpy as np

from fedmf.randomness import SecretKey


class Fingerprint:
    """What was written so far, as a digest that says nothing without its key.

    >>> key = SecretKey.reproducible(0)
    >>> one, other = Fingerprint(key), Fingerprint(key)
    >>> one.array(np.arange(3)), other.array(np.arange(3))
    (None, None)
    >>> one.hexdigest() == other.hexdigest() != Fingerprint(key).hexdigest()
    True
    """

    def __init__(self, key: SecretKey) -> None:
        self._digest = hashlib.blake2b(digest_size=32, key=key.reveal(), person=b"fedmf clients")

    def text(self, text: str) -> None:
        """Write a text."""
        data = text.encode("utf-8", "surrogatepass")
        self._digest.update(b"t%d:" % len(data) + data)

    def array(self, array: np.ndarray) -> None:
        """Write an array [...] of numbers or fixed texts: type, shape and content."""
        self.text(f"{array.dtype.str} {array.shape}")
        self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def hexdigest(self) -> str:
        """Return the digest of all that was written, as 64 hexadecimal digits."""
        return self._digest.hexdigest()
