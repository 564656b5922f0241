"""Convert data files to arrays: `python -m experiments.data import SOURCE OUT`.

Writes data that take long to read as a folder OUT of .npy files, which every process maps. SOURCE is an .npz file, a folder of MNIST's
four idx files, or the unpacked files of femnist, shakespeare or stackoverflow as TFF, LEAF and the hub publish them;
flwrlabs/femnist and flwrlabs/shakespeare are downloaded from the hub. Use the result with dataset.path=OUT. OUT contains the data,
decoded and unencrypted; only its owner may read it. Removing OUT removes everything that this command has written.
"""

import logging
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.data.arrays import read_idx
from client.data.benchmarks import BENCHMARKS, FEMNIST, SHAKESPEARE
from client.data.conversion import Benchmark
from client.data.reading import reading
from client.data.sources import source_at, sqlite
from client.imports import need
from experiments.cli.command import end_with
from experiments.settings.log import messages, stderr_handler
from experiments.settings.reference import called
from fedmf.errors import DataError, SettingError


def main(arguments: list[str]) -> None:
    """Do what the arguments ask for. Raises a `FedmfError` for a mistake."""
    command = called("data")
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").replace("python -m experiments.data", command))
        return
    if len(arguments) != 3 or arguments[0] != "import":
        raise SettingError(f"the command is `{command} import SOURCE OUT`; --help says more.")
    _, source, out = arguments
    columns = (TextColumn("importing {task.description}"), MofNCompleteColumn(), TextColumn("examples"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(source), total=None)
        name = import_data(source, Path(out), lambda count: progress.advance(task, count))
    messages.info(f"{out} is written: dataset={name} dataset.path={out}")


def import_data(source: str, out: Path, advance: Callable[[int], object]) -> str:
    """Write the files at `source` into the new folder `out`; return the name of the dataset that reads it.

    `source` is an .npz file, a folder of idx files, or files of a benchmark: TFF's, LEAF's or the hub's, or their name on the
    hub, from which they are downloaded. `advance` is told how many examples were read. Raises `DataError` for other files, and for what
    concerns all users or a test example; one user's mistake stays in the folder, as one.
    """
    path = Path(source).expanduser()
    with reading(source, "a file or folder"):  # a name may be too long to be one
        exists = path.exists()
    if not exists and source not in [one.files.hub for one in BENCHMARKS]:
        raise DataError(f"{source} does not exist; name a file or folder of data.")
    if not out.absolute().parent.is_dir():
        raise DataError(f"{out.parent} is no folder; {out.name} is written into one that is there.")
    if out.exists():
        raise DataError(f"{out} exists already; name a new folder.")
    if exists and out.resolve().is_relative_to(path.resolve()):
        raise DataError(f"{out} is inside {source}, which it is made of; name a folder outside.")
    if not exists:  # downloaded once it is known where the folder goes
        path = download(source)
    if path.is_file() and zipfile.is_zipfile(path):  # arrays, none of which is whole in memory
        with new_folder(out) as folder, reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if not member.endswith(".npy") or PurePosixPath(member).name != member or "\\" in member:
                    raise DataError(
                        f"{path} holds {member}, which is no array; an .npz file holds arrays alone."
                    )
            archive.extractall(folder)
        return "by_user_npz"
    with reading(path, "idx files"):
        arrays = read_idx(path) if path.is_dir() else {}
    if arrays:
        with new_folder(out) as folder:
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)
        return "partitioned"
    found = _benchmark_of(path)
    with new_folder(out) as folder:
        found.write(source_at(path, found.files), folder, advance)
    return found.name


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
        f"{path} holds no files that can be imported: an .npz file, MNIST's idx files, or TFF's, LEAF's or the hub's files of "
        f"{', '.join(one.name for one in BENCHMARKS)}. Unpack a compressed file first. Tables and pictures "
        "of your own are read where they are."
    )


def download(name: str) -> Path:
    """Download the files of the dataset `name` from the hub and return their folder, or raise `DataError`."""
    library = need("huggingface_hub", f"Downloading {name}")
    try:
        return Path(library.snapshot_download(name, repo_type="dataset"))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise DataError(
            f"{name} could not be downloaded ({type(error).__name__}: {error}); on a machine without the "
            "network put its files (*.parquet or *.csv, as the hub holds them) into a folder and name that."
        ) from error


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give the block a folder to fill that becomes `out` when all went well, and is gone otherwise; for its owner alone."""
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


if __name__ == "__main__":
    logging.basicConfig(handlers=[stderr_handler("%(message)s")], level=logging.INFO)
    end_with(lambda: main(sys.argv[1:]))
