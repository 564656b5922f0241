"""Tables of one's own in every form, for the tests of their loaders."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from client.data import Dataset, load

FORMS = ("csv", "parquet", "hub")
Rows = dict[str, list[Any]]


def rows(count: int = 12) -> Rows:
    """Return rows of three users in turn; the feature `place` tells rows apart, the last three are test rows."""
    return {
        "user": [("bob", "ann", "7")[n % 3] for n in range(count)],
        "place": [float(n) for n in range(count)],
        "height": [n / 4 for n in range(count)],
        "label": [n % 2 for n in range(count)],
        "split": [int(n >= count - 3) for n in range(count)],
    }


def write(folder: Path, form: str, table: Rows) -> str:
    """Write a table in one form and return its path."""
    path = folder / f"data.{form}"
    if form == "csv":
        pyarrow.csv.write_csv(pyarrow.table(table), path)
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=5)
    else:
        datasets.Dataset.from_dict(table).save_to_disk(str(path))
    return str(path)


def opened(folder: Path, form: str, table: Rows, **settings: Any) -> Dataset:
    """Write a table and load it."""
    return load(f"by_user_{form}", path=write(folder, form, table), **settings)


def places(dataset: Dataset) -> list[list[int]]:
    """Return which rows each client holds, by the feature `place`."""
    return [client.x[:, 0].astype(int).tolist() for client in dataset.clients]


in_every_form = pytest.mark.parametrize("form", FORMS)


def png(array: np.ndarray) -> bytes:
    """Return a picture as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3)).astype(np.uint8)


def with_pictures(kind: str) -> Rows:
    """Return `rows` with IMAGES in the column `image`, as one of the ways in which tables hold pictures."""
    makers: dict[str, Callable[[np.ndarray], Any]] = {
        "bytes": png,
        "struct": lambda image: {"bytes": png(image), "path": None},
        "lists": lambda image: image.tolist(),
    }
    values = [makers[kind](image) for image in IMAGES]
    table = rows()
    del table["place"], table["height"]
    return table | {"image": values if kind != "lists" else pyarrow.array(values, nested(pyarrow.uint8(), 3))}


def nested(kind: Any, depth: int) -> Any:
    return pyarrow.list_(nested(kind, depth - 1)) if depth else kind


def saved_with_class_names(folder: Path, labels: list[int]) -> str:
    """Write a data set whose label column declares the classes no, yes and unsure."""
    whole = datasets.Dataset.from_dict(rows() | {"label": labels})
    whole = whole.cast_column("label", datasets.ClassLabel(names=["no", "yes", "unsure"]))
    whole.save_to_disk(str(folder / "saved"))
    return str(folder / "saved")
