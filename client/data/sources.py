"""The benchmarks' files as they are published: TFF's HDF5 and sqlite, LEAF's JSON, the hub's parquet and CSV.

Each source yields its examples as columns by name, one example at a time; what these mean is the benchmark's affair
(`client.data.benchmarks`).

TensorFlow Federated unpacks what it downloads into ~/.tff, under the names below
(tensorflow_federated/python/simulation/datasets/download.py, emnist.py, shakespeare.py, stackoverflow.py).
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from client.data.reading import read_json, reading
from client.imports import need
from fedmf.errors import DataError

_AT_ONCE = 1000  # rows of a table that are in memory together


@dataclass(frozen=True)
class Files:
    """How the files of a benchmark are called, and what they hold.

    `splits` are TFF's: the name in its `sqlite` file, and the HDF5 file. `fields` are TFF's columns. `hub` is the name on
    the hub, "" for none, and `hub_columns` its columns, users first.
    """

    sqlite: str
    splits: Mapping[str, tuple[str, str]]
    fields: tuple[str, ...]
    hub: str = ""
    hub_columns: tuple[str, ...] = ()


class Raw(NamedTuple):
    """One example as a file at `where` holds it: its user, and its columns.

    `wrong` states why the columns cannot be read, where they cannot; the example counts nevertheless.
    """

    user: Any
    where: Path | str
    columns: Mapping[str, Any] = {}
    wrong: str = ""


@dataclass(frozen=True)
class Source:
    """Files of a benchmark in one `form`: tff, leaf or hub; `where` is what an error calls all of them.

    `read(split)` yields the examples of one of the `splits`, and raises `DataError` for what is wrong for all users alike.
    """

    form: str
    where: Path | str
    paths: Sequence[Path]
    splits: Sequence[str]
    read: Callable[[str], Iterator[Raw]]


def _read_hdf5(paths: Mapping[str, Path], files: Files, split: str) -> Iterator[Raw]:
    """Yield the examples of TFF's HDF5 files user by user: /examples/USER/COLUMN, examples along the first axis."""
    path = paths[split]
    if not path.is_file():
        held = ", ".join(sorted(file.name for file in path.parent.glob("*.h5"))) or "no HDF5 file"
        raise DataError(
            f"{path.parent} lacks {path.name}; it holds {held} and must hold it, or LEAF's or the hub's files."
        )
    library = need("h5py", f"Reading {path}")
    with reading(path, "an HDF5 file of TFF"), library.File(path, "r") as file:
        groups = file.get("examples")
        if not hasattr(groups, "keys"):
            raise DataError(f"{path} holds no group examples/USER; it must be an HDF5 file of TFF.")
        yield from _by_user(path, groups, files.fields, split)


def _by_user(where: Path, users: Any, names: Sequence[str], split: str) -> Iterator[Raw]:
    """Yield the examples that `users[user][name][:]` has along its first axis, user by user, for the columns `names`.

    A user without columns of one length, or a training user without examples, is one example that cannot be read: the
    names alone decide who the clients are.
    """
    for user in users:
        try:  # what is damaged or of another type here is this user's problem alone
            with reading(where, "columns of one length"):
                rows = list(zip(*(users[user][name][:] for name in names), strict=True))
        except DataError:
            yield Raw(user, where, wrong=f"it must hold {', '.join(names)} of one length.")
            continue
        if not rows and split.endswith("train"):
            yield Raw(user, where, wrong="there are no examples.")
        yield from (Raw(user, where, dict(zip(names, values, strict=True))) for values in rows)


def _sqlite_splits(path: Path) -> list[str]:
    """Return the names of the splits in a sqlite file, none for a file that cannot be read."""
    try:
        with closing(_connection(path)) as file:
            rows = file.execute("SELECT DISTINCT split_name FROM client_metadata ORDER BY 1")
            return [str(name) for (name,) in rows]
    except (sqlite3.Error, UnicodeDecodeError):  # the latter for a damaged schema, which sqlite would quote
        return []


def _connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _read_sqlite(path: Path, files: Files, split: str) -> Iterator[Raw]:
    """Yield the examples in the order of TFF's sqlite file: serialised tf.train.Example, one to a row of the table examples.

    They are of the clients that client_metadata names; all of each, as TFF takes them.
    A training client whose examples are counted but are not there is one example that cannot be read.
    """
    name = files.splits[split][0]
    with reading(path, "a sqlite file of TFF"), closing(_connection(path)) as file:
        question = (
            "SELECT client_id, max(num_examples) FROM client_metadata WHERE split_name = ? GROUP BY client_id"
        )
        counts = dict(file.execute(question, (name,)))
        if not counts:
            others = ", ".join(map(repr, _sqlite_splits(path))) or "none"
            raise DataError(
                f"{path} has no clients in the split {name!r}; its splits are {others}, and it must be the sqlite "
                "file of TFF for this dataset."
            )
        question = (  # bytes, since a text that is no UTF-8 would be an error of the whole file
            "SELECT client_id, CAST(serialized_example_proto AS BLOB) FROM examples WHERE split_name = ? "
            "ORDER BY rowid"
        )
        heard: set[str] = set()
        for user, message in file.execute(question, (name,)):
            if user in counts:
                heard.add(user)
                yield parsed(user, path, message, files.fields)
    if heard and split.endswith("train"):
        for user in [user for user, count in counts.items() if count and user not in heard]:
            yield Raw(user, path, wrong="its examples are not there.")


