"""Clients that stay on disk: TFF's HDF5 and sqlite files, read one client at a time.

A file is opened once in each process that reads it and never crosses a process boundary, so that these
objects can be pickled and sent to workers.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from client.data.dataset import DivisibleClients, Examples, cut
from client.data.fields import Fields, check_group
from client.data.fingerprint import Fingerprint
from client.data.reading import naming, reading
from client.data.sqlite_index import index_of
from client.data.tf_example import read_example
from client.imports import need
from fedmf.errors import DataError

State = tuple[int, ...]
"""Size, time of the last change and inode of a file, as it was when it was loaded."""

Columns = Mapping[str, Any]
"""Column name -> the values of some examples of one user: an array, or a list of bytes."""


class Store(Protocol):
    """One split of a file on disk: its users, how many examples each has, and those examples."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def users(self) -> Sequence[str]:
        """The users, in the file's order."""

    @property
    def counts(self) -> np.ndarray:
        """int64 [users]: the number of examples of each user."""

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return the columns of the examples from `start` to `stop` of the user with number `user`."""


T = TypeVar("T")


def converted(store: Store, convert: Callable[[Columns], T], user: int, start: int, stop: int) -> T:
    """Return what `convert` makes of some examples of a user; a `DataError` names the file and the user."""
    with naming(f"{store.path}, user {store.users[user]!r}"):
        return convert(store.read(user, start, stop))


@dataclass(frozen=True)
class StoredClients(DivisibleClients):
    """Clients of a store: client i is `sizes[i]` examples of user `owners[i]` from `starts[i]` on."""

    store: Store
    convert: Callable[[Columns], Examples]
    owners: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.owners)

    def client(self, i: int) -> Examples:
        """Read and convert one client's examples."""
        start = int(self.starts[i])
        return converted(self.store, self.convert, int(self.owners[i]), start, start + int(self.sizes[i]))

    def first(self, count: int) -> "StoredClients":
        """Return the clients with at most the first `count` examples of each; nothing is read."""
        return replace(self, sizes=np.minimum(self.sizes, count))

    def cut(self, count: int) -> "StoredClients":
        """Return the clients with at most `count` examples each that these are cut into; nothing is read."""
        pieces = -(-self.sizes // count)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        return replace(
            self,
            owners=np.repeat(self.owners, pieces),
            starts=np.repeat(self.starts, pieces) + place * count,
            sizes=cut(self.sizes, count),
        )

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write the names of the users and which of their examples each client has; the examples stay on disk."""
        chosen = slice(numbers.start, numbers.stop)
        for owner in self.owners[chosen]:
            fingerprint.text(self.store.users[owner])
        fingerprint.array(self.starts[chosen])
        fingerprint.array(self.sizes[chosen])


def given_path(path: str | None, where: str) -> Path | None:
    """Return `path` as a Path, None where it is not given.

    Raises `DataError` for one that does not exist, with `where`: which files to put where.
    """
    if path is None:
        return None
    with reading(path, "a file or folder"):  # a name may be too long to be one
        if not Path(path).exists():
            raise DataError(f"path is {path}, which does not exist. {where}")
    return Path(path)


def active_users(store: Store) -> np.ndarray:
    """Return the names of the users who have examples."""
    return np.array(store.users)[np.asarray(store.counts) > 0]


def stored_clients(store: Store, convert: Callable[[Columns], Examples]) -> StoredClients:
    """Return the users of `store` that have examples, as clients."""
    users = np.flatnonzero(store.counts)
    return StoredClients(store, convert, users, np.zeros_like(users), store.counts[users])


def first_examples(
    store: Store,
    convert: Callable[[Columns], Examples],
    limit: int | None = None,
    *,
    seed: int,
    skip: int = 0,
) -> Examples:
    """Return up to `limit` examples of a store (None: all) after the first `skip`.

    Their order is user after user, the users in an order drawn from a public seed. Examples that are skipped are
    not read.
    """
    parts: list[Examples] = []
    missing = int(store.counts.sum()) if limit is None else limit
    for user in np.random.default_rng(seed).permutation(np.flatnonzero(store.counts)):
        held = int(store.counts[user])
        start = min(skip, held)
        stop = min(held, start + missing)
        skip, missing = skip - start, missing - (stop - start)
        if stop > start:
            parts.append(converted(store, convert, int(user), start, stop))
        if missing <= 0:
            break
    if not parts:
        raise DataError("There is no test example left; the test split must hold at least one.")
    return Examples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


@dataclass(frozen=True)
class Hdf5Store:
    """A TFF HDF5 file: /examples/USER/COLUMN with the examples of a user along the first axis."""

    path: Path
    users: tuple[str, ...]
    counts: np.ndarray
    state: State = ()

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return slices of the user's columns."""
        with reading(self.path, "an HDF5 file of TFF"):
            group = _hdf5(self.path, os.getpid(), self.state)["examples"][self.users[user]]
            lengths = {name: column.shape[:1] for name, column in group.items()}
            read = {name: column[start:stop] for name, column in group.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"The columns of {self.users[user]!r} in {self.path} are not of one length.")
        return read


