"""An index of a TFF sqlite file by client, in the cache: without one each client's turn reads the whole file."""

import sqlite3
from functools import partial
from pathlib import Path

from client.data.made import is_off, made
from client.data.progress import Preparation
from client.data.reading import reading

SMALL = 1 << 26
"""Bytes of a file up to which reading all of it is quick."""
NAME = "index.sqlite"
_AT_ONCE = 100_000  # rows between two words about progress


def index_of(path: Path, file: sqlite3.Connection) -> Path | None:
    """Return an index that was made of the open file at `path`; None where it is small or has one of its own.

    None too where the cache is off: clients are read slowly then.
    """
    if path.stat().st_size <= SMALL or is_off() or not _lacks_index(file):
        return None
    return made(path, "sqlite-index", partial(_write, path)) / NAME


def _lacks_index(file: sqlite3.Connection) -> bool:
    """Say whether `examples` is a table that no index finds a client's rows in."""
    kinds = [kind for (kind,) in file.execute("SELECT type FROM sqlite_master WHERE name = 'examples'")]
    names = [name for (_, name, *_) in file.execute("PRAGMA index_list(examples)")]
    columns = [
        [
            column
            for (column,) in file.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,))
        ]
        for name in names
    ]
    found = any(
        held[:1] == ["client_id"] or ("client_id" in held[:2] and "split_name" in held[:2])
        for held in columns
    )
    return kinds == ["table"] and not found


def _write(path: Path, folder: Path) -> None:
    """Write which rows of `examples` each client of each split has; the file itself is only read."""
    with reading(path, "a sqlite file of TFF"):
        index = sqlite3.connect(folder / NAME, uri=True)
        try:
            index.execute("ATTACH ? AS source", (f"{path.resolve().as_uri()}?mode=ro",))
            index.execute("CREATE TABLE place (split_name TEXT, client_id TEXT, row INTEGER)")
            (last,) = index.execute("SELECT max(rowid) FROM source.examples").fetchone()
            with Preparation(f"indexing {path} in the cache", last or 0) as progress:
                for start in range(0, (last or 0) + 1, _AT_ONCE):
                    index.execute(
                        "INSERT INTO place SELECT split_name, client_id, rowid FROM source.examples "
                        "WHERE rowid >= ? AND rowid < ?",
                        (start, start + _AT_ONCE),
                    )
                    progress.advance(_AT_ONCE)
                index.execute("CREATE INDEX by_client ON place (split_name, client_id, row)")
            index.commit()
        finally:
            index.close()
