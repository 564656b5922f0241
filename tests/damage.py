"""What breaks the small files of every data set."""

import gzip
import json
import sqlite3
import zipfile

import h5py
import numpy as np

import small_files
from published import serialise


def altered(*sql):
    """Return what alters a sqlite file."""

    def alter(path):
        file = sqlite3.connect(path)
        for command in sql:
            file.execute(command)
        file.commit()
        file.close()

    return alter


def changed_hdf5(split, change):
    """Return what alters the HDF5 file of one split in a folder."""

    def alter(path):
        with h5py.File(next(path.glob(f"*_{split}.h5")), "r+") as file:
            change(file)

    return alter


def replaced(user, column, values):
    """Return what replaces a column of a user in an HDF5 file."""

    def change(file):
        del file[f"examples/{user}/{column}"]
        file[f"examples/{user}/{column}"] = values

    return change


def lacking(user, column):
    """Return what takes a column of a user out of an HDF5 file."""

    def change(file):
        del file[f"examples/{user}/{column}"]

    return change


def cut_in_half(path):
    """Cut a file, or all files of a folder."""
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 - 9])


def text(content, at=""):
    """Return what replaces a file by `content`; `at` names it in a folder."""

    def write(path):
        data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
        (path / at if at else path).write_bytes(data)

    return write


def arrays(**changed):
    """Return what replaces a .npz file, or a folder of .npy files."""

    def write(path):
        if path.is_file():
            small_files.npz(path, **changed)
            return
        for file in path.glob("*.npy"):
            file.unlink()
        small_files.npy(path, **changed)

    return write


def leaf(change, name="femnist"):
    """Return what alters the training users of a LEAF folder."""
    return lambda path: small_files.leaf(path, name, change)


def member(name, data, **how):
    """Return what replaces an .npz file by an archive with one more member."""

    def write(path):
        with zipfile.ZipFile(path, "a", **how) as archive:
            archive.writestr(name, data)

    return write


def bobs_line(values):
    """Return what gives a training line of JSON lines these `values` instead of its text."""

    def write(path):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        record = next(record for record in records if record["user"] == "bob" and not record["split"])
        del record["text"]
        record |= values
        path.write_text("".join(json.dumps(record) + "\n" for record in records))

    return write


def parquet(**changed):
    return lambda path: small_files.parquet(path, **changed)


def gz(content):
    return text(gzip.compress(content.encode()))


DEEP = "[" * 100_000
COUNT = len(small_files.USERS) * small_files.ROWS
OBJECT = np.array([{"a": 1}] * COUNT, dtype=object)
TABLE = (
    "DROP TABLE examples",
    "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)",
)
LINES = small_files.lines()
CSV = small_files.csv_text()
INTEGER_PIXELS = serialise(pixels=np.full(784, 200), label=1).hex()
BOB = f"bob,{small_files.LINE},a\n"
NO_TEXTS = (
    {}, {"text": None}, {"text": 3}, {"text": ["to"]}, {"tokens": None}, {"tokens": [1, None]}, {"tokens": {"b": 1}},
    {"text": "to", "tokens": 3}, {"text": None, "tokens": "to"},
)  # fmt: skip  # fmt: skip
HEAD = b"\x93NUMPY\x01\x00"


PIXELS = json.dumps([0.5] * 784)
WHOLE, NESTED = "9" * 5000, "[" * 100_000 + "]" * 100_000
ODD_USERS = (
    "null",
    "[1]",
    NESTED,
    '{"x": [], "y": []}',
    f'{{"x": [{PIXELS}], "y": [{WHOLE}]}}',
    f'{{"x": [[{NESTED}{", 0.5" * 783}]], "y": [1]}}',
    f'{{"x": [[true{", 0.5" * 783}]], "y": [1]}}',
)
"""What may stand for a user in a LEAF file, as JSON, and is no examples."""


def bob_as(value, split="train"):
    """Return what puts the JSON text `value` in the place of bob in a LEAF folder."""

    def write(path):
        file = path / split / "all_data.json"
        document = json.loads(file.read_text())
        document["user_data"]["bob"] = "BOB"
        file.write_text(json.dumps(document).replace('"BOB"', value))

    return write