_OF_A_CLIENT = (
    "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
    "ORDER BY rowid LIMIT ? OFFSET ?"
)
_BY_INDEX = (  # CROSS: sqlite keeps this order
    "SELECT serialized_example_proto FROM made.place AS p CROSS JOIN main.examples AS e ON e.rowid = p.row "
    "WHERE p.split_name = ? AND p.client_id = ? ORDER BY p.row LIMIT ? OFFSET ?"
)


@dataclass(frozen=True)
class SqliteStore:
    """One split of a TFF sqlite file: table client_metadata, and examples as serialised tf.train.Example.

    `index` is another file that says where a client's examples stand, None where the file itself does.
    """

    path: Path
    split: str
    users: tuple[str, ...]
    counts: np.ndarray
    index: Path | None = None
    state: State = ()

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return the user's rows, decoded and stacked column by column."""
        with reading(self.path, "a sqlite file of TFF"):
            rows = _sqlite(self.path, os.getpid(), self.index, self.state).execute(
                _OF_A_CLIENT if self.index is None else _BY_INDEX,
                (self.split, self.users[user], stop - start, start),
            )
            messages = [message for (message,) in rows]
        if not all(isinstance(message, bytes) for message in messages):
            raise DataError(
                f"{self.path} holds an example of {self.users[user]!r} that is no tf.train.Example."
            )
        examples = [read_example(message) for message in messages]
        if len(examples) != stop - start:
            raise DataError(
                f"{self.path} holds fewer examples of {self.users[user]!r} than client_metadata says."
            )
        if any(example.keys() != examples[0].keys() for example in examples):
            raise DataError(f"{self.path} holds examples of {self.users[user]!r} with different fields.")
        return {name: _column([example[name] for example in examples]) for name in examples[0]}


@dataclass(frozen=True)
class TffFiles:
    """How TFF names one benchmark: `splits` (train, test) in its sqlite file, and the HDF5 file of each.

    `fields` are the columns that every example has. Of HDF5 files their types and shapes are checked when they are
    opened, for they say so for each user; in a sqlite file only the examples themselves do.
    """

    splits: tuple[str, str]
    hdf5: tuple[str, str]
    fields: Fields


def open_training(path: Path, names: TffFiles) -> Store:
    """Return the training split of TFF's files: a folder of HDF5 files, or a sqlite file."""
    return _open_split(path, names, 0)


def open_test(path: Path, names: TffFiles) -> Store:
    """Return the test split of TFF's files, as `open_training` does."""
    return _open_split(path, names, 1)


def _open_split(path: Path, names: TffFiles, place: int) -> Store:
    if path.is_dir():
        return open_hdf5(tff_file(path, names.hdf5[place]), names.fields)
    return open_sqlite(path, names.splits[place])


def tff_file(path: Path, name: str) -> Path:
    """Return the HDF5 file called `name` in a folder of TFF's files."""
    if not (path / name).is_file():
        held = ", ".join(sorted(file.name for file in path.glob("*.h5"))) or "no HDF5 file"
        raise DataError(
            f"{path} lacks {name}; it holds {held} and must hold it, or LEAF's or the hub's files."
        )
    return path / name


def open_hdf5(path: Path, fields: Fields) -> Hdf5Store:
    """Return the store of a TFF HDF5 file, or raise `DataError`."""
    users, counts = [], []
    with reading(path, "an HDF5 file of TFF"):
        state = _state(path)
        groups = _hdf5(path, os.getpid(), state).get("examples")
        if not hasattr(groups, "keys") or not len(groups):
            raise DataError(f"{path} holds no group examples/USER; it must be an HDF5 file of TFF.")
        for user in groups:
            counts.append(check_group(groups[user], fields, f"User {user!r} in {path}"))
            users.append(user)
    if not sum(counts):
        raise DataError(f"{path} holds no example; fetch TFF's file again, or set path to another.")
    return Hdf5Store(path, tuple(users), np.array(counts, dtype=np.int64), state)


