"""The database of a run, checkpoint/run.sqlite: what is public of it, with who was heard in each round.

    release  a row for each released round: epoch (0-based), digest of the noisy sum, digest of the round
    heard    a row for each client of each round: the primary key admits a client once in an epoch
    base     one row, the state saved last: configuration, what was calculated from it, code, ledger and what an extension
             changes, as JSON with the digest of its arrays; and a digest of that
    blob     bytes in chunks of 1 MiB: arrays of the base (.npz), noisy sums (float32, little-endian) of the releases after the
             base before it, so that other readers find each for a while; where the clip norm adapts, for every release the
             sealed count of its epoch so far and the noisy one, null before the epoch's last round (`fedmf.clip_norm`), as JSON

One transaction writes a release and who was heard in it; its COMMIT, forced to disk, IS the release. The write-ahead log lets
others read while the run writes. Nothing secret is ever written here. A damaged file is an error, and never repaired by guess.
"""

import contextlib
import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from fedmf.accounting import Ledger
from fedmf.errors import ParticipationError, ReleaseOrderError, RunDirectoryError
from fedmf.normals import FORM as NORMALS
from fedmf.npz import read_npz
from fedmf.updates import wire
from server.files import packed, sync_folder, temporary_path
from server.state import Count, Register, Release, ServerState

FILE = "run.sqlite"
FORMAT = 8  # 4: noise in float32, which is not private to its last bit; 6: two bases; 7: counts under one pad a round
_APPLICATION = 0x6665646D  # "fedm"
_CHUNK = 1 << 20
_SLOT = "slot_"  # before the name of each array of the optimizer's state

_SCHEMA = (
    """CREATE TABLE release (
    round INTEGER PRIMARY KEY CHECK (round > 0),
    epoch INTEGER NOT NULL CHECK (typeof(epoch) = 'integer'),
    noisy_sum TEXT NOT NULL CHECK (typeof(noisy_sum) = 'text'),
    digest TEXT NOT NULL CHECK (typeof(digest) = 'text'))""",
    """CREATE TABLE heard (
    client TEXT NOT NULL CHECK (typeof(client) = 'text'),
    epoch INTEGER NOT NULL CHECK (typeof(epoch) = 'integer'),
    round INTEGER NOT NULL CHECK (typeof(round) = 'integer'),
    place INTEGER NOT NULL CHECK (typeof(place) = 'integer'),
    PRIMARY KEY (client, epoch),
    UNIQUE (round, place)) WITHOUT ROWID""",
    """CREATE TABLE base (
    round INTEGER PRIMARY KEY CHECK (round >= 0),
    document TEXT NOT NULL CHECK (typeof(document) = 'text'),
    digest TEXT NOT NULL CHECK (typeof(digest) = 'text'))""",
    f"""CREATE TABLE blob (
    owner TEXT NOT NULL CHECK (typeof(owner) = 'text'),
    round INTEGER NOT NULL CHECK (typeof(round) = 'integer'),
    number INTEGER NOT NULL CHECK (typeof(number) = 'integer'),
    bytes BLOB NOT NULL CHECK (typeof(bytes) = 'blob' AND length(bytes) <= {_CHUNK}),
    PRIMARY KEY (owner, round, number))""",
)
_CREATE = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {FORMAT}; BEGIN; {'; '.join(_SCHEMA)}; COMMIT"

# Errors of SQLite that are the system's, by primary result code; every other one is damage.
_OF_THE_SYSTEM = (
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM),
)

# What is saved about a run with each base: its configuration, what was calculated from it, and by what code.
_ABOUT = ("configuration", "calculated", "code", "extension")


