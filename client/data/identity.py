"""Who the clients of a data set are, as a digest under a key.

A run resumes after a crash, and a node after a restart, only with the clients it began with: a number stands for the same
unit of privacy all the time.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from client.data.dataset import Examples
from fedmf.errors import DataError
from fedmf.randomness import SecretKey

_TRIED = 4  # clients that are read twice before a run begins


class Fingerprint:
    """A digest under a key of texts and arrays, each with its type and size, so that no two lists of them collide.

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


class LazyClients(Sequence[Examples]):
    """Clients made when asked for: a subclass says how many there are and what client i (0-based) holds."""

    @abstractmethod
    def client(self, i: int) -> Examples:
        """Return the examples of client i, 0 <= i < len(self)."""

    def __getitem__(self, index: Any) -> Any:
        """Return one client's examples, or a list of several clients' for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.client(range(len(self))[index])

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write into `fingerprint` who the clients `numbers` are, in order.

        Other clients, or the same in another order, must write something else, and the same ones the same at every
        call. This writes all that they hold, read one by one; override it where that is slow, or where a client's
        examples are drawn again at every access.
        """
        identify_each(self, fingerprint, numbers)


def identify_each(clients: Sequence[Examples], fingerprint: Fingerprint, numbers: range) -> None:
    """Write the examples of the clients `numbers` one by one.

    A client that cannot be read is written as such: it must not decide what becomes of the others.
    """
    for i in numbers:
        try:
            examples = clients[i]
            arrays = [np.asarray(examples.x), np.asarray(examples.y)]
            if any(array.dtype.hasobject for array in arrays):
                raise DataError("objects cannot be trained on")
        except Exception:  # as in training, where it becomes a zero update
            fingerprint.text("unreadable")
            continue
        for array in arrays:
            fingerprint.array(array)


def digest_clients(
    clients: Sequence[Examples], key: SecretKey, first: int = 0, stop: int | None = None
) -> str:
    """Return a digest under `key` of clients `first` to `stop` (None: the last), as 64 hexadecimal digits.

    It covers what `LazyClients.identify` writes: names, content, or what the clients are drawn from.
    """
    numbers = range(first, len(clients) if stop is None else min(stop, len(clients)))
    fingerprint = Fingerprint(key)
    fingerprint.text(f"{numbers.start} {numbers.stop}")
    identify_clients(clients, fingerprint, numbers)
    return fingerprint.hexdigest()


def identify_clients(clients: Sequence[Examples], fingerprint: Fingerprint, numbers: range) -> None:
    """Write who the clients are, as they say it themselves; clients in a plain sequence are read one by one."""
    if isinstance(clients, LazyClients):
        clients.identify(fingerprint, numbers)
    else:
        identify_each(clients, fingerprint, numbers)


def refuse_changing_clients(clients: Sequence[Examples]) -> None:
    """Raise `DataError` for clients that hold something else at each reading, as with augmentation.

    A run on them could never be resumed: its clients would not be recognised. A few clients are read twice; those that
    have an `identify` of their own must write the same twice.
    """
    key = SecretKey.generate()
    for first in sorted({k * max(len(clients) - 1, 0) // (_TRIED - 1) for k in range(_TRIED)}):
        once, again = (digest_clients(clients, key, first, first + 1) for _ in range(2))
        if once != again:
            raise DataError(
                f"client {first} of the data set holds other examples at each reading, so that a run could not be "
                "resumed: its clients would not be recognised. Give the clients a method identify that writes what "
                "stays the same (docs/data.md), or draw the examples from a seed."
            )
