"""Clients that stay on disk: each client's examples are read from a store when they are asked for.

A store is one split of a file. The file is opened once in each process that reads it and never crosses a process
boundary, so that these objects can be pickled and sent to workers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from client.data.dataset import DivisibleClients, Examples, cut
from client.data.fingerprint import Fingerprint
from client.data.reading import naming, reading
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


def state_of(path: Path) -> State:
    """Return what tells a file from another one that was put in its place; nothing for one that is not there."""
    if not path.is_file():
        return ()
    held = path.stat()
    return held.st_size, held.st_mtime_ns, held.st_ino
