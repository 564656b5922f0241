"""A folder of pictures: USER/LABEL/FILE, or a table of files, users and labels; decoded when a client's turn comes."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from client.data.by_user_csv import read_csv
from client.data.by_user_parquet import read_parquet
from client.data.by_user_table import LICENCE, SOURCE, TEST_USERS, Columns, from_table, refuse_given
from client.data.dataset import Dataset
from client.data.pictures import FileBytes, Pictures, pictures
from client.data.reading import reading
from client.data.table import Table, is_text, plain
from client.imports import need
from fedmf.errors import DataError

__all__ = ["LICENCE", "SOURCE", "TEST_USERS", "load"]

TABLES = ("metadata.csv", "metadata.parquet")
KINDS = (".png", ".jpg", ".jpeg")
SPLITS = {"train", "test"}
_OF_SYSTEMS = {"thumbs.db", "desktop.ini"}  # besides hidden files: what a system puts beside pictures


def load(
    path: str | Path,
    *,
    table: str | None = None,
    file: str | None = None,
    user: str | None = None,
    label: str | None = None,
    split: str | None = None,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the pictures below the folder `path`, 8-bit grey [n, H, W] or RGB [n, H, W, 3], divided by 255.

    A picture lies at USER/LABEL/FILE, or at train/USER/LABEL/FILE and test/USER/LABEL/FILE; or a table names them: the
    CSV or parquet file `table`, or metadata.csv or metadata.parquet in the folder, with the columns `file` (None:
    file_name, a path below the folder), `user` (None: user), `label` (None: label) and `split` (None: split, if there
    is one). Without a split a fifth of each user's pictures is the test set. All pictures must have one size. With
    `clients_only` no test picture is decoded but among 25 pictures spread over all, which say what shape all have.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"The data folder {folder} does not exist; path must name a folder of pictures.")
    columns = Columns(user or "user", label or "label", split=split)
    listed = _table_file(folder, table)
    if listed is None:
        refuse_given(
            "there is no table, and folders say it",
            {"file": file, "user": user, "label": label, "split": split},
        )
        found = _folders(folder)
    else:
        found = (
            read_parquet(listed)
            if listed.suffix == ".parquet"
            else read_csv(listed, columns, ",", more_texts=[file or "file_name"])
        )
    file = file or "file_name"

    def inputs(held: Table, shown: np.ndarray) -> Pictures:
        names = plain(held.column(file, "file", may_be_empty=True))
        if not is_text(names.type):
            raise DataError(f"The column {file!r} of {held.path} is {names.type}; it must name files.")
        paths = np.array([os.fsencode(name.as_py() or "") for name in names])
        return pictures(FileBytes(folder, paths), held.rows, shown)

    return from_table(
        "by_user_images",
        found,
        columns,
        classes=classes,
        labels=labels,
        inputs=inputs,
        clients_only=clients_only,
    )


def _table_file(folder: Path, table: str | None) -> Path | None:
    """Return the table of a folder of pictures, or None where folders name users and labels."""
    if table is not None:
        given = Path(table).expanduser()
        if not given.is_file():
            raise DataError(f"table is {table}, which does not exist; it must be a CSV or parquet file.")
        return given
    return next((folder / name for name in TABLES if (folder / name).is_file()), None)


def _folders(folder: Path) -> Table:
    """Return a table of the pictures at USER/LABEL/FILE, below train and test where these are the only folders."""
    arrow = need("pyarrow", f"Reading {folder}")
    split = {entry.name for entry in _entries(folder)} == SPLITS
    found: dict[str, list[str]] = {"file_name": [], "user": [], "label": []}
    test: list[bool] = []
    for part in sorted(SPLITS, reverse=True) if split else [""]:  # train, then test
        for user, label, name in _pictures(folder / part):
            found["file_name"].append(f"{part}/{user}/{label}/{name}" if split else f"{user}/{label}/{name}")
            found["user"].append(user)
            found["label"].append(label)
            test.append(part == "test")
    if not test:
        raise DataError(f"{folder} holds no pictures; they must lie at {folder}/USER/LABEL/FILE.")
    with reading(folder, "pictures in folders whose names are UTF-8"):
        held = arrow.table(found)
    types = dict(zip(held.column_names, held.schema.types, strict=True))
    return Table(folder, types, held.num_rows, held.column, np.array(test) if split else None, typed=False)


def _pictures(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (user, label, file) of each picture, in the order of their names."""
    for user in _entries(folder):
        for label in _entries(user):
            for file in _entries(label):
                if file.suffix.lower() not in KINDS:
                    raise DataError(f"{file} is no picture; a picture ends in {', '.join(KINDS)}.")
                yield user.name, label.name, file.name


def _entries(folder: Path) -> list[Path]:
    """Return what lies in a folder, in the order of names, without what systems put there."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; pictures must lie at USER/LABEL/FILE below the path.")
    with reading(folder, "a folder"):
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return sorted(entry for entry in entries if entry.name.lower() not in _OF_SYSTEMS)
