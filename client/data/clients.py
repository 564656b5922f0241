"""Clients of a data set: rows of big arrays, checked when they are read, cut, limited or held out.

Clients are cut lazily from big arrays: `clients[i]` copies only client i's rows, so that a memory-mapped file of any size
serves thousands of clients without being read whole. A user of whom only some examples are used is still the unit of
privacy (Kairouz et al. 2021 use the first 256); a user who is cut into clients is not.

A run resumes after a crash, and a node after a restart, only with the clients it began with, which a digest under a key
recognises: a number stands for the same unit of privacy all the time.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from client.data.dataset import (
    IGNORED_TARGET,
    Dataset,
    Examples,
    Public,
    as_float32,
    as_tokens,
    converted,
    describe_unit,
    pieces,
)
from client.imports import own_code
from client.settings import HELD_OUT_USES
from fedmf.checks import check_at_least, check_choice, check_open_unit
from fedmf.errors import DataError, SettingError
from fedmf.participation import permuted
from fedmf.randomness import PublicSeed, SecretKey

TEST_SEED = 0
"""Public and fixed: it chooses test examples and held-out clients, whatever a run's seed is."""
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
        return Examples(self.convert(self.x[rows]), self.y[rows].astype(np.int64))

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
        sizes: np.ndarray = np.diff(self.bounds) if self.sizes is None else self.sizes
        return sizes

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
    places: np.ndarray = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


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
    return Examples(converted(x, rows, convert), converted(y, rows, as_tokens))


@dataclass(frozen=True)
class CheckedClients(LazyClients):
    """The clients `held`, each checked when it is read, with at most the first `most` examples of each.

    Raises `DataError` for examples that are not what is `public`, and for whatever a user's own code of clients raises.
    """

    held: Sequence[Examples]
    public: Public
    dataset: str
    most: int | None = None

    def __len__(self) -> int:
        return len(self.held)

    def client(self, i: int) -> Examples:
        """Return one client's examples, after a look at all their values."""
        who = f"client {i} of dataset {self.dataset}"
        with own_code(f"{who} failed", DataError):
            examples = self.held[i]
        if self.most is not None and isinstance(examples, Examples):
            examples = Examples(examples.x[: self.most], examples.y[: self.most])
        self.public.check(examples, who)
        return examples

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write how many examples are kept, if not all, and who the clients are, as they say it themselves."""
        if self.most is not None:
            fingerprint.text(f"first {self.most}")
        with own_code(f"identify of the clients of dataset {self.dataset} failed", DataError):
            identify_clients(self.held, fingerprint, numbers)


def check_counted(dataset: Dataset) -> None:
    """Raise `DataError` where the accuracy would count no target of the test set: padding, or unknown words, alone."""
    y, left_out = dataset.test.y, (IGNORED_TARGET, *dataset.uncounted)
    if y.dtype.kind != "f" and all(np.isin(part, left_out).all() for part in pieces(y)):
        raise DataError(
            f"The test set of dataset {dataset.name} has no target that the accuracy counts: all are padding, unknown or "
            "ends of texts. Give test texts that are not empty, of words that the vocabulary knows."
        )


def limited(
    dataset: Dataset,
    public: Public | None = None,
    *,
    max_examples_per_user: int | None = None,
    examples_per_client: int | None = None,
    max_test_examples: int | None = None,
    path: object = None,
) -> Dataset:
    """Return `dataset` with its clients checked when they are read, and with what is asked for, in this order.

    Of each user the first `max_examples_per_user` examples are kept and the others discarded; users are cut into
    clients of at most `examples_per_client` examples; `max_test_examples` test examples are kept, drawn by a public
    seed (fewer of them are always among more). `unit` states the first two. Raises `SettingError` for numbers below
    one, and for cutting clients that are no person's.

    With `public` clients are compared with it, and the test set is empty; otherwise with what the test set shows, which is
    checked now. `path`: where it was read, for the messages. Raises `DataError` for a test set, shape or number of classes
    that cannot be right.
    """
    clients, unit, person, most = dataset.clients, dataset.unit, dataset.person, max_examples_per_user
    for name, value in (
        ("max_examples_per_user", most),
        ("examples_per_client", examples_per_client),
        ("max_test_examples", max_test_examples),
    ):
        if value is not None:
            check_at_least(name, value, 1)
    if most is not None:
        of_each = f"{unit}, with at most the first {most} examples of each"
        unit = of_each if person is None else describe_unit(person, None, most)
        if isinstance(clients, ArrayClients):
            clients, most = clients.first(most), None
    if examples_per_client is not None:
        if person is None or not isinstance(clients, ArrayClients):
            raise SettingError(
                f"examples_per_client is {examples_per_client}, but the clients of dataset {dataset.name} cannot be "
                "cut; leave it out."
            )
        clients = clients.cut(examples_per_client)
        unit = describe_unit(person, examples_per_client, max_examples_per_user)
    if public is None:
        public = dataset.public
        test = subsample(dataset.test, max_test_examples)
        public.check(test, f"the test set of dataset {dataset.name}{'' if path is None else f' at {path}'}")
    else:
        test = public.none()
    return replace(
        dataset,
        unit=unit,
        test=test,
        input_shape=public.shape,
        classes=public.classes,
        task=public.task,
        labels=public.labels,
        clients=CheckedClients(clients, public, dataset.name, most),
    )


def subsample(examples: Examples, count: int | None) -> Examples:
    """Return `count` examples drawn by the public seed, or all where there are no more, in their order."""
    if count is None or len(examples) <= count:
        return examples
    rows = np.sort(np.random.default_rng(TEST_SEED).permutation(len(examples))[:count])
    return Examples(examples.x[rows], examples.y[rows])


@dataclass(frozen=True)
class SomeClients(LazyClients):
    """The clients of `everyone` whose numbers are the images of `places` under a public permutation."""

    everyone: LazyClients
    key: bytes
    places: range

    def __len__(self) -> int:
        return len(self.places)

    def client(self, i: int) -> Examples:
        return self.everyone.client(self._number(i))

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write which places these are, and who the clients are; for all of them, who everyone is."""
        fingerprint.text(f"{self.places} of {len(self.everyone)}")
        if len(numbers) == len(self):
            self.everyone.identify(fingerprint, range(len(self.everyone)))
        else:
            for number in map(self._number, numbers):
                self.everyone.identify(fingerprint, range(number, number + 1))

    def _number(self, i: int) -> int:
        return int(permuted(np.array([self.places[i]]), len(self.everyone), self.key)[0])