class Record:
    """The database in a checkpoint folder, open for writing from the first transaction until `close`.

    All methods raise `RunDirectoryError` for a damaged file, another format or a link, and `OSError` where the system fails.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._writer: sqlite3.Connection | None = None

    def create(self) -> None:
        """Put an empty database in the place of any other: whole, or not there."""
        self.close()
        aside = temporary_path(self.path)
        for path in (*_files(self.path), *_files(aside)):
            path.unlink(missing_ok=True)  # the old log first: it would be read as the new file's
        # In WAL from the beginning: no transaction ever makes a rollback journal, see `_open`.
        script = f"PRAGMA journal_mode = OFF; PRAGMA synchronous = FULL; {_CREATE}; PRAGMA journal_mode = WAL"
        with _errors(self.path), closing(_connect(str(aside))) as made:
            made.executescript(script)
        os.replace(aside, self.path)
        sync_folder(self.path.parent)

    def close(self) -> None:
        """End writing; what the log holds is copied into the database, which is then one file."""
        if self._writer is not None:
            with _errors(self.path), closing(self._writer):
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._writer = None

    def append(self, release: Release) -> None:
        """Release a round: on disk once this returns, and not recorded after an error.

        Raises `ParticipationError` for a client heard before in the epoch, `ReleaseOrderError` for a round that is there.
        """
        data = wire.to_bytes(release.noisy_sum)
        about = (release.round, release.epoch, _digest(data))
        digest = _round_digest(about, release.answered, release.count)
        rows = (
            (client, release.epoch, release.round, place) for place, client in enumerate(release.answered)
        )
        with self._writing() as connection:
            try:
                connection.execute("INSERT INTO release VALUES (?, ?, ?, ?)", (*about, digest))
                connection.executemany("INSERT INTO heard VALUES (?, ?, ?, ?)", rows)
            except sqlite3.IntegrityError as error:
                twice = ParticipationError if "heard" in str(error) else ReleaseOrderError
                raise twice(f"round {release.round} is not released: {error} in {self.path}.") from error
            _put(connection, "sum", release.round, data)
            if release.count is not None:
                _put(connection, "count", release.round, _json(release.count))

    def save(self, state: ServerState, about: Mapping[str, Mapping[str, Any]]) -> None:
        """Save a base after the last release; the one before it and the noisy sums that it covered are removed."""
        slots = {f"{_SLOT}{name}": array for name, array in state.slots.items()}
        scale = {} if state.scale is None else {"scale": state.scale}
        arrays = packed(model=state.model, **scale, **slots)
        document = {**about, "ledger": state.ledger.to_json(), "arrays": _digest(arrays), "extension": {}}
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM blob WHERE owner = 'base' OR owner = 'sum' AND round <= (SELECT round FROM base)"
            )
            _put(connection, "base", state.round, arrays)
            _put_base(connection, state.round, document)

    def extend(self, changed: Mapping[str, Any]) -> None:
        """Keep what an extension changes of the configuration, until the next base is saved."""
        with self._reading() as connection:
            number, document = _base(connection)
        with self._writing() as connection:
            _put_base(connection, number, document | {"extension": dict(changed)})

    def saved(self) -> int | None:
        """Return the round of the base; None where no run began."""
        with self._reading() as connection:
            row = connection.execute("SELECT round FROM base").fetchone()
            return None if row is None else int(row[0])

    def released(self) -> int:
        """Return the last released round, 0 for none: before it a run may begin again under another key."""
        with self._reading() as connection:
            return _number(connection, "SELECT max(round) FROM release")

    def most_epochs(self, epochs: int) -> int:
        """Return in how many of the first `epochs` epochs the most frequent client was heard."""
        counts = "SELECT count(*) AS times FROM heard WHERE epoch < ? GROUP BY client"
        with self._reading() as connection:
            return _number(connection, f"SELECT max(times) FROM ({counts})", epochs)

    def check(self) -> None:
        """Raise `RunDirectoryError` unless the file is whole and every release is as it was written, from round 1 on."""
        with self._reading() as connection:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                raise ValueError(found)
            heard = _number(connection, "SELECT count(*) FROM heard")
            rows = connection.execute("SELECT * FROM release ORDER BY round").fetchall()
            for number, (*about, digest) in enumerate(rows, 1):
                clients = _clients(connection, number)
                heard -= len(clients)
                if about[0] != number or digest != _round_digest(about, clients, _count(connection, number)):
                    raise ValueError(f"round {number} is not as it was released")
            if heard or _number(connection, "SELECT max(round) FROM base") > len(rows):
                raise ValueError("a round is missing of which there is a state or a client who was heard")

    def about(self) -> dict[str, dict[str, Any]]:
        """Return what was saved about the run with the base, which there must be; no array is read.

        That is what `save` was given, and under `extension` what the last extension changes.
        """
        with self._reading() as connection:
            _, document = _base(connection)
            about = {name: {**document[name]} for name in _ABOUT}
            numbers = about["calculated"].items()
            about["calculated"] = {name: value if value is None else float(value) for name, value in numbers}
            return about

    def base(self) -> ServerState:
        """Return the base, which there must be: a state without secrets."""
        with self._reading() as connection:
            number, document = _base(connection)
            arrays = read_npz(_get(connection, "base", number, document["arrays"]))
            # A base is saved once its last round is released, so that the epoch under way is the one of that round.
            query = "SELECT client FROM heard WHERE round <= ?1 AND epoch = (SELECT epoch FROM release WHERE round = ?1)"
            heard = frozenset(client for (client,) in connection.execute(query, (number,)))
            model, scale, ledger = arrays.pop("model"), arrays.pop("scale", None), document["ledger"]
            slots = {name.removeprefix(_SLOT): array for name, array in arrays.items()}
            return ServerState(
                number, model, Ledger.from_json(ledger), Register((heard,)), None, slots, scale
            )

    def releases(self, after: int) -> list[Release]:
        """Return the releases after round `after`, which is that of the base before the last at the earliest."""
        query = "SELECT round, epoch, noisy_sum FROM release WHERE round > ? ORDER BY round"
        with self._reading() as connection:
            return [
                Release(
                    number,
                    wire.to_vector(_get(connection, "sum", number, digest)),
                    tuple(_clients(connection, number)),
                    epoch,
                    _count(connection, number),
                )
                for number, epoch, digest in connection.execute(query, (after,)).fetchall()
            ]

    def count(self, number: int) -> Count | None:
        """Return the count after round `number`, None where the clip norm does not adapt."""
        with self._reading() as connection:
            return _count(connection, number)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for reading, which changes no file; a value that no run writes is an error: the file is damaged."""
        try:
            with _errors(self.path), contextlib.ExitStack() as stack:
                if (connection := self._writer) is None:
                    connection = stack.enter_context(closing(self._opened()))
                yield connection
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise _damaged(self.path, error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for one transaction, which is on disk after the block and undone by any error in it."""
        with _errors(self.path):
            if self._writer is None:
                self._writer = self._open("mode=rw")
                self._writer.executescript(
                    "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA secure_delete = OFF"
                )
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                commit(self._writer)
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def _opened(self) -> sqlite3.Connection:
        """Return a connection for reading: to an empty database where there is none."""
        if not os.path.lexists(self.path):
            empty = _connect(":memory:")
            empty.executescript(_CREATE)
            return empty
        log = _files(self.path)[0]
        # Without a log nothing is being written, and SQLite would make one to read it.
        return self._open("mode=ro" if log.exists() and log.stat().st_size else "mode=ro&immutable=1")

    def _open(self, mode: str) -> sqlite3.Connection:
        """Return a connection to a database of this format, whose schema is that of this module and runs no code of its own."""
        journal = _files(self.path)[2]
        for path in _files(self.path):
            if path.is_symlink():
                raise RunDirectoryError(
                    f"{path} is a link; it must be a file of its folder. Remove the link."
                )
        # SQLite would play it back, and remove any file that it names as the journal of several databases.
        if journal.exists():
            raise RunDirectoryError(f"{journal} is a rollback journal, which no run writes. Remove it.")
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(closing(_connect(f"{self.path.absolute().as_uri()}?{mode}")))
            connection.execute("PRAGMA trusted_schema = OFF")
            application, version = (
                _number(connection, f"PRAGMA {name}") for name in ("application_id", "user_version")
            )
            if application == _APPLICATION and version != FORMAT:
                raise RunDirectoryError(
                    f"format of {self.path} is {version}; this version reads {FORMAT}, whose noise is of form {NORMALS}. A run "
                    "continues with the version of fedmf that began it only: one statement cannot cover noise of two forms."
                )
            schema = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
            if application != _APPLICATION or schema.fetchall() != [(sql,) for sql in _SCHEMA]:
                raise _damaged(self.path, "it is no database of a run")
            stack.pop_all()
            return connection


def _files(path: Path) -> list[Path]:
    """Return the paths of the log of the database at `path`, its index, a rollback journal and the database."""
    return [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm", "-journal", "")]


def commit(connection: sqlite3.Connection) -> None:
    """Force a transaction to disk."""
    connection.execute("COMMIT")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into `OSError` with the name of the file, or into `RunDirectoryError` for damage."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_SYSTEM:
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise _damaged(path, error) from error


def _damaged(path: Path, why: object) -> RunDirectoryError:
    return RunDirectoryError(f"{path} is damaged ({why}). Restore the checkpoint folder.")


def _connect(name: str) -> sqlite3.Connection:
    """Return a connection that begins and ends transactions as it is told, in whatever thread."""
    return sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _put(connection: sqlite3.Connection, owner: str, number: int, data: bytes) -> None:
    starts = range(0, len(data), _CHUNK)
    rows = ((owner, number, place, data[start : start + _CHUNK]) for place, start in enumerate(starts))
    connection.executemany("INSERT INTO blob VALUES (?, ?, ?, ?)", rows)


def _get(connection: sqlite3.Connection, owner: str, number: int, digest: str) -> bytes:
    """Return a blob of a round. Raises `ValueError` where it is not the one of that digest."""
    query = "SELECT bytes FROM blob WHERE owner = ? AND round = ? ORDER BY number"
    data = b"".join(chunk for (chunk,) in connection.execute(query, (owner, number)))
    if _digest(data) != digest:
        raise ValueError(f"{owner} of round {number} is not as it was written")
    return data


def _count(connection: sqlite3.Connection, number: int) -> Count | None:
    """Return what a round has of the count, None where the clip norm does not adapt."""
    query = "SELECT bytes FROM blob WHERE owner = 'count' AND round = ?"
    row = connection.execute(query, (number,)).fetchone()
    return None if row is None else Count(*json.loads(row[0]))


def _round_digest(about: Sequence[Any], answered: Sequence[str], count: Count | None) -> str:
    """Return the digest of a release: of round, epoch, the digest of its sum, who was heard, and the count, if there is one."""
    return _digest(_json([*about, answered, *([] if count is None else [count])]))


def _put_base(connection: sqlite3.Connection, number: int, document: Mapping[str, Any]) -> None:
    text = _json(document)
    connection.execute("DELETE FROM base")
    connection.execute("INSERT INTO base VALUES (?, ?, ?)", (number, text.decode(), _digest(text)))


def _base(connection: sqlite3.Connection) -> tuple[int, dict[str, Any]]:
    """Return round and document of the base. Raises `ValueError` where it is not as it was written."""
    number, text, digest = connection.execute("SELECT * FROM base").fetchone()
    if digest != _digest(text.encode()):
        raise ValueError(f"base of round {number} is not as it was written")
    return number, {**json.loads(text)}


def _number(connection: sqlite3.Connection, query: str, *values: int) -> int:
    """Return the one number of a query, 0 for NULL."""
    return int(connection.execute(query, values).fetchone()[0] or 0)


def _clients(connection: sqlite3.Connection, number: int) -> list[str]:
    """Return who was heard in a round, in the order in which they were added."""
    query = "SELECT client FROM heard WHERE round = ?1 AND epoch = (SELECT epoch FROM release WHERE round = ?1) ORDER BY place"
    return [client for (client,) in connection.execute(query, (number,))]
