"""A Hugging Face data set on disk, as datasets' save_to_disk wrote it, with columns by name; memory-mapped."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.data.by_user_table import LICENCE, SOURCE, TEST_USERS, Columns, OfText, from_table
from client.data.dataset import Dataset
from client.data.reading import brief
from client.data.table import Table, joined
from client.imports import need
from fedmf.errors import DataError

__all__ = ["LICENCE", "SOURCE", "TEST_USERS", "load"]

SPLITS = ("train", "test")


def load(
    path: str | Path,
    *,
    user: str = "user",
    label: str = "label",
    features: Sequence[str] | None = None,
    text: str | None = None,
    image: str | None = None,
    split: str | None = None,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    vocabulary: str | None = None,
    vocabulary_size: int | None = None,
    level: str | None = None,
    length: int | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the data set that `datasets` saved into the folder `path`; nothing is downloaded and no code of it runs.

    Columns are named as in by_user_parquet. The splits train and test of a `DatasetDict` are the training and test
    rows; others are left alone. Class names that the schema declares (`ClassLabel`) say how many classes there are;
    `labels` may name them in another order, or more of them.
    """
    columns = Columns(user, label, features=features, text=text, image=image, split=split)
    return from_table(
        "by_user_hub",
        read_saved(Path(path)),
        columns,
        classes=classes,
        labels=labels,
        of_text=OfText(vocabulary, vocabulary_size, level, length),
        clients_only=clients_only,
    )


def read_saved(path: Path) -> Table:
    """Return a data set on disk as a table: of a `DatasetDict` the rows of train, then those of test."""
    if not path.is_dir():
        problem = "is no folder" if path.exists() else "does not exist"
        raise DataError(
            f"The data folder {path} {problem}; path must name the folder that save_to_disk wrote."
        )
    library = need("datasets", f"Reading {path}")
    try:
        saved = library.load_from_disk(str(path))
    except Exception as error:  # of many kinds, by what is missing or damaged
        if empty := next(
            (state.parent for state in sorted(path.rglob("state.json")) if _is_empty(state)), None
        ):
            raise DataError(f"{empty} holds no rows; every split must hold some.") from error
        raise DataError(
            f"{path} cannot be read as a data set that save_to_disk wrote ({brief(error)})."
        ) from error
    test = None
    parts = [saved]
    if isinstance(saved, library.DatasetDict):
        if absent := [name for name in SPLITS if name not in saved]:
            raise DataError(
                f"{path} has the splits {', '.join(saved)} but no {absent[0]}; it must have train and test, or set path to "
                "the folder of one split."
            )
        parts = [saved[name] for name in SPLITS]
        test = np.repeat([False, True], [len(part) for part in parts])
        if parts[0].features != parts[1].features:
            raise DataError(
                f"The splits train and test of {path} have other columns; they must have the same."
            )
    stored = [part.flatten_indices() if part._indices is not None else part for part in parts]

    def read(name: str) -> Any:
        return joined([part.data.column(name) for part in stored])

    schema = stored[0].data.schema
    names = {
        name: tuple(kind.names)
        for name, kind in stored[0].features.items()
        if isinstance(kind, library.ClassLabel)
    }
    rows = sum(len(part) for part in stored)
    if test is not None and len(np.unique(test)) < len(SPLITS):
        raise DataError(f"A split of {path} holds no rows; train and test must both hold some.")
    return Table(path, dict(zip(schema.names, schema.types, strict=True)), rows, read, test, names)


def _is_empty(state: Path) -> bool:
    """Return whether the data set that a file state.json describes was saved without rows, and so without files."""
    try:
        return bool(json.loads(state.read_text(encoding="utf-8")).get("_data_files") == [])
    except (OSError, ValueError, AttributeError):
        return False
