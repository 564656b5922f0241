"""Remove what a SuperLink leaves that is secret, after a run: `python -m experiments.wipe server=/etc/fedmf/server.yaml`.

The database holds mask keys and un-noised updates of every message, and the Flower home unpacked apps. Both are removed, what
they hold is overwritten with zeros before, and the command says what it removed. What a process uses it refuses (exit code 2),
and removes the other one all the same. `server` is the file of `fedmf server`: database and home are then those that it uses.
Overwriting reaches the disk only on file systems that write in place: not on copies, snapshots, journals or flash
memory that remaps blocks. On a memory file system without swap nothing is left either way.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.deployment.leftovers import find_leftovers, remove, why_used
from experiments.deployment.warm_server import ServerCommandSettings
from experiments.settings.compose import compose
from experiments.settings.operator_file import naming_file, overrides_of
from experiments.settings.output import Output
from fedmf.errors import SettingError


@dataclass(frozen=True)
class WipeSettings:
    """Keys of the command."""

    server: str | None
    database: str | None
    home: str | None
    output: Output


def wipe(settings: WipeSettings) -> None:
    """Remove the database, and Flower's files in the home; print what was removed.

    Raises `SettingError` for what is no database or no home, with nothing removed, and at the end for what is in use.
    """
    database, home = _named(settings)
    if database is None and home is None:
        raise SettingError(
            "server, database and home are all null; name at least one of them, or nothing is removed."
        )
    for key, path in (("database", database), ("home", home)):
        if path is not None and not path.is_absolute():
            raise SettingError(f"{key} is {str(path)!r}; it must be an absolute path.")
    parts = [(find_leftovers(database, None), None), (find_leftovers(None, home), home)]
    removed, refused = list[Path](), list[str]()
    for leftovers, lived_in in parts:
        if why := why_used(leftovers, lived_in):
            refused.append(why)
        else:
            remove(leftovers)
            removed += leftovers.named
    if settings.output is Output.json:
        output.print_json({"removed": [str(path) for path in removed]})
    else:
        for path in removed:
            print(f"removed {path}")
        if not removed and not refused:
            print("nothing to remove")
    if refused:
        raise SettingError(" ".join([*refused, *([] if removed else ["Nothing was removed."])]))


def _named(settings: WipeSettings) -> tuple[Path | None, Path | None]:
    """Return database and home: those that are given, else those that the server of the file uses."""
    database: str | None = settings.database
    home: str | None = settings.home
    if settings.server is not None:
        file = Path(settings.server)
        with naming_file(file):
            of_server = compose("server", overrides_of(file), ServerCommandSettings)
        database = database or of_server.database
        home = home or of_server.home or os.environ.get("FLWR_HOME")
    return None if database is None else Path(database), None if home is None else Path(home)


if __name__ == "__main__":
    command.run(wipe, "wipe", WipeSettings, __doc__)
