"""What a federated data set is: many small clients, one public test set, and the words that describe both.

Clients are cut lazily from big arrays: `dataset.clients[i]` copies only client i's rows, so that a
memory-mapped file of any size serves thousands of clients without being read whole.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from client.data.arrays import converted, take
from client.data.fingerprint import Fingerprint
from fedmf.checks import check_at_least
from fedmf.errors import DataError

CLASSIFICATION = "classification"
NEXT_TOKEN = "next_token"
TASKS = (CLASSIFICATION, NEXT_TOKEN)

IGNORED_TARGET = -100
"""A target that neither the loss nor the accuracy counts (padding); torch's own default `ignore_index`."""

_AT_ONCE = 1 << 24  # bytes of a memory-mapped file that are read at once to identify clients


@dataclass(frozen=True)
class Examples:
    """The examples of one client, or of the test set.

    `x` is float32 [n, *input_shape] and `y` int64 [n] for classification; both are int64 [n, length] for
    text, where `y` is `x` moved on by one token and `IGNORED_TARGET` where `x` is padding. Of a big test set they
    may be `client.data.arrays.Converted`, whose slices and rows are arrays made when they are asked for.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        """Raise `DataError` when inputs and targets differ in number."""
        if len(self.x) != len(self.y):
            raise DataError(
                f"There are {len(self.x)} inputs but {len(self.y)} targets; there must be as many."
            )

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.y)

    def take(self, rows: np.ndarray) -> "Examples":
        """Return the examples with the numbers `rows`."""
        return Examples(take(self.x, rows), take(self.y, rows))


@dataclass(frozen=True)
class Dataset:
    """A federated data set. Everything but `clients` is public.

    `clients` has one entry per unit of privacy, each with at least one training example. `classes` is the
    number of labels, or the size of the vocabulary. `unit` says in words what one client is; `uncovered`
    holds a sentence for everything that the loader learnt from the training users outside the private
    mechanism. `uncounted` are targets left out of the accuracy though the loss counts them (out-of-vocabulary
    and end of sentence, as in the literature). `person` is whose examples one client holds ("writer"), None where
    nobody's are: only then can clients not be cut. `notes` are sentences about public data, for whoever starts a
    run; no statement repeats them.
    """

    name: str
    clients: Sequence[Examples]
    test: Examples
    input_shape: tuple[int, ...]
    classes: int
    task: str
    licence: str
    source: str
    unit: str
    uncovered: tuple[str, ...] = ()
    uncounted: tuple[int, ...] = ()
    person: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `DataError` for a data set that cannot train anything."""
        if self.task not in TASKS:
            raise DataError(
                f"The task of dataset {self.name} is {self.task!r}; it must be one of {', '.join(TASKS)}."
            )
        if len(self.clients) == 0:
            raise DataError(
                f"Dataset {self.name} has no client with a training example; it must have at least one."
            )
        if len(self.test) == 0:
            raise DataError(f"Dataset {self.name} has no test example; it must have at least one.")


def as_float32(x: np.ndarray) -> np.ndarray:
    """Return `x` as float32; uint8 is divided by the public constant 255.

    >>> as_float32(np.array([0, 51, 255], dtype=np.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore"):  # infinity, which the check of the examples refuses
        return x.astype(np.float32)


def as_tokens(x: np.ndarray) -> np.ndarray:
    """Return numbers of tokens or classes as int64."""
    return x.astype(np.int64)


class LazyClients(Sequence[Examples]):
    """Clients made when asked for: a subclass says how many there are and what client i (0-based) holds."""

    @abstractmethod
    def client(self, i: int) -> Examples:
        """Return the examples of client i, 0 <= i < len(self)."""

    @overload
    def __getitem__(self, index: int) -> Examples: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Examples]: ...
    def __getitem__(self, index: int | slice) -> Examples | Sequence[Examples]:
        """Return one client's examples, or a list of several clients' for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return self.client(i)

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write into `fingerprint` who the clients `numbers` are, in order.

        Other clients, or the same in another order, must write something else, and the same ones the same at every
        call. This writes all that they hold, read one by one; override it where that is slow, or where a client's
        examples are drawn anew at every access.
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


