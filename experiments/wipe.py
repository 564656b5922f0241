"""Remove what a SuperLink leaves that is secret, after a run: `python -m experiments.wipe database=/run/fedmf/superlink.db`.

The database holds mask keys and un-noised updates of every message, and the Flower home unpacked apps. Both are removed, what
they hold is overwritten with zeros before, and the command says what it removed. It refuses while a SuperLink uses them.
Overwriting reaches the disk only on file systems that write in place: not on copies, snapshots, journals or flash
memory that remaps blocks. On a memory file system without swap nothing is left either way.
"""

from dataclasses import dataclass
from pathlib import Path

from experiments.cli import command, output
from experiments.deployment.leftovers import find_leftovers, refuse_used, remove
from experiments.settings.output import Output
from fedmf.errors import SettingError


@dataclass(frozen=True)
class WipeSettings:
    """Keys of the command."""

    database: str | None
    home: str | None
    output: Output


def wipe(settings: WipeSettings) -> None:
    """Remove the database and Flower's files in the home, or refuse and remove nothing; print what was removed."""
    database, home = (None if text is None else Path(text) for text in (settings.database, settings.home))
    if database is None and home is None:
        raise SettingError(
            "database and home are both null; name at least one of them, or nothing is removed."
        )
    for key, path in (("database", database), ("home", home)):
        if path is not None and not path.is_absolute():
            raise SettingError(f"{key} is {str(path)!r}; it must be an absolute path.")
    leftovers = find_leftovers(database, home)
    refuse_used(leftovers, home)
    remove(leftovers)
    if settings.output is Output.json:
        output.print_json({"removed": [str(path) for path in leftovers.named]})
        return
    for path in leftovers.named:
        print(f"removed {path}")
    if not leftovers.named:
        print("nothing to remove")


if __name__ == "__main__":
    command.run(wipe, "wipe", WipeSettings, __doc__)
