"""Your own table: parquet with a user and a label or text in each row, columns by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from client.data.by_user_table import LICENCE, SOURCE, TEST_USERS, Columns, OfText, from_table
from client.data.dataset import Dataset
from client.data.reading import reading
from client.data.table import Table, joined
from client.imports import need
from fedmf.errors import DataError

AT_ONCE = (
    1 << 14
)  # rows that are decoded together: of lists, what parquet needs for it is ten times what they are

__all__ = ["LICENCE", "SOURCE", "TEST_USERS", "load"]


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
    """Return the data set in a parquet file, or in the parquet files of a folder, one after another.

    Columns are named as in by_user_csv. One column of `features` may hold lists of numbers, all of one shape; `image`
    names a column of pictures: PNG or JPEG bytes, the hub's {bytes, path}, or lists of pixels (uint8 is divided by
    255). Pictures and lists stay as they are stored until a client takes its turn. With `clients_only` no test input is
    made, but among 25 rows spread over all for their shape.
    """
    columns = Columns(user, label, features=features, text=text, image=image, split=split)
    return from_table(
        "by_user_parquet",
        read_parquet(Path(path)),
        columns,
        classes=classes,
        labels=labels,
        of_text=OfText(vocabulary, vocabulary_size, level, length),
        clients_only=clients_only,
    )


def read_parquet(path: Path) -> Table:
    """Return a parquet file, or those of a folder, as a table; a column is read when it is asked for."""
    arrow, parquet = need("pyarrow", f"Reading {path}"), need("pyarrow.parquet", f"Reading {path}")
    files = [path] if path.is_file() else sorted({*path.glob("*.parquet"), *path.glob("data/*.parquet")})
    if not files:
        problem = "folder {} holds no parquet file" if path.is_dir() else "file {} does not exist"
        raise DataError(
            f"The data {problem.format(path)}; path must name a parquet file, or a folder of them."
        )
    with reading(path, "parquet", also=(arrow.ArrowException,)):
        opened = [parquet.ParquetFile(file) for file in files]
        schema = opened[0].schema_arrow
        rows = sum(part.metadata.num_rows for part in opened)
    for file, other in zip(files, opened, strict=True):
        if not other.schema_arrow.equals(schema):
            raise DataError(
                f"{file} has other columns than {files[0]}; the files of a folder must have the same."
            )

    def read(name: str) -> Any:
        held = arrow.schema([schema.field(name)])
        return joined(
            [
                arrow.Table.from_batches(part.iter_batches(AT_ONCE, columns=[name]), held).column(0)
                for part in opened
            ]
        )

    return Table(path, dict(zip(schema.names, schema.types, strict=True)), rows, read)