# tf.train.Example as TensorFlow's example.proto and feature.proto describe it; names of fields are not on the wire.
_EXAMPLE = """
name: "example.proto" package: "tf" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "texts" number: 1 label: LABEL_OPTIONAL type_name: ".tf.BytesList" oneof_index: 0 }
  field { name: "floats" number: 2 label: LABEL_OPTIONAL type_name: ".tf.FloatList" oneof_index: 0 }
  field { name: "integers" number: 3 label: LABEL_OPTIONAL type_name: ".tf.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features" field { name: "feature" number: 1 label: LABEL_REPEATED type_name: ".tf.Features.FeatureEntry" }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: ".tf.Feature" }
  }
}
message_type { name: "Example" field { name: "features" number: 1 label: LABEL_OPTIONAL type_name: ".tf.Features" } }
"""


@cache
def _example_class() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Example"))


def parsed(user: str, path: Path, message: Any, names: Sequence[str]) -> Raw:
    """Return a serialised tf.train.Example, whose features `names` are texts (bytes) or lists of numbers."""
    from google.protobuf.message import DecodeError

    example = _example_class()()
    try:
        example.ParseFromString(message)
    except (DecodeError, TypeError):
        return Raw(user, path, wrong="A stored example is no tf.train.Example.")
    features = example.features.feature
    if absent := [name for name in names if name not in features]:
        held = ", ".join(sorted(features)) or "nothing"
        return Raw(user, path, wrong=f"A stored example lacks {absent[0]}; it holds {held}.")
    columns = {}
    for name in names:
        kind = features[name].WhichOneof("kind")
        values = list(getattr(features[name], kind).value) if kind else []
        columns[name] = values[0] if kind == "texts" and len(values) == 1 else values
    return Raw(user, path, columns)


def _read_leaf(paths: Mapping[str, Sequence[Path]], split: str) -> Iterator[Raw]:
    """Yield the examples of LEAF's JSON files user by user: {"users", "num_samples", "user_data": {user: {"x", "y"}}}."""
    for file in paths[split]:
        with reading(file, "JSON"):
            document = read_json(file.read_text(encoding="utf-8-sig"), file)
        data = document.get("user_data") if isinstance(document, dict) else None
        if not isinstance(data, dict):
            raise DataError(f"{file} holds no user_data; a LEAF file is {{users, num_samples, user_data}}.")
        yield from _by_user(file, data, ("x", "y"), split)


def _read_hub(paths: Sequence[Path], files: Files) -> Iterator[Raw]:
    for file in paths:
        tables: Any = need("client.data.table_files", f"Reading {file}")
        table = tables.read_file(file, files.hub_columns)
        if absent := [name for name in files.hub_columns if name not in table.names]:
            raise DataError(
                f"{file} lacks the column {absent[0]}; it must have {', '.join(files.hub_columns)}. "
                "A table of your own needs no import: set dataset=by_user_csv or by_user_parquet, and dataset.path."
            )
        for batch in table.held.to_batches(_AT_ONCE):
            with reading(file, "a table"):
                rows = tables.rows_of(batch)
            yield from (Raw(row[files.hub_columns[0]], file, row) for row in rows)


def sqlite(path: Path, files: Files) -> Source:
    """Return TFF's sqlite file."""
    held = _sqlite_splits(path)
    splits = [split for split, (name, _) in files.splits.items() if name in held]
    return Source("tff", path, [path], splits, partial(_read_sqlite, path, files))


def source_at(path: Path, files: Files) -> Source:
    """Return the files of a benchmark at `path`, which exists.

    The hub's may be in a folder data/. Raises `DataError` for a folder that holds files in two forms: which are meant must
    be said.
    """
    if path.is_file() and path.suffix not in (".parquet", ".csv"):
        return sqlite(path, files)
    patterns = ("*.parquet", "data/*.parquet", "*.csv") if files.hub else ()
    tables = [path] if path.is_file() else sorted(file for pattern in patterns for file in path.glob(pattern))
    hdf5 = {split: path / file for split, (_, file) in files.splits.items()}
    held = [split for split, file in hdf5.items() if file.is_file()]
    leaf = {split: sorted((path / split).glob("*.json")) for split in ("train", "test")}
    forms = {
        "HDF5 files": Source(
            "tff", path, [hdf5[split] for split in held], held, partial(_read_hdf5, hdf5, files)
        ),
        "LEAF's files": Source(
            "leaf", path, leaf["train"] + leaf["test"], [*leaf], partial(_read_leaf, leaf)
        ),
        "the hub's files": Source("hub", path, tables, ["all"], lambda split: _read_hub(tables, files)),
    }
    if (path / files.sqlite).is_file():
        forms[files.sqlite] = sqlite(path / files.sqlite, files)
    found = {name: source for name, source in forms.items() if source.paths}
    if len(found) > 1:
        raise DataError(
            f"{path} holds {' and '.join(found)}, of which either may be meant; set path to a folder or file of one form."
        )
    return next(iter(found.values()), forms["HDF5 files"])
