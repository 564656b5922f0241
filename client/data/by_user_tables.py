"""Your own tables: CSV, parquet, a saved Hugging Face data set, or a folder of pictures."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from client.data.by_user_text import OfText, refuse_given
from client.data.dataset import Dataset
from client.imports import need
from fedmf.errors import DataError, SettingError

TABLES_OF_PICTURES = ("metadata.csv", "metadata.parquet")


def load_csv(
    path: str | Path,
    *,
    user: str = "user",
    label: str = "label",
    features: Sequence[str] | None = None,
    text: str | None = None,
    split: str | None = None,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    delimiter: str = ",",
    vocabulary: str | None = None,
    vocabulary_size: int | None = None,
    level: str | None = None,
    length: int | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the data set in a CSV file whose first line names the columns, or in the *.csv files of a folder.

    Each row is an example of the user in the column `user`. Its input is the `features`, columns of numbers (None: all
    other columns, of which the test rows, or most rows with `clients_only`, must hold numbers) as float32 [n, features],
    taken as they are, and its target the column `label`: whole numbers from
    0, or names, which `labels` lists; or both are the column `text`, as in by_user_text. `split`
    names a column of 0 or train, 1 or test (None: the column split, if there is one; else a fifth of each user's rows
    is the test set). With `clients_only` no test input is made. Raises `DataError` for a missing or malformed file.
    """
    if len(delimiter) != 1:
        raise SettingError(f"delimiter is {delimiter!r}; it must be one character.")
    columns = _columns(path, user=user, label=label, features=features, text=text, split=split)
    table = _files(path).read_csv(Path(path), columns, delimiter)
    of_text = OfText(vocabulary, vocabulary_size, level, length)
    return _loaded("by_user_csv", table, columns, classes, labels, of_text, clients_only)


def _load_typed(
    name: str,
    read: str,
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
    """Return the data set `name` of a table with types, read by the function `read` of `client.data.table_files`.

    Columns are named as in `load_csv`. One column of `features` may hold lists of numbers, all of one shape; `image`
    names a column of pictures: PNG or JPEG bytes, the hub's {bytes, path}, or lists of pixels (uint8 is divided by
    255). Pictures and lists stay as they are stored until a client takes its turn. Class names that a schema declares
    (`ClassLabel`) say how many classes there are; `labels` may name them in another order, or more of them.
    """
    columns = _columns(path, user=user, label=label, features=features, text=text, image=image, split=split)
    table = getattr(_files(path), read)(Path(path), columns)
    of_text = OfText(vocabulary, vocabulary_size, level, length)
    return _loaded(name, table, columns, classes, labels, of_text, clients_only)


load_parquet = partial(_load_typed, "by_user_parquet", "read_parquet")
"""The data set in a parquet file, or in the parquet files of a folder, one after another."""
load_hub = partial(_load_typed, "by_user_hub", "read_saved")
"""The data set that `datasets` saved into a folder; nothing is downloaded and no code of it runs.

The splits train and test of a `DatasetDict` are the training and test rows; others are left alone.
"""


def load_images(
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
    is one). Without a split a fifth of each user's pictures is the test set. All pictures must have one size.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"The data folder {folder} does not exist; path must name a folder of pictures.")
    given = {"file": file, "user": user, "label": label, "split": split}
    columns = _columns(
        path, user=user or "user", label=label or "label", split=split, file=file or "file_name"
    )
    listed = next((folder / name for name in TABLES_OF_PICTURES if (folder / name).is_file()), None)
    if table is not None:
        listed = Path(table).expanduser()
        if not listed.is_file():
            raise DataError(f"table is {table}, which does not exist; it must be a CSV or parquet file.")
    files = _files(path)
    if listed is None:
        refuse_given("there is no table, and folders say it", given)
        held = files.read_folders(folder)
    elif listed.suffix == ".parquet":
        held = files.read_parquet(listed, columns, folder)
    else:
        held = files.read_csv(listed, columns, ",", folder)
    return _loaded("by_user_images", held, columns, classes, labels, OfText(), clients_only)


def _columns(path: str | Path, **given: Any) -> Any:
    return need("client.data.table", f"Reading {path}").Columns(**given)


def _files(path: str | Path) -> Any:
    return need("client.data.table_files", f"Reading {path}")


def _loaded(
    name: str,
    table: Any,
    columns: Any,
    classes: int | None,
    labels: Sequence[str] | None,
    of_text: OfText,
    clients_only: bool,
) -> Dataset:
    """Return the data set of a table that was read."""
    module = need("client.data.from_table", f"Reading {table.path}")
    dataset: Dataset = module.from_table(
        name, table, columns, of_text, classes=classes, labels=labels, clients_only=clients_only
    )
    return dataset
