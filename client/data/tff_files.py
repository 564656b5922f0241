"""The files of one of TFF's benchmarks: a folder with an HDF5 file for each split, or one sqlite file of all splits."""

from dataclasses import dataclass
from pathlib import Path

from client.data.fields import Fields
from client.data.hdf5_store import open_hdf5
from client.data.sqlite_store import open_sqlite
from client.data.stores import Store
from fedmf.errors import DataError


@dataclass(frozen=True)
class TffFiles:
    """How TFF names one benchmark: `splits` (train, test) in its sqlite file, and the HDF5 file of each.

    `fields` are the columns that every example has. Of HDF5 files their types and shapes are checked when they are
    opened, for they say so for each user; in a sqlite file only the examples themselves do.
    """

    splits: tuple[str, str]
    hdf5: tuple[str, str]
    fields: Fields


def open_training(path: Path, names: TffFiles) -> Store:
    """Return the training split of TFF's files: a folder of HDF5 files, or a sqlite file."""
    return _open_split(path, names, 0)


def open_test(path: Path, names: TffFiles) -> Store:
    """Return the test split of TFF's files, as `open_training` does."""
    return _open_split(path, names, 1)


def _open_split(path: Path, names: TffFiles, place: int) -> Store:
    if path.is_dir():
        return open_hdf5(tff_file(path, names.hdf5[place]), names.fields)
    return open_sqlite(path, names.splits[place])


def tff_file(path: Path, name: str) -> Path:
    """Return the HDF5 file called `name` in a folder of TFF's files."""
    if not (path / name).is_file():
        held = ", ".join(sorted(file.name for file in path.glob("*.h5"))) or "no HDF5 file"
        raise DataError(
            f"{path} lacks {name}; it holds {held} and must hold it, or LEAF's or the hub's files."
        )
    return path / name
