"""The benchmarks' files as they are published: TFF's HDF5 and sqlite, LEAF's JSON, the hub's parquet and CSV.

Each source yields what its files hold, some examples at a time, as columns by name; what these mean is said by the
benchmark (`client.data.benchmarks`).

TensorFlow Federated unpacks what it downloads into ~/.tff, under the names below
(tensorflow_federated/python/simulation/datasets/download.py, emnist.py, shakespeare.py, stackoverflow.py).
"""

import csv
import io
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from client.data.reading import read_json, reading
from client.imports import need
from fedmf.errors import DataError

AT_ONCE = 1000  # rows that are in memory together
FLOATS, INTEGERS, TEXTS = "f", "iu", "SO"
_KINDS = {FLOATS: "floats", INTEGERS: "integers", TEXTS: "texts"}


@dataclass(frozen=True)
class Files:
    """How the files of a benchmark are called, and what they hold.

    `splits` are TFF's: the name in its `sqlite` file, and the HDF5 file. `fields` are TFF's columns: numpy's letters for
    the types that each may have, and the shape of one value. `hub` is the name on the hub, "" for none, and
    `hub_columns` its columns, users first.
    """

    sqlite: str
    splits: Mapping[str, tuple[str, str]]
    fields: Mapping[str, tuple[str, tuple[int, ...]]]
    hub: str = ""
    hub_columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Raw:
    """Some examples as a file holds them: the user of each, and columns of as many values.

    `wrong` says why they cannot be read, where they cannot. Who they are of, and how many, is known all the same.
    """

    users: Sequence[str]
    columns: Mapping[str, Any]
    where: str
    wrong: str = ""


class Source(Protocol):
    """Files of a benchmark in one `form`: tff, leaf or hub."""

    form: str

    @property
    def where(self) -> Path | str:
        """What an error calls all of the files."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files."""

    @property
    def splits(self) -> Sequence[str]:
        """The splits that there are."""

    def read(self, split: str) -> Iterator[Raw]:
        """Yield the examples of one split. Raises `DataError` for what is wrong for all users alike."""


@dataclass(frozen=True)
class Hdf5:
    """TFF's HDF5 files in a folder: /examples/USER/COLUMN with the examples of a user along the first axis."""

    folder: Path
    files: Files
    form = "tff"

    @property
    def where(self) -> Path:
        """The folder."""
        return self.folder

    @property
    def paths(self) -> Sequence[Path]:
        """The files."""
        return [
            self.folder / file for _, file in self.files.splits.values() if (self.folder / file).is_file()
        ]

    @property
    def splits(self) -> Sequence[str]:
        """The splits that there are."""
        return [split for split, (_, file) in self.files.splits.items() if (self.folder / file).is_file()]

    def read(self, split: str) -> Iterator[Raw]:
        """Yield the examples of one user after another, after a look at what the file says of all their columns."""
        path = self.folder / self.files.splits[split][1]
        if not path.is_file():
            held = ", ".join(sorted(file.name for file in self.folder.glob("*.h5"))) or "no HDF5 file"
            raise DataError(
                f"{self.folder} lacks {path.name}; it holds {held} and must hold it, or LEAF's or the hub's files."
            )
        library = need("h5py", f"Reading {path}")
        with reading(path, "an HDF5 file of TFF"):
            file = library.File(path, "r")
        with file:
            with reading(path, "an HDF5 file of TFF"):
                groups = file.get("examples")
                if not hasattr(groups, "keys") or not len(groups):
                    raise DataError(f"{path} holds no group examples/USER; it must be an HDF5 file of TFF.")
                counts = {user: self._count(groups[user], f"User {user!r} in {path}") for user in groups}
            if not sum(counts.values()):
                raise DataError(f"{path} holds no example; fetch TFF's file again, or set path to another.")
            for user, count in counts.items():
                with reading(path, "an HDF5 file of TFF"):
                    columns = {name: groups[user][name][:] for name in self.files.fields}
                same = all(len(column) == count for column in columns.values())
                where = f"{path}, user {user!r}"
                yield Raw(
                    [user] * count, columns, where, "" if same else "its columns are not of one length."
                )

    def _count(self, group: Any, who: str) -> int:
        """Return how many examples a user's group holds; raise `DataError` for columns of other types or shapes.

        Nothing but what the file says of its columns is read: the rows of the first are counted.
        """
        for name, (kinds, shape) in self.files.fields.items():
            column = group.get(name) if hasattr(group, "keys") else None
            if column is None or not hasattr(column, "dtype"):
                held = (", ".join(group) if hasattr(group, "keys") else "") or "nothing"
                raise DataError(
                    f"{who} lacks {name}; it holds {held} and must hold {', '.join(self.files.fields)}."
                )
            if column.dtype.kind not in kinds or not column.shape or column.shape[1:] != shape:
                right = f"{_KINDS[kinds]} {list(shape)}" if shape else _KINDS[kinds]
                raise DataError(
                    f"{who} holds {name} as {column.dtype} {column.shape}; it must be {right}, one for each example."
                )
        return int(group[next(iter(self.files.fields))].shape[0])


