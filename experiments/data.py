"""Prepare data files: `python -m experiments.data import SOURCE OUT`.

Writes what takes long to read as a folder OUT of .npy files, which every process maps: an .npz file, or the files of
femnist, shakespeare or stackoverflow as TFF, LEAF and the hub publish them, packed (.gz, .bz2, .xz, .lzma, also of a tar
archive) or not. SOURCE may be flwrlabs/femnist or flwrlabs/shakespeare, which are downloaded from the hub. Then
dataset.path=OUT. OUT holds the data, decoded and unencrypted; only its owner may read it, and who removes it removes
all that this command has written.
"""

import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.data.registry import import_data
from experiments.cli.command import end_with, guard
from experiments.settings.log import messages, stderr_handler

USER_MISTAKE = 2


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for and return the exit code."""
    match arguments:
        case ["import", source, out]:
            return guard(lambda: _import(source, Path(out)))
        case ["-h" | "--help"]:
            print(__doc__)
            return 0
        case _:
            sys.stderr.write("error: the command is: data import SOURCE OUT; --help says more.\n")
            return USER_MISTAKE


def _import(source: str, out: Path) -> None:
    columns = (
        TextColumn("importing {task.fields[source]}"),
        MofNCompleteColumn(),
        TextColumn("examples"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, source=source)
        name = import_data(source, out, lambda count: progress.advance(task, count))
    messages.info(f"{out} is written: dataset={name} dataset.path={out}")


if __name__ == "__main__":
    logging.basicConfig(handlers=[stderr_handler("%(message)s")], level=logging.INFO)
    end_with(lambda: main(sys.argv[1:]))
