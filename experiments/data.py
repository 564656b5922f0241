"""Prepare data files: `python -m experiments.data import SOURCE OUT`.

Writes what takes long to read as a folder OUT of .npy files, which every process maps: an .npz file, or the files of
femnist, shakespeare or stackoverflow as TFF, LEAF and the hub publish them, packed (.gz, .bz2, .xz, .lzma, also of a tar
archive) or not. SOURCE may be flwrlabs/femnist or flwrlabs/shakespeare, which are downloaded from the hub. Then
dataset.path=OUT. OUT holds the data, decoded and unencrypted; only its owner may read it, and who removes it removes
all that this command has written.
"""

import importlib
import logging
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.data.benchmarks import BENCHMARKS, FEMNIST, SHAKESPEARE
from client.data.conversion import Benchmark
from client.data.reading import PACKED, reading
from client.data.sources import Files, Raw, Source, source_at, sqlite
from client.imports import need
from experiments.cli.command import end_with, guard
from experiments.cli.console import USER_MISTAKE
from experiments.settings.log import messages, stderr_handler
from fedmf.errors import DataError

_TARS = (".tgz", ".tbz2", ".txz")


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


def import_data(source: str, out: Path, advance: Callable[[int], object]) -> str:
    """Write the files at `source` into the new folder `out`; return the name of the data set that reads it.

    `source` is an .npz file, or files of a benchmark: TFF's, LEAF's or the hub's, packed or not, or their name on the hub,
    which downloads them. `advance` is told how many examples were read. Raises `DataError` for other files, and for what
    concerns all users or a test example; one user's mistake stays in the folder, as one.
    """
    path = Path(source).expanduser()
    named = next((one for one in BENCHMARKS if one.files.hub and one.files.hub == source), None)
    if named is not None and not path.exists():
        with new_folder(out) as folder:
            named.write(download(named.files), folder, advance)
        return named.name
    with reading(source, "a file or folder"):  # a name may be too long to be one
        if not path.exists():
            raise DataError(f"{source} does not exist; name a file or folder of data.")
    if not out.absolute().parent.is_dir():
        raise DataError(f"{out.parent} is no folder; {out.name} is written into one that is there.")
    with unpacked(path, out.absolute().parent) as files:
        if files.is_file() and zipfile.is_zipfile(files):
            _import_arrays(files, out)
            return "by_user_npz"
        found = _benchmark_of(files)
        with new_folder(out) as folder:
            found.write(source_at(files, found.files), folder, advance)
        return found.name


def _import_arrays(path: Path, out: Path) -> None:
    """Write the arrays of an .npz file as .npy files, none of them whole in memory."""
    with new_folder(out) as folder, reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if not member.endswith(".npy") or PurePosixPath(member).name != member or "\\" in member:
                raise DataError(f"{path} holds {member}, which is no array; an .npz file holds arrays alone.")
        archive.extractall(folder)


def _benchmark_of(path: Path) -> Benchmark:
    """Return the benchmark whose files are at `path`: by their names, or by what they hold."""
    for one in BENCHMARKS:
        names = [one.files.sqlite, *(hdf5 for _, hdf5 in one.files.splits.values())]
        if path.name == one.files.sqlite or any((path / name).is_file() for name in names):
            return one
    source = source_at(path, FEMNIST.files)
    if source.form == "leaf":
        inputs = (raw.columns.get("x") for raw in source.read("train"))
        is_text = next((isinstance(x, str) for x in inputs if isinstance(x, str | list)), False)
        return SHAKESPEARE if is_text else FEMNIST
    if source.form == "hub":
        return FEMNIST if source.paths[0].suffix == ".parquet" else SHAKESPEARE
    for one in BENCHMARKS:
        if path.is_file() and len(sqlite(path, one.files).splits) == len(one.files.splits):
            return one
    raise DataError(
        f"{path} holds no files that can be imported: an .npz file, or TFF's, LEAF's or the hub's files of "
        f"{', '.join(one.name for one in BENCHMARKS)}. Tables and pictures of your own are read where they lie."
    )


def download(files: Files) -> Source:
    """Return the train split of the hub's data set, downloaded, or raise `DataError`."""
    library = need("datasets", f"Downloading {files.hub}")
    try:
        table = library.load_dataset(files.hub, split="train")
    except Exception as error:  # the hub's client raises errors of many libraries
        raise DataError(
            f"{files.hub} could not be downloaded ({type(error).__name__}: {error}); on a machine without the "
            "network put its files (*.parquet or *.csv, as the hub holds them) into a folder and name that."
        ) from error
    return downloaded(table, files)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give the block a folder to fill that becomes `out` when all went well, and is gone otherwise; for its owner alone."""
    if out.exists():
        raise DataError(f"{out} exists already; name a new folder.")
    try:
        with TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as temporary:
            folder = Path(temporary, "folder")
            folder.mkdir(mode=0o700)
            yield folder
            folder.rename(out)
    except OSError as error:
        raise DataError(
            f"{out} cannot be written ({error.strerror or error}); name a folder in one that can be, and has room."
        ) from error


@contextmanager
def unpacked(path: Path, room: Path) -> Iterator[Path]:
    """Give the block the files that `path` packs (.gz, .bz2, .xz, .lzma, also of a tar archive), or `path` as it is.

    They are in a temporary folder in `room`. An archive of one folder is that folder.
    """
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (*PACKED, *_TARS):
        yield path
        return
    with TemporaryDirectory(prefix="unpacked.", dir=room) as temporary:
        target = Path(temporary, path.stem)
        with reading(path, f"a {suffix} file", also=(tarfile.TarError,)):
            if suffix in _TARS or target.suffix.lower() == ".tar":
                with tarfile.open(path) as archive:
                    archive.extractall(target, filter=_plain)
                entries = list(target.iterdir())
                target = entries[0] if len(entries) == 1 else target
            else:
                with importlib.import_module(PACKED[suffix]).open(path) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file)
        yield target


def _plain(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Leave out what macOS adds to each file, and refuse what would be outside of the folder."""
    return None if Path(member.name).name.startswith("._") else tarfile.data_filter(member, folder)


def downloaded(table: Any, files: Files) -> Source:
    """Return a data set of Hugging Face's library as a source. Pictures are left encoded."""
    library = need("datasets", "Reading a download")
    held = table.select_columns(list(files.hub_columns)).with_format(None)
    for name, kind in held.features.items():
        if isinstance(kind, library.Image):
            held = held.cast_column(name, library.Image(decode=False))
    rows = (Raw(row[files.hub_columns[0]], files.hub, row) for row in held)
    return Source("hub", files.hub, [], ["all"], lambda split: rows)


if __name__ == "__main__":
    logging.basicConfig(handlers=[stderr_handler("%(message)s")], level=logging.INFO)
    end_with(lambda: main(sys.argv[1:]))