class DivisibleClients(LazyClients):
    """Clients that know how many examples each has, so that they can be cut and shortened without being read."""

    @abstractmethod
    def first(self, count: int) -> "DivisibleClients":
        """Return the same clients with at most the first `count` examples of each."""

    @abstractmethod
    def cut(self, count: int) -> "DivisibleClients":
        """Return the examples of each client as clients of at most `count` examples, in order."""


@dataclass(frozen=True)
class ArrayClients(DivisibleClients):
    """Clients that are rows of two big arrays: client i owns the rows `order[bounds[i]:bounds[i + 1]]`.

    `x` [N, ...] and `y` [N, ...] may be memory-mapped; `order` int64 holds the training rows client by
    client, `bounds` int64 [clients + 1] is increasing. `convert` turns stored inputs into what a model takes. With `sizes`
    [clients] client i owns only so many rows, from `bounds[i]` on.
    """

    x: np.ndarray
    y: np.ndarray
    order: np.ndarray
    bounds: np.ndarray
    convert: Callable[[np.ndarray], np.ndarray] = as_float32
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.bounds) - 1

    def owned(self, numbers: range) -> tuple[np.ndarray, np.ndarray]:
        """Return (how many rows each of the clients `numbers` owns, these rows client by client)."""
        chosen = slice(numbers.start, numbers.stop)
        sizes = self._sizes()[chosen]
        starts = self.bounds[:-1][chosen]
        place = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return sizes, self.order[np.repeat(starts, sizes) + place]

    def client(self, i: int) -> Examples:
        """Return copies of one client's examples."""
        start = int(self.bounds[i])
        rows = self.order[
            start : int(self.bounds[i + 1]) if self.sizes is None else start + int(self.sizes[i])
        ]
        return Examples(self.convert(self.x[rows]), self.y[rows].astype(np.int64))

    def first(self, count: int) -> "ArrayClients":
        """Return the clients with at most the first `count` rows of each."""
        return replace(self, sizes=np.minimum(self._sizes(), count))

    def cut(self, count: int) -> "ArrayClients":
        """Return the clients with at most `count` rows each that these are cut into."""
        pieces = -(-self._sizes() // count)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = np.repeat(self.bounds[:-1], pieces) + place * count
        return replace(self, bounds=np.append(starts, self.bounds[-1]), sizes=cut(self._sizes(), count))

    def _sizes(self) -> np.ndarray:
        sizes: np.ndarray = np.diff(self.bounds) if self.sizes is None else self.sizes
        return sizes

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write how many rows each client has, and then all rows, client by client, as they are stored."""
        if self.x.dtype.hasobject or self.y.dtype.hasobject:
            identify_each(self, fingerprint, numbers)
            return
        sizes, rows = self.owned(numbers)
        fingerprint.array(sizes)
        at_once = max(1, _AT_ONCE // max(1, self.x[:1].nbytes))
        for start in range(0, len(rows), at_once):
            fingerprint.array(self.x[rows[start : start + at_once]])
        fingerprint.array(self.y[rows])


def split_by_user(
    x: np.ndarray,
    y: np.ndarray,
    users: np.ndarray,
    test: np.ndarray,
    convert: Callable[[np.ndarray], np.ndarray] = as_float32,
    *,
    clients_only: bool = False,
) -> tuple[ArrayClients, Examples]:
    """Return (clients, test set) of `x` [N, ...] and `y` [N, ...].

    The clients hold the rows where `test` [N] is false, by `users` [N]; the test set holds the others, of which nothing
    is read with `clients_only`.
    """
    train_rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
    order, bounds = group_by_user(users[train_rows])
    clients = ArrayClients(x, y, train_rows[order], bounds, convert)
    return clients, stored_examples(x, y, test_rows, convert, clients_only=clients_only)


def stored_examples(
    x: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    convert: Callable[[np.ndarray], np.ndarray] = as_float32,
    *,
    clients_only: bool = False,
) -> Examples:
    """Return the examples `rows` of two big arrays, converted now where they are few and batch by batch where not.

    With `clients_only` none of them is read: `stand_in` is returned.
    """
    if clients_only:
        return stand_in(tuple(x.shape[1:]), CLASSIFICATION if y.ndim == 1 else NEXT_TOKEN)
    return Examples(converted(x, rows, convert), converted(y, rows, as_tokens))


def stand_in(input_shape: tuple[int, ...], task: str) -> Examples:
    """Return a made-up example in place of a test set, in a process that plays clients and scores nothing.

    >>> stand_in((2, 2), CLASSIFICATION).x.tolist(), stand_in((2,), NEXT_TOKEN).y.tolist()
    ([[[0.0, 0.0], [0.0, 0.0]]], [[0, 0]])
    """
    if task == CLASSIFICATION:
        return Examples(np.zeros((1, *input_shape), np.float32), np.zeros(1, np.int64))
    return Examples(np.zeros((1, *input_shape), np.int64), np.zeros((1, *input_shape), np.int64))


def group_by_user(users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (order, bounds) of `ArrayClients`: rows user by user (increasing), rows in file order.

    `users` [N] names the user of each row.

    >>> order, bounds = group_by_user(np.array([7, 3, 7, 7]))
    >>> order.tolist(), bounds.tolist()
    ([1, 0, 2, 3], [0, 1, 4])
    """
    return np.argsort(users, kind="stable"), _bounds(np.unique(users, return_counts=True)[1])


def _bounds(counts: np.ndarray) -> np.ndarray:
    """Return where clients with `counts` rows begin and end, int64 [clients + 1]."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def cut(counts: np.ndarray, examples_per_client: int) -> np.ndarray:
    """Return the sizes of the clients that users with `counts` examples are cut into.

    >>> cut(np.array([5, 1, 4]), 2).tolist()
    [2, 2, 1, 1, 2, 2]
    """
    check_at_least("examples_per_client", examples_per_client, 1)
    pieces = -(-counts // examples_per_client)
    sizes = np.full(int(pieces.sum()), examples_per_client, dtype=np.int64)
    last = np.cumsum(pieces) - 1
    sizes[last[pieces > 0]] = (counts - (pieces - 1) * examples_per_client)[pieces > 0]
    return sizes


def describe_unit(
    person: str, examples_per_client: int | None = None, max_examples_per_user: int | None = None
) -> str:
    """Return what one client is, in words, for the privacy statement.

    A user of whom only the first examples are used stays the unit; one who is cut does not.

    >>> describe_unit("writer")
    'one writer = one client'
    >>> describe_unit("writer", max_examples_per_user=256)
    "one writer = one client, with at most the writer's first 256 examples"
    """
    most = max_examples_per_user
    if examples_per_client is None:
        whole = f"one {person} = one client"
        return whole if most is None else f"{whole}, with at most the {person}'s first {most} examples"
    pieces = "" if most is None else f" (at most {-(-most // examples_per_client)} of one {person})"
    kept = "" if most is None else f", of whose examples at most the first {most} are used,"
    return (
        f"one {person}{kept} cut into clients of at most {examples_per_client} examples{pieces}: "
        f"the unit of privacy is the cut client, not the {person}"
    )


def shared_users(train: np.ndarray, test: np.ndarray) -> tuple[str, ...]:
    """Return what is not covered where users of the test split train too, as a sentence; none where none does.

    `train` and `test` name the users of the two splits, each any number of times.

    >>> shared_users(np.array(["a", "b"]), np.array(["b", "c", "b"]))[0].split(":")[0]
    '1 of 2 users of the test split also train'
    """
    tested = np.unique(test)
    both = int(np.isin(tested, train).sum())
    if not both:
        return ()
    return (
        f"{both:,} of {len(tested):,} users of the test split also train: "
        "their test examples are treated as public, and only their training examples are covered.",
    )
