"""Clients that stay on disk: TFF's HDF5 and sqlite files, read one client at a time.

A file is opened once in each process that reads it and never crosses a process boundary, so that these
objects can be pickled and sent to workers.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from client.data.dataset import Examples, LazyClients, cut
from client.data.fingerprint import Fingerprint
from client.data.tf_example import read_example
from client.imports import need
from fedmf.errors import DataError

Columns = Mapping[str, Any]
"""Column name -> the values of some examples of one user: an array, or a list of bytes."""


class Store(Protocol):
    """One split of a file on disk: its users, how many examples each has, and those examples."""

    @property
    def users(self) -> Sequence[str]:
        """The users, in the file's order."""

    @property
    def counts(self) -> np.ndarray:
        """int64 [users]: the number of examples of each user."""

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return the columns of the examples from `start` to `stop` of the user with number `user`."""


@dataclass(frozen=True)
class StoredClients(LazyClients):
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
        return self.convert(self.store.read(int(self.owners[i]), start, start + int(self.sizes[i])))

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
    if path is not None and not Path(path).exists():
        raise DataError(f"path is {path}, which does not exist. {where}")
    return None if path is None else Path(path)


def stored_clients(
    store: Store, convert: Callable[[Columns], Examples], examples_per_client: int | None
) -> StoredClients:
    """Return the users of `store` that have examples as clients of at most `examples_per_client`."""
    users = np.flatnonzero(store.counts)
    counts = store.counts[users]
    if examples_per_client is None:
        return StoredClients(store, convert, users, np.zeros_like(users), counts)
    pieces = -(-counts // examples_per_client)
    owners = np.repeat(users, pieces)
    place = np.arange(len(owners)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    return StoredClients(
        store, convert, owners, place * examples_per_client, cut(counts, examples_per_client)
    )


def first_examples(
    store: Store, convert: Callable[[Columns], Examples], limit: int, *, seed: int
) -> Examples:
    """Return up to `limit` examples of a store, user after user in an order drawn from a public seed."""
    parts: list[Examples] = []
    missing = limit
    for user in np.random.default_rng(seed).permutation(np.flatnonzero(store.counts)):
        if missing <= 0:
            break
        count = min(missing, int(store.counts[user]))
        parts.append(convert(store.read(int(user), 0, count)))
        missing -= count
    return Examples(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


@dataclass(frozen=True)
class Hdf5Store:
    """A TFF HDF5 file: /examples/USER/COLUMN with the examples of a user along the first axis."""

    path: Path
    users: tuple[str, ...]
    counts: np.ndarray

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return slices of the user's columns."""
        group = _hdf5(self.path, os.getpid())["examples"][self.users[user]]
        return {name: column[start:stop] for name, column in group.items()}


@dataclass(frozen=True)
class SqliteStore:
    """One split of a TFF sqlite file: table client_metadata, and examples as serialised tf.train.Example."""

    path: Path
    split: str
    users: tuple[str, ...]
    counts: np.ndarray

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return the user's rows, decoded and stacked column by column."""
        rows = _sqlite(self.path, os.getpid()).execute(
            "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
            "ORDER BY rowid LIMIT ? OFFSET ?",
            (self.split, self.users[user], stop - start, start),
        )
        examples = [read_example(message) for (message,) in rows]
        if len(examples) != stop - start:
            raise DataError(
                f"{self.path} holds fewer examples of {self.users[user]!r} than client_metadata says."
            )
        return {name: _column([example[name] for example in examples]) for name in examples[0]}


def open_tff(path: Path) -> tuple[Store, Store]:
    """Return (train, test) of TFF's files: a folder of *_train.h5 and *_test.h5, or a sqlite file."""
    if path.is_dir():
        return open_hdf5(tff_file(path, "train")), open_hdf5(tff_file(path, "test"))
    return open_sqlite(path, "train"), open_sqlite(path, "test")


def tff_file(path: Path, split: str) -> Path:
    """Return the HDF5 file of one split in a folder of TFF's files."""
    found = sorted(path.glob(f"*_{split}.h5"))
    if len(found) != 1:
        raise DataError(
            f"{path} holds {len(found)} files *_{split}.h5; it must hold one, or LEAF's or the hub's files."
        )
    return found[0]


def open_hdf5(path: Path) -> Hdf5Store:
    """Return the store of a TFF HDF5 file, or raise `DataError`."""
    groups = _hdf5(path, os.getpid()).get("examples")
    if groups is None or not len(groups):
        raise DataError(f"{path} holds no group examples/USER; it must be an HDF5 file of TFF.")
    users = tuple(groups)
    counts = np.array([len(next(iter(groups[user].values()))) for user in users], dtype=np.int64)
    return Hdf5Store(path, users, counts)


def open_sqlite(path: Path, split: str) -> SqliteStore:
    """Return the store of one split of a TFF sqlite file, or raise `DataError`."""
    try:
        rows = _sqlite(path, os.getpid()).execute(
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id",
            (split,),
        )
        found = list(rows)
    except sqlite3.DatabaseError as error:
        raise DataError(f"{path} is no sqlite file of TFF ({error}).") from error
    if not found:
        raise DataError(f"{path} has no clients in the split {split!r}; it must be a sqlite file of TFF.")
    counts = dict(found)
    if len(counts) < len(found):
        counts |= _counted(
            path, split, [user for user, times in Counter(user for user, _ in found).items() if times > 1]
        )
    return SqliteStore(path, split, tuple(counts), np.array(list(counts.values()), dtype=np.int64))


def _counted(path: Path, split: str, users: Sequence[str]) -> dict[str, int]:
    """Return how many examples users have in the table of examples itself.

    A user whose name client_metadata holds twice is one user, as for TFF, which asks for distinct names.
    """
    question = "SELECT COUNT(*) FROM examples WHERE split_name = ? AND client_id = ?"
    return {user: _sqlite(path, os.getpid()).execute(question, (split, user)).fetchone()[0] for user in users}


@lru_cache(maxsize=8)
def _hdf5(path: Path, process: int) -> Any:
    """Return an open HDF5 file; `process` keeps a handle from crossing into a forked worker."""
    try:
        return need("h5py", f"Reading {path}").File(path, "r")
    except OSError as error:
        raise DataError(f"{path} cannot be read as an HDF5 file ({error}).") from error


@lru_cache(maxsize=8)
def _sqlite(path: Path, process: int) -> sqlite3.Connection:
    """Return a read-only connection; `process` keeps it from crossing into a forked worker."""
    if not path.is_file():
        raise DataError(f"The data file {path} does not exist; path must name a sqlite file of TFF.")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _column(values: Sequence[list[bytes] | np.ndarray]) -> Any:
    """Return one column: a list of bytes, or an array [n, ...] without an axis for single numbers."""
    if isinstance(values[0], list):
        return [value[0] for value in values]
    stacked = np.stack(values)
    return stacked[:, 0] if stacked.shape[1] == 1 else stacked