@dataclass(frozen=True)
class Sqlite:
    """TFF's sqlite file: table client_metadata, and examples as serialised tf.train.Example, one to a row."""

    path: Path
    files: Files
    form = "tff"

    @property
    def where(self) -> Path:
        """The file."""
        return self.path

    @property
    def paths(self) -> Sequence[Path]:
        """The file."""
        return [self.path]

    @property
    def splits(self) -> Sequence[str]:
        """The splits that there are."""
        with closing(self._opened()) as file:
            held = self._asked(file, "SELECT DISTINCT split_name FROM client_metadata")
        return [split for split, (name, _) in self.files.splits.items() if (name,) in held]

    def read(self, split: str) -> Iterator[Raw]:
        """Yield the examples in the order of the file. All those of a client are its own, however many client_metadata counts."""
        name = self.files.splits[split][0]
        with closing(self._opened()) as file:
            missing = self._counts(file, name)
            question = (
                "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY rowid"
            )
            rows = self._cursor(file, question, name)
            held = 0
            while some := self._fetched(rows):
                known = [(user, message) for user, message in some if user in missing]
                for user, _ in known:
                    missing[user] -= 1
                held += len(known)
                yield Raw(*_two(known), str(self.path))
            if not held and not any(count > 0 for count in missing.values()):
                raise DataError(
                    f"{self.path} holds no example in the split {name!r}; fetch TFF's file again, or set path to another."
                )
            for user, count in missing.items():
                if count > 0:
                    wrong = "there are fewer examples than client_metadata says."
                    yield Raw([user] * count, {}, f"{self.path}, user {user!r}", wrong)

    def _counts(self, file: sqlite3.Connection, split: str) -> dict[str, int]:
        """Return how many examples of each client client_metadata counts in a split."""
        question = (
            "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ? ORDER BY client_id"
        )
        found = self._asked(file, question, split)
        if not found:
            names = self._asked(file, "SELECT DISTINCT split_name FROM client_metadata ORDER BY 1")
            others = ", ".join(repr(name) for (name,) in names) or "none"
            raise DataError(
                f"{self.path} has no clients in the split {split!r}; its splits are {others}, and it must be the sqlite "
                "file of TFF for this data set."
            )
        if wrong := [user for user, _ in found if not isinstance(user, str)]:
            raise DataError(
                f"client_metadata of {self.path} names a client by {type(wrong[0]).__name__}; a client is a text."
            )
        if not all(isinstance(count, int) and count >= 0 for _, count in found):
            raise DataError(
                f"client_metadata of {self.path} counts examples by what is no whole number of at least 0."
            )
        counts: dict[str, int] = {}
        for user, count in found:
            counts[user] = max(count, counts.get(user, 0))
        ((held,),) = self._asked(file, "SELECT count(*) FROM examples")
        if sum(counts.values()) > held:
            raise DataError(
                f"client_metadata of {self.path} counts {sum(counts.values())} examples in the split {split!r}; the file "
                f"holds {held}."
            )
        return counts

    def _opened(self) -> sqlite3.Connection:
        with reading(self.path, "a sqlite file of TFF"):
            return sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)

    def _cursor(self, file: sqlite3.Connection, question: str, *values: str) -> sqlite3.Cursor:
        with reading(self.path, "a sqlite file of TFF"):
            return file.execute(question, values)

    def _fetched(self, rows: sqlite3.Cursor) -> list[Any]:
        with reading(self.path, "a sqlite file of TFF"):
            return rows.fetchmany(AT_ONCE)

    def _asked(self, file: sqlite3.Connection, question: str, *values: str) -> list[Any]:
        with reading(self.path, "a sqlite file of TFF"):
            return file.execute(question, values).fetchall()