def open_sqlite(path: Path, split: str) -> SqliteStore:
    """Return the store of one split of a TFF sqlite file, or raise `DataError`."""
    with reading(path, "a sqlite file of TFF"):
        state = _state(path)
        file = _sqlite(path, os.getpid(), None, state)
        rows = file.execute(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id",
            (split,),
        )
        found = list(rows)
        file.execute("SELECT split_name, client_id, serialized_example_proto, rowid FROM examples LIMIT 0")
        (held,) = file.execute("SELECT max(rowid) FROM examples").fetchone()
        (of_all,) = file.execute("SELECT coalesce(sum(num_examples), 0) FROM client_metadata").fetchone()
        index = index_of(path, file)
    if not found:
        others = ", ".join(repr(name) for name in _splits(path, file)) or "none"
        raise DataError(
            f"{path} has no clients in the split {split!r}; its splits are {others}, and it must be the sqlite file of "
            "TFF for this data set."
        )
    if wrong := [user for user, _ in found if not isinstance(user, str)]:
        raise DataError(f"client_metadata of {path} names a client {wrong[0]!r}; a client is a text.")
    if wrong := [count for _, count in found if not isinstance(count, int) or count < 0]:
        raise DataError(
            f"client_metadata of {path} counts {wrong[0]!r} examples; it must hold whole numbers."
        )
    counts = dict(found)
    if len(counts) < len(found):
        counts |= _counted(
            path,
            file,
            split,
            [user for user, times in Counter(user for user, _ in found).items() if times > 1],
        )
    if of_all < (held or 0):  # some examples may not be counted
        counts = {user: max(count, inside) for (user, count), inside in zip(
            counts.items(), _counted(path, file, split, tuple(counts)).values(), strict=True)}  # fmt: skip
    if not sum(counts.values()):
        raise DataError(
            f"{path} holds no example in the split {split!r}; fetch TFF's file again, or set path to another."
        )
    if sum(counts.values()) > (held or 0):
        raise DataError(
            f"client_metadata of {path} counts {sum(counts.values())} examples in the split {split!r}; the file holds "
            f"{held or 0}."
        )
    return SqliteStore(
        path, split, tuple(counts), np.array(list(counts.values()), dtype=np.int64), index, state
    )


def _counted(path: Path, file: sqlite3.Connection, split: str, users: Sequence[str]) -> dict[str, int]:
    """Return how many examples users have in the table of examples itself.

    TFF takes only distinct names from client_metadata and all examples of each, whatever is counted there. All counts
    are made in one pass: a file may have no index by client.
    """
    question = "SELECT client_id, COUNT(*) FROM examples WHERE split_name = ? GROUP BY client_id"
    with reading(path, "a sqlite file of TFF"):
        held = dict(file.execute(question, (split,)))
    return {user: held.get(user, 0) for user in users}


def _splits(path: Path, file: sqlite3.Connection) -> list[str]:
    """Return the names of the splits in a TFF sqlite file."""
    with reading(path, "a sqlite file of TFF"):
        rows = file.execute("SELECT DISTINCT split_name FROM client_metadata ORDER BY 1")
        return [str(name) for (name,) in rows]


def _state(path: Path) -> State:
    """Return what tells a file from another one that was put in its place; nothing for one that is not there."""
    if not path.is_file():
        return ()
    held = path.stat()
    return held.st_size, held.st_mtime_ns, held.st_ino


@lru_cache(maxsize=8)
def _hdf5(path: Path, process: int, state: State) -> Any:
    """Return an open HDF5 file; `process` keeps a handle from crossing into a forked worker.

    `state` is that of the file when it was loaded: another file under the same name gets a handle of its own.
    """
    with reading(path, "an HDF5 file"):
        return need("h5py", f"Reading {path}").File(path, "r")


@lru_cache(maxsize=8)
def _sqlite(path: Path, process: int, index: Path | None, state: State) -> sqlite3.Connection:
    """Return a read-only connection, with `index` as `made`; `process` and `state` as for `_hdf5`."""
    if not path.is_file():
        raise DataError(f"The data file {path} does not exist; path must name a sqlite file of TFF.")
    with reading(path, "a sqlite file of TFF"):
        file = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        if index is not None:
            file.execute("ATTACH ? AS made", (f"{index.resolve().as_uri()}?mode=ro",))
        return file


def _column(values: Sequence[list[bytes] | np.ndarray]) -> Any:
    """Return one column: a list of bytes, or an array [n, ...] without an axis for single numbers."""
    if len({(type(value), len(value)) for value in values}) != 1:
        raise DataError("Stored examples of one user hold fields of different types or lengths.")
    if isinstance(values[0], list):
        if len(values[0]) != 1:
            raise DataError(f"A stored example holds {len(values[0])} texts in one field; it must hold one.")
        return [value[0] for value in values]
    stacked = np.stack(values)
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked
