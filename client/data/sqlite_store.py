"""TFF's sqlite files: one row for each example, read one user at a time."""

import os
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from client.data.reading import reading
from client.data.sqlite_index import index_of
from client.data.stores import Columns, State, state_of
from client.data.tf_example import read_example
from fedmf.errors import DataError

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


def open_sqlite(path: Path, split: str) -> SqliteStore:
    """Return the store of one split of a TFF sqlite file, or raise `DataError`."""
    with reading(path, "a sqlite file of TFF"):
        state = state_of(path)
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


@lru_cache(maxsize=8)
def _sqlite(path: Path, process: int, index: Path | None, state: State) -> sqlite3.Connection:
    """Return a read-only connection, with `index` as `made`; `process` keeps it from crossing into a forked worker.

    `state` is that of the file when it was loaded: another file under the same name gets a connection of its own.
    """
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
