"""What `fedmf data import SOURCE OUT` does: published files become a folder of arrays, which every process maps."""

import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from client.data import femnist, shakespeare, stackoverflow
from client.data.benchmark import Benchmark
from client.data.imported import new_folder, unpacked
from client.data.reading import reading
from client.data.sources import Hub, Leaf, Sqlite, download, source_at
from fedmf.errors import DataError

BENCHMARKS = [femnist.BENCHMARK, stackoverflow.BENCHMARK, shakespeare.BENCHMARK]


def import_data(source: str, out: Path, advance: Callable[[int], object] = lambda count: None) -> str:
    """Write the files at `source` into the new folder `out`; return the name of the data set that reads it.

    `source` is an .npz file, or files of a benchmark: TFF's, LEAF's or the hub's, packed or not, or their name on the hub,
    which downloads them. `advance` is told how many examples were read. Raises `DataError` for other files, and for what
    concerns all users or a test example; one user's mistake stays in the folder, as one.
    """
    path = Path(source).expanduser()
    named = next((one for one in BENCHMARKS if one.files.hub and one.files.hub == source), None)
    if named is not None and not path.exists():
        named.write(download(named.files), out, advance)
        return named.name
    with reading(source, "a file or folder"):  # a name may be too long to be one
        if not path.exists():
            raise DataError(f"{source} does not exist; name a file or folder of data.")
    with unpacked(path, out.absolute().parent) as files:
        if files.is_file() and zipfile.is_zipfile(files):
            _import_arrays(files, out)
            return "by_user_npz"
        found = _benchmark_of(files)
        found.write(source_at(files, found.files), out, advance)
        return found.name


def _import_arrays(path: Path, out: Path) -> None:
    """Write the arrays of an .npz file as .npy files, none of them whole in memory."""
    with new_folder(out) as folder, reading(path, "an .npz file"), zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if not member.endswith(".npy") or PurePosixPath(member).name != member or "\\" in member:
                raise DataError(f"{path} holds {member}, which is no array; an .npz file holds arrays alone.")
        archive.extractall(folder)


def _benchmark_of(path: Path) -> Benchmark:
    """Return the benchmark whose files lie at `path`: by their names, or by what they hold."""
    for one in BENCHMARKS:
        names = [one.files.sqlite, *(hdf5 for _, hdf5 in one.files.splits.values())]
        if path.name == one.files.sqlite or any((path / name).is_file() for name in names):
            return one
    source = source_at(path, femnist.FILES)
    if isinstance(source, Sqlite):
        held = (one for one in BENCHMARKS if len(Sqlite(path, one.files).splits) == len(one.files.splits))
        if found := next(held, None):
            return found
    elif isinstance(source, Leaf):
        first = next(iter(source.read("train" if (path / "train").is_dir() else "test")))
        return (
            femnist.BENCHMARK if isinstance(first.columns.get("x", [[]])[0], list) else shakespeare.BENCHMARK
        )
    elif isinstance(source, Hub):
        return femnist.BENCHMARK if source.paths[0].suffix == ".parquet" else shakespeare.BENCHMARK
    raise DataError(
        f"{path} holds no files that can be imported: an .npz file, or TFF's, LEAF's or the hub's files of "
        f"{', '.join(one.name for one in BENCHMARKS)}. Tables and pictures of your own are read where they lie."
    )
