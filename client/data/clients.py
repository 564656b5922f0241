"""Clients of a dataset: made when asked for, rows of big arrays mostly, and recognised by a digest.

Clients are cut lazily from big arrays: `clients[i]` copies only client i's rows, so that a memory-mapped file of any size
serves thousands of clients without being read whole. A user of whom only some examples are used is still the unit of
privacy (Kairouz et al. 2021 use the first 256); a user who is cut into clients is not.

A run resumes after a crash, and a node after a restart, only with the clients it began with, which a digest under a key
recognises: a number stands for the same unit of privacy all the time.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from client.data.dataset import Examples, as_float32, as_targets, converted
from fedmf.errors import DataError
from fedmf.randomness import SecretKey

_AT_ONCE = 1 << 24  # bytes of a memory-mapped file that are read at once to identify clients
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
        else:
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


def check_clients_repeat(clients: Sequence[Examples]) -> None:
    """Raise `DataError` for clients that hold something else at each reading, as with augmentation.

    A run on them could never be resumed: its clients would not be recognised. A few clients are read twice; those that
    have an `identify` of their own must write the same twice.
    """
    key = SecretKey.generate()
    for first in sorted({k * max(len(clients) - 1, 0) // (_TRIED - 1) for k in range(_TRIED)}):
        once, again = (digest_clients(clients, key, first, first + 1) for _ in range(2))
        if once != again:
            raise DataError(
                f"client {first} of the dataset holds other examples at each reading, so that a run could not be "
                "resumed: its clients would not be recognised. Give the clients a method identify that writes what "
                "stays the same (docs/data.md), or draw the examples from a seed."
            )


@dataclass(frozen=True)
class ArrayClients(LazyClients):
    """Clients that are rows of two big arrays: client i owns the rows `order[bounds[i]:bounds[i + 1]]`.

    `x` [N, ...] and `y` [N, ...] may be memory-mapped; `order` int64 holds the training rows client by
    client, `bounds` int64 [clients + 1] is increasing. `convert` turns stored inputs into what a model takes. With `sizes`
    [clients] client i owns only so many rows, from `bounds[i]` on. Rows are identified by `known_by` [N, ...] where they
    take too long to be read.
    """

    x: np.ndarray
    y: np.ndarray
    order: np.ndarray
    bounds: np.ndarray
    convert: Callable[[np.ndarray], np.ndarray] = as_float32
    sizes: np.ndarray | None = None
    known_by: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def owned(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
        """Return (how many rows each of the clients `numbers` owns, these rows client by client)."""
        chosen = slice(numbers.start, numbers.stop)
        sizes = self._sizes()[chosen]
        return sizes, self.order[np.repeat(self.bounds[:-1][chosen], sizes) + _places(sizes)]

    def client(self, i: int) -> Examples:
        start = int(self.bounds[i])
        stop = int(self.bounds[i + 1]) if self.sizes is None else start + int(self.sizes[i])
        rows = self.order[start:stop]
        return Examples(self.convert(self.x[rows]), as_targets(self.y[rows]))

    def first(self, count: int) -> "ArrayClients":
        """Return the clients with at most the first `count` rows of each."""
        return replace(self, sizes=np.minimum(self._sizes(), count))

    def cut(self, count: int) -> "ArrayClients":
        """Return the clients with at most `count` rows each that these are cut into, in order."""
        parts = -(-self._sizes() // count)
        begins = _places(parts) * count  # among the rows of the client that is cut
        starts = np.repeat(self.bounds[:-1], parts) + begins
        sizes = np.minimum(np.repeat(self._sizes(), parts) - begins, count)
        return replace(self, bounds=np.append(starts, self.bounds[-1]), sizes=sizes)

    def _sizes(self) -> np.ndarray:
        return np.diff(self.bounds) if self.sizes is None else self.sizes

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write how many rows each client has, and then all rows, client by client, as they are stored or known."""
        stored = (self.x, self.y) if self.known_by is None else (self.known_by,)
        if any(array.dtype.hasobject for array in stored):
            identify_each(self, fingerprint, numbers)
            return
        sizes, rows = self.owned(numbers)
        fingerprint.array(sizes)
        for array in stored:
            at_once = max(1, _AT_ONCE // max(1, array[:1].nbytes))
            for start in range(0, len(rows), at_once):
                fingerprint.array(array[rows[start : start + at_once]])


def _places(sizes: np.ndarray) -> np.ndarray:
    """Return 0 .. size - 1 for each of the `sizes`, one after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # type: ignore[no-any-return]


def by_user(
    x: np.ndarray,
    y: np.ndarray,
    users: np.ndarray,
    rows: np.ndarray,
    convert: Callable[[np.ndarray], np.ndarray] = as_float32,
) -> ArrayClients:
    """Return the clients that hold the `rows` of `x` [N, ...] and `y` [N, ...], in their order, by `users` [N], increasing."""
    owners = users[rows]
    bounds = np.concatenate([[0], np.cumsum(np.unique(owners, return_counts=True)[1])]).astype(np.int64)
    return ArrayClients(x, y, rows[np.argsort(owners, kind="stable")], bounds, convert)


def stored_examples(
    x: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    convert: Callable[[np.ndarray], np.ndarray] = as_float32,
) -> Examples:
    """Return the examples `rows` of two big arrays, converted now where they are few and batch by batch where not."""
    return Examples(converted(x, rows, convert), converted(y, rows, as_targets))
