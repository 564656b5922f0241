"""What a SuperLink leaves on a disk: its database, and what Flower unpacks into its home.

Who uses them is read from /proc (Linux): it shows the open files of this account's processes, or of all to root, and the
locks of every account.
"""

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmf.errors import SettingError
from server.files import erase

SIDE_FILES = ("-wal", "-shm", "-journal")  # of SQLite: they hold pages of the database
HEADER = b"SQLite format 3\x00"
# What Flower makes anew in its home: unpacked apps, their environments, a SuperLink of `flwr run` without one. What says how
# the home's user reaches SuperLinks (config.toml, credentials.yaml) stays, and so does what is not Flower's.
OF_FLOWER = ("apps", "runtime-envs", "local-superlink")
_KNOWN = {*OF_FLOWER, "source", "logs", ".credentials"}  # folders of a Flower home
# Tables of every SuperLink's database (Flower 1.41); a test reads them in a real one.
TABLES = {"message_ins", "message_res", "run"}


@dataclass(frozen=True)
class Leftovers:
    """What is to be removed by name, each a file or a folder with all that it holds."""

    named: tuple[Path, ...]

    def files(self) -> Iterator[Path]:
        """Yield every file, those in folders first; no link is followed."""
        for path in self.named:
            if path.is_dir() and not path.is_symlink():
                for folder, _, names in os.walk(path):
                    yield from (Path(folder) / name for name in names)
            else:
                yield path


def find_leftovers(database: Path | None, home: Path | None) -> Leftovers:
    """Return what is there of a database, with SQLite's files beside it, and of a Flower home.

    Raises `SettingError` for a file that is no database and for a home that is none, so that a mistyped path costs nothing.
    """
    found: list[Path] = []
    if database is not None:
        _check_database(database)
        named = (database, *(Path(f"{database}{end}") for end in SIDE_FILES))
        found += [path for path in named if os.path.lexists(path)]
    if home is not None and os.path.lexists(home):
        if home.is_symlink() or not home.is_dir():
            raise SettingError(
                f"home is {str(home)!r}, which is no folder; it must be a SuperLink's FLWR_HOME."
            )
        if foreign := sorted(
            path.name for path in home.iterdir() if path.is_dir() and path.name not in _KNOWN
        ):
            raise SettingError(
                f"home is {str(home)!r}, which holds {foreign[0]}/, and Flower makes no such folder; it must be a SuperLink's "
                "FLWR_HOME."
            )
        found += [home / name for name in OF_FLOWER if os.path.lexists(home / name)]
    return Leftovers(tuple(found))


def why_used(leftovers: Leftovers, home: Path | None = None) -> str | None:
    """Return who uses what would be removed, or has `home` as their Flower home, as a sentence; None for nobody."""
    if users := users_of(leftovers):
        return f"{leftovers.named[0]} is in use by {_named(users)}; stop the SuperLink first."
    if home is not None and (users := sorted(_living_in(home) - _ancestors())):
        return (
            f"home is {home}, which is the Flower home (FLWR_HOME) of {_named(users)}; end what uses it first. What lies there "
            "was not removed."
        )
    return None


def users_of(leftovers: Leftovers) -> list[int]:
    """Return the processes that have one of the files open, or locked."""
    held = {(entry.st_dev, entry.st_ino) for entry in _regular(leftovers)}
    return sorted(_holding(held) | _locking(held))


def remove(leftovers: Leftovers) -> None:
    """Overwrite every file with zeros and remove all, folders too.

    A file with another name outside (a hard link, as tools that fill environments make) only loses this one.
    """
    for path in leftovers.files():
        if path.lstat().st_nlink > 1:
            path.unlink()
        else:
            erase(path)
    for path in leftovers.named:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)


def _check_database(path: Path) -> None:
    """Raise `SettingError` unless `path` is absent, or a file that SQLite wrote."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_file():
        raise SettingError(
            f"database is {str(path)!r}, which is no file of its own; it must be a SuperLink's database."
        )
    with path.open("rb") as file:
        beginning = file.read(len(HEADER))
    if beginning not in (b"", HEADER):
        raise SettingError(
            f"database is {str(path)!r}, which SQLite did not write; it must be a SuperLink's database."
        )
    if beginning and (tables := _tables(path)) is not None and not tables >= TABLES:
        raise SettingError(
            f"database is {str(path)!r}, which is not a SuperLink's: it lacks the table {min(TABLES - tables)}."
        )


def _tables(path: Path) -> set[str] | None:
    """Return the names of a database's tables, None where it is damaged or in use: who holds it is asked for then."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            return {name for (name,) in opened.execute("select name from sqlite_master where type = 'table'")}
    except sqlite3.Error:
        return None


def _named(processes: Sequence[int]) -> str:
    """Return ids of processes, each with the name of its program where that is shown."""
    names = []
    for number in processes:
        try:
            names.append(f"{number} ({Path(f'/proc/{number}/comm').read_text().strip()})")
        except OSError:
            names.append(str(number))
    return f"process {', '.join(names)}"


def _living_in(home: Path) -> set[int]:
    """Return the processes of this user whose FLWR_HOME is `home`, however it is written."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            lines = (line.partition(b"=") for line in (entry / "environ").read_bytes().split(b"\0"))
            environment = {os.fsdecode(name): os.fsdecode(value) for name, _, value in lines}
            if (named := environment.get("FLWR_HOME")) and Path(named).resolve() == home.resolve():
                found.add(int(entry.name))
    return found


def _regular(leftovers: Leftovers) -> Iterator[os.stat_result]:
    for path in leftovers.files():
        entry = path.lstat()
        if stat.S_ISREG(entry.st_mode):
            yield entry


def _holding(files: set[tuple[int, int]]) -> set[int]:
    """Return the processes that have one of `files` open, each named by its device and inode."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            entry = descriptor.stat()
            if (entry.st_dev, entry.st_ino) in files:
                found.add(int(descriptor.parts[2]))
    return found


def _locking(files: set[tuple[int, int]]) -> set[int]:
    """Return the processes of any account that hold a lock on one of `files`, as SQLite does while a database is open."""
    wanted = {f"{os.major(device):02x}:{os.minor(device):02x}:{inode}" for device, inode in files}
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return {int(words[4]) for words in lines if len(words) > 5 and words[5] in wanted}


def _ancestors() -> set[int]:
    """Return this process and those that started it: a service or a shell may have set the same home for all."""
    found, number = set(), os.getpid()
    while number > 0 and number not in found:
        found.add(number)
        status = Path(f"/proc/{number}/stat").read_text()
        number = int(status.rpartition(")")[2].split()[1])
    return found
