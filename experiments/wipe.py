"""Remove what a SuperLink leaves that is secret, after a run: `python -m experiments.wipe server=/etc/fedmf/server.yaml`.

The database holds mask keys and un-noised updates of every message, and the Flower home unpacked apps. Both are removed, what
they hold is overwritten with zeros before, and the command says what it removed. What a process uses it refuses, and what is no
SuperLink's database or no Flower home; it removes the rest all the same, and says at its end what it refused (exit code 2).
`server` is the file of `fedmf server`: database and home are then those that it names, and those that the server noted when it
started, where it runs as a service of systemd, also where the file was changed since or cannot be read.
Overwriting reaches the disk only on file systems that write in place: not on copies, snapshots, journals or flash
memory that remaps blocks. On a memory file system without swap nothing is left either way.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.deployment.leftovers import find_leftovers, remove, why_used
from experiments.deployment.noted import Used, forget, noted
from experiments.deployment.warm_server import ServerCommandSettings
from experiments.settings.compose import compose
from experiments.settings.operator_file import naming_file, overrides_of
from experiments.settings.output import Output
from fedmf.errors import SettingError
from fedmf.setting import setting


@dataclass(frozen=True)
class WipeSettings:
    """Keys of the command."""

    server: str | None = setting(
        None,
        "file that fedmf server config=FILE reads: its database is removed, and its home, that of "
        "FLWR_HOME where it names none; null: none",
    )
    database: str | None = setting(
        None, "file of a SuperLink's database, removed with SQLite's files beside it; null: none"
    )
    home: str | None = setting(
        None, "the SuperLink's FLWR_HOME, of which the unpacked apps are removed; null: none"
    )
    output: Output = setting(
        Output.text, "what is printed, a line for each thing removed or one JSON document"
    )


def wipe(settings: WipeSettings) -> None:
    """Remove databases, and Flower's files in the homes; print what was removed.

    Raises `SettingError` at the end for what is no database or no home, for what is in use or cannot be removed, and for a
    file of the server or a note that cannot be read; all else has been removed by then.
    """
    if settings.server is None and settings.database is None and settings.home is None:
        raise SettingError(
            "server, database and home are all null; name at least one of them, or nothing is removed."
        )
    used, refused = _used(settings)
    removed = list[Path]()
    for database in used.databases:  # first, because they hold the secrets
        _remove(Path(database), None, removed, refused)
    for home in used.homes:
        _remove(None, Path(home), removed, refused)
    if settings.server is not None and not refused:
        forget(Path(settings.server))
    if settings.output is Output.json:
        output.print_json({"removed": [str(path) for path in removed]})
    else:
        for path in removed:
            print(f"removed {path}")
        if not removed and not refused:
            print("nothing to remove")
    if refused:
        raise SettingError(" ".join([*refused, *([] if removed else ["Nothing was removed."])]))


def _remove(database: Path | None, home: Path | None, removed: list[Path], refused: list[str]) -> None:
    """Remove a database or what Flower made in a home; add what is gone to `removed`, and why not to `refused`."""
    for key, path in (("database", database), ("home", home)):
        if path is not None and not path.is_absolute():
            refused.append(f"{key} is {str(path)!r}; it must be an absolute path.")
            return
    try:
        leftovers = find_leftovers(database, home)
        if why := why_used(leftovers, home):
            refused.append(why)
            return
        try:
            remove(leftovers)
        finally:
            removed += [path for path in leftovers.named if not os.path.lexists(path)]
    except SettingError as error:
        refused.append(str(error))
    except OSError as error:
        refused.append(f"{error.filename or database or home} cannot be used: {error.strerror}.")


def _used(settings: WipeSettings) -> tuple[Used, list[str]]:
    """Return databases and homes to remove, and why some that were meant are not known.

    They are those that are given, else those of the server's file, and those that this server noted.
    """
    database: str | None = settings.database
    home: str | None = settings.home
    before, unknown = Used(), list[str]()
    if settings.server is not None:
        file = Path(settings.server)
        try:
            before = noted(file)
        except SettingError as error:
            unknown.append(str(error))
        try:
            with naming_file(file):
                of_server = compose("server", overrides_of(file), ServerCommandSettings)
            database = database or of_server.database
            home = home or of_server.home or os.environ.get("FLWR_HOME")
        except SettingError as error:
            unknown.append(str(error))
    first = Used(() if database is None else (database,), () if home is None else (home,))
    return (
        Used(
            tuple(dict.fromkeys(first.databases + before.databases)),
            tuple(dict.fromkeys(first.homes + before.homes)),
        ),
        unknown,
    )


if __name__ == "__main__":
    command.run(wipe, "wipe", WipeSettings, __doc__)