def _two(rows: Sequence[tuple[str, Any]]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the users of rows, and their messages as the column `example`."""
    return [user for user, _ in rows], {"example": [message for _, message in rows]}


@cache
def _example_class() -> Any:
    """Return the message tf.train.Example (field numbers from TensorFlow's example.proto and feature.proto).

    Example { Features features = 1 }; Features { map<string, Feature> feature = 1 };
    Feature { oneof: BytesList = 1, FloatList = 2, Int64List = 3 }, each { repeated value = 1 }.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="fedmf_example.proto", package="fedmf", syntax="proto3")
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    kinds = (("bytes", "TYPE_BYTES"), ("float", "TYPE_FLOAT"), ("int64", "TYPE_INT64"))
    for number, (name, kind) in enumerate(kinds, start=1):
        values = file.message_type.add(name=f"{name}_list")
        values.field.add(name="value", number=1, label="LABEL_REPEATED", type=kind)
        of = f".fedmf.{name}_list"
        feature.field.add(
            name=name, number=number, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=of, oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label="LABEL_OPTIONAL", type="TYPE_STRING")
    of = ".fedmf.Feature"
    entry.field.add(name="value", number=2, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=of)
    of = ".fedmf.Features.FeatureEntry"
    features.field.add(name="feature", number=1, label="LABEL_REPEATED", type="TYPE_MESSAGE", type_name=of)
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label="LABEL_OPTIONAL", type="TYPE_MESSAGE", type_name=".fedmf.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("fedmf.Example"))


def examples(messages: Sequence[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the features `names` of serialised tf.train.Example, as columns of texts (bytes) or lists of numbers.

    Raises `DataError` for what is no such message, or lacks a feature.
    """
    from google.protobuf.message import DecodeError

    columns: dict[str, list[Any]] = {name: [] for name in names}
    for message in messages:
        example = _example_class()()
        try:
            example.ParseFromString(message)
        except (DecodeError, TypeError) as error:
            raise DataError("A stored example is no tf.train.Example.") from error
        features = example.features.feature
        for name, column in columns.items():
            if name not in features:
                held = ", ".join(sorted(features)) or "nothing"
                raise DataError(f"A stored example lacks {name}; it holds {held}.")
            kind = features[name].WhichOneof("kind")
            values = list(getattr(features[name], kind).value) if kind else []
            column.append(values[0] if kind == "bytes" and len(values) == 1 else values)
    return columns


@dataclass(frozen=True)
class Leaf:
    """LEAF's folder of JSON files: {"users", "num_samples", "user_data": {user: {"x", "y"}}}."""

    folder: Path
    form = "leaf"
    splits = ("train", "test")

    @property
    def where(self) -> Path:
        """The folder."""
        return self.folder

    @property
    def paths(self) -> Sequence[Path]:
        """The files."""
        return [file for split in self.splits for file in self._files(split)]

    def _files(self, split: str) -> list[Path]:
        return sorted((self.folder / split).glob("*.json"))

    def read(self, split: str) -> Iterator[Raw]:
        """Yield the examples user by user, one file in memory at a time.

        A training user without examples, or without lists of as many inputs as labels, is one example that cannot be
        read: who the clients are is said by the names alone.
        """
        empty = True
        for file in self._files(split):
            with reading(file, "JSON"):
                text = file.read_text(encoding="utf-8-sig")
            document = read_json(text, file)
            data = document.get("user_data") if isinstance(document, dict) else None
            if not isinstance(data, dict):
                raise DataError(
                    f"{file} holds no user_data; a LEAF file is {{users, num_samples, user_data}}."
                )
            for user, held in data.items():
                x, y = (held.get("x"), held.get("y")) if isinstance(held, dict) else (None, None)
                where = f"{file}, user {user!r}"
                if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
                    yield Raw([user], {}, where, "there must be lists x and y of one length.")
                elif x:
                    yield Raw([user] * len(x), {"x": x, "y": y}, where)
                elif split == "train":
                    yield Raw([user], {}, where, "there are no examples.")
                else:
                    continue
                empty = False
        if empty:
            raise DataError(f"{self.folder / split} holds no examples; it must hold LEAF's JSON files.")


@dataclass(frozen=True)
class Hub:
    """The files of a data set of the hub that lie on this machine: parquet or CSV, which have one split."""

    where: Path
    files: Files
    form = "hub"
    splits = ("all",)

    @property
    def paths(self) -> Sequence[Path]:
        """The files, also below a folder data/."""
        if self.where.is_file():
            return [self.where]
        patterns = ("*.parquet", "data/*.parquet", "*.csv") if self.files.hub else ()
        return sorted(file for pattern in patterns for file in self.where.glob(pattern))

    def read(self, split: str) -> Iterator[Raw]:
        """Yield the rows of all files. Other values than a row's user may be None: they are one user's mistake."""
        user, *_ = self.files.hub_columns
        done = 0
        for file in self.paths:
            begin = done
            for part in (
                _of_parquet(file, self.files) if file.suffix == ".parquet" else _of_csv(file, self.files)
            ):
                if None in part[user]:
                    row = done - begin + part[user].index(None) + 1
                    raise DataError(f"Row {row} of {file} has no {user}; every row must have one.")
                yield Raw(part[user], part, str(file))
                done += len(part[user])
        if not done:
            raise DataError(f"{self.paths[-1]} holds no rows; it must hold examples.")


def _of_parquet(file: Path, files: Files) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of a parquet file, some rows at a time."""
    parquet, library = need("pyarrow.parquet", f"Reading {file}"), need("pyarrow", f"Reading {file}")
    with reading(file, "parquet", also=(library.ArrowException,)):
        opened = parquet.ParquetFile(file)
        _refuse_absent(file, files, opened.schema_arrow.names)
        for batch in opened.iter_batches(AT_ONCE, columns=list(files.hub_columns)):
            yield batch.to_pydict()


def _of_csv(file: Path, files: Files) -> Iterator[dict[str, list[Any]]]:
    """Yield the columns of a CSV file with a header, some rows at a time."""
    with reading(file, "CSV in UTF-8"), file.open("rb") as raw:
        reader = csv.DictReader(io.TextIOWrapper(raw, newline="", encoding="utf-8-sig"), strict=True)
        _refuse_absent(file, files, reader.fieldnames or ())
        done = 0
        while rows := list(islice(reader, AT_ONCE)):
            for number, row in enumerate(rows, start=done + 1):
                if None in row or None in row.values():  # what csv makes of too many and of too few cells
                    raise DataError(
                        f"Row {number} of {file} has not as many cells as the header; each row must have one for each "
                        "column."
                    )
            yield {name: [row[name] for row in rows] for name in files.hub_columns}
            done += len(rows)


def _refuse_absent(file: Path, files: Files, held: Sequence[str]) -> None:
    """Raise `DataError` unless a file holds the hub's columns."""
    if absent := [name for name in files.hub_columns if name not in held]:
        raise DataError(f"{file} lacks the column {absent[0]}; it holds {', '.join(held) or 'nothing'}.")


@dataclass(frozen=True)
class Download:
    """The train split of a data set of the hub as flwr-datasets has downloaded it."""

    table: Any
    files: Files
    form = "hub"
    splits = ("all",)
    paths = ()

    @property
    def where(self) -> str:
        """Its name on the hub."""
        return self.files.hub

    def read(self, split: str) -> Iterator[Raw]:
        """Yield its rows, some at a time. Pictures are left encoded."""
        held = self.table.select_columns(list(self.files.hub_columns)).with_format(None)
        library = need("datasets", "Reading a download")
        for name, kind in held.features.items():
            if isinstance(kind, library.Image):
                held = held.cast_column(name, library.Image(decode=False))
        for start in range(0, len(held), AT_ONCE):
            part = held[start : start + AT_ONCE]
            yield Raw(part[self.files.hub_columns[0]], part, self.files.hub)


def download(files: Files) -> Download:
    """Return the hub's data set, downloaded, or raise `DataError`."""
    name = files.hub
    module = need("flwr_datasets", f"Downloading {name}")
    partitioner = need("flwr_datasets.partitioner", f"Downloading {name}").IidPartitioner(num_partitions=1)
    try:
        table = module.FederatedDataset(dataset=name, partitioners={"train": partitioner}).load_split("train")
    except Exception as error:  # the hub's client raises errors of many libraries
        raise DataError(
            f"{name} could not be downloaded ({type(error).__name__}: {error}); on a machine without the "
            "network put its files (*.parquet or *.csv, as the hub holds them) into a folder and set "
            "path to it."
        ) from error
    return Download(table, files)


def source_at(path: Path, files: Files) -> Source:
    """Return the files of a benchmark at `path`, which exists.

    Raises `DataError` for a folder that holds them in two forms: which are meant must be said.
    """
    if path.is_file():
        return Hub(path, files) if path.suffix in (".parquet", ".csv") else Sqlite(path, files)
    hdf5 = Hdf5(path, files)
    forms: dict[str, Source] = {
        files.sqlite: Sqlite(path / files.sqlite, files),
        "HDF5 files": hdf5,
        "LEAF's files": Leaf(path),
        "the hub's files": Hub(path, files),
    }
    found = {name: source for name, source in forms.items() if any(file.is_file() for file in source.paths)}
    if len(found) > 1:
        raise DataError(
            f"{path} holds {' and '.join(found)}, of which either may be meant; set path to a folder or file of one form."
        )
    return next(iter(found.values()), hdf5)