def hold_out(dataset: Dataset, share: float, use: str, max_test_examples: int | None = None) -> Dataset:
    """Return `dataset` with floor(`share` N) of its N clients held out: the first ones of a public order of 0 .. N-1.

    `use` score: they do not train, and their examples, which count as public, are the test set. none: they do not train.
    train: no other clients train, so that settings can be tuned on them; the test set of the data scores both of these.
    Without test examples none are made. Raises `SettingError` for a share of which no client is left.
    """
    check_open_unit("held_out", share)
    check_choice("held_out_use", use, HELD_OUT_USES)
    clients = len(dataset.clients)
    count = math.floor(share * clients)
    if count == 0:
        raise SettingError(f"held_out is {share}, which is none of {clients} clients; give a larger share.")
    assert isinstance(dataset.clients, LazyClients)  # `limited` makes them so
    key = PublicSeed(TEST_SEED).digest("held out clients")
    held = SomeClients(dataset.clients, key, range(count))
    trained = held if use == "train" else replace(held, places=range(count, clients))
    named = f"{count:,} of {clients:,} clients are held out"
    does = {"score": "do not train and score the model", "none": "do not train", "train": "train alone"}
    dataset = replace(dataset, clients=trained, notes=(*dataset.notes, f"{named}; they {does[use]}"))
    if use != "score" or not len(dataset.test):
        return dataset
    test = subsample(readable(held, dataset.name), max_test_examples)
    said = (
        f"{named}: they do not train, the model is scored on their examples, and these are treated as public."
    )
    return replace(dataset, test=test, uncovered=(*dataset.uncovered, said))


def readable(clients: Sequence[Examples], name: str) -> Examples:
    """Return the examples of all clients that can be read. Raises `DataError` where none can: one alone decides nothing."""
    found = []
    for i in range(len(clients)):
        with suppress(Exception):  # as in training, where it becomes a zero update
            found.append(clients[i])
    if not found:
        raise DataError(f"No held-out client of dataset {name} can be read; the model could not be scored.")
    x, y = (np.concatenate([getattr(one, part) for one in found]) for part in ("x", "y"))
    return Examples(x, y)
