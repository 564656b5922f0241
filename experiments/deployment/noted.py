"""What a server has used, noted before it starts, so that `wipe server=FILE` finds it whatever the file says later.

The note lies in the folder that systemd gives a unit for good (StateDirectory=; RuntimeDirectory= goes when the unit fails, and
with it the names of what lies elsewhere), under a name that the path of the server's file decides: two servers share one
only where they share the file. Without such a folder nothing is noted. It holds names alone, and grows with each start
until what it names has been removed.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedmf.errors import SettingError
from server.files import write_atomically


@dataclass(frozen=True)
class Used:
    """Databases and Flower homes by their absolute paths, the first ones noted first."""

    databases: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()


def note(file: Path, database: str, home: str | None) -> None:
    """Note what the server of `file` is about to use, beside what it has used before.

    `home` is that of the settings; where they have none, it is FLWR_HOME of the environment. Raises `SettingError` for a
    note that cannot be read, and `OSError` for one that cannot be written.
    """
    path = _path(file)
    if path is None:
        return
    before = _read(path)
    home = home or os.environ.get("FLWR_HOME")
    homes = () if home is None else (str(Path(home).absolute()),)
    used = {
        "databases": list(dict.fromkeys((*before.databases, database))),
        "homes": list(dict.fromkeys((*before.homes, *homes))),
    }
    write_atomically(path, json.dumps(used).encode(), mode=0o600)


def noted(file: Path) -> Used:
    """Return what the server of `file` has used. Raises `SettingError` for a note that cannot be read."""
    path = _path(file)
    return Used() if path is None else _read(path)


def forget(file: Path) -> None:
    """Remove the note, because what it names is gone."""
    if path := _path(file):
        path.unlink(missing_ok=True)


def _path(file: Path) -> Path | None:
    """Return where the note of the server of `file` lies, None where there is no folder for it."""
    folder = os.environ.get("STATE_DIRECTORY", "").split(":")[0]  # systemd names all that a unit has
    if not folder:
        return None
    name = hashlib.sha256(os.fsencode(os.path.abspath(file))).hexdigest()[:16]
    return Path(folder) / f"fedmf-server-{name}.json"


def _read(path: Path) -> Used:
    try:
        told = json.loads(path.read_bytes())
        databases, homes = (tuple(told[key]) for key in ("databases", "homes"))
        if not all(isinstance(name, str) and Path(name).is_absolute() for name in (*databases, *homes)):
            raise ValueError("a name is no absolute path")
    except FileNotFoundError:
        return Used()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SettingError(
            f"{path}, in which fedmf server notes its database and home, cannot be read; remove by hand what the server has used "
            "(fedmf wipe database=FILE home=FOLDER), and then this file."
        ) from error
    return Used(databases, homes)
