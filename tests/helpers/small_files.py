"""Small valid files of every dataset that reads files, in the published layouts, to be broken by the tests.

TFF's HDF5 files are /examples/USER/COLUMN and its sqlite files the tables examples and client_metadata (the docstrings
of tff.simulation.datasets and of its sql_client_data); LEAF's are {users, num_samples, user_data} (LEAF's README); the
hub's are the parquet and CSV files of flwrlabs/femnist and flwrlabs/shakespeare (their cards).
"""

import gzip
import io
import json

import datasets
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from client.data import load
from fedmf.errors import DataError
from written_data import write_hdf5, write_sqlite

USERS = ("ann", "bob", "cat")
ROWS = 6  # of each user
LINE = ("to be or not to be that is the question " * 3)[:80]
PLAYS = "character_id,x,y\n" + "".join(f"{user},{LINE},{y}\n" for user in USERS for y in "abcdef")
"""The hub's shakespeare.csv."""
LINES = "".join(
    json.dumps({"user": user, "text": f"{LINE} {row}", "split": int(row == 5)}) + "\n"
    for user in USERS
    for row in range(ROWS)
)
"""A by_user_text file."""
# Every name that a split of TFF's femnist has had in a sqlite file.
SPLITS = {
    "femnist": ("train", "all_train", "digits_only_train", "test", "all_test", "digits_only_test"),
    "shakespeare": ("train", "test"),
    "stackoverflow": ("train", "test", "heldout"),
}
FILES = {"femnist": "fed_emnist", "shakespeare": "shakespeare", "stackoverflow": "stackoverflow"}


def columns(name, user=0, rows=ROWS):
    """Return TFF's columns of one user."""
    if name == "femnist":
        rng = np.random.default_rng(user)
        return {
            "pixels": rng.random((rows, 28, 28), dtype=np.float32),
            "label": rng.integers(0, 62, rows).astype("i4"),
        }
    if name == "shakespeare":
        return {"snippets": [f"{LINE} {user} {row}".encode() for row in range(rows)]}
    return {"tokens": [b"how to do this"] * rows}


def hdf5(folder, name):
    """Write TFF's HDF5 files, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    users = {user: columns(name, number) for number, user in enumerate(USERS)}
    splits = ("train", "test", *(("held_out",) if name == "stackoverflow" else ()))
    write_hdf5(folder, {f"{FILES[name]}_{split}": users for split in splits})
    return folder


def sqlite(path, name):
    users = {user: columns(name, number) for number, user in enumerate(USERS)}
    write_sqlite(path, dict.fromkeys(SPLITS[name], users))
    return path


def leaf(folder, name, change=None):
    """Write a LEAF folder; `change(user_data)` alters the training users."""
    for split in ("train", "test"):
        data = {}
        for number, user in enumerate(USERS):
            if name == "femnist":
                held = columns(name, number)
                x, y = held["pixels"].reshape(ROWS, -1).round(2).tolist(), held["label"].tolist()
            else:
                x, y = [LINE] * ROWS, list("abcdef")
            data[user] = {"x": x, "y": y}
        if change and split == "train":
            change(data)
        document = {"users": list(data), "num_samples": [ROWS] * len(data), "user_data": data}
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / split / "all_data.json").write_text(json.dumps(document))
    return folder


def encoded(pixels, kind="png", mode=None):
    """Return an array of pixels as the bytes of a picture."""
    data = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(data, kind)
    return data.getvalue()


def png(size=(28, 28), mode="L"):
    """Return a picture as the hub stores it."""
    return {"bytes": encoded(np.full(size[::-1], 7, np.uint8), mode=mode), "path": None}


def parquet(folder, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    users = [user for user in USERS for _ in range(ROWS)]
    table = {"image": [png()] * len(users), "writer_id": users, "character": [3] * len(users)} | changed
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "train.parquet")
    return folder


def csv(folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shakespeare.csv").write_text(PLAYS)
    return folder


def arrays(**changed):
    """Return the arrays of a by_user_npz file."""
    rng = np.random.default_rng(0)
    count = len(USERS) * ROWS
    split = np.tile([0, 0, 0, 0, 0, 1], len(USERS))
    y = np.arange(count) % 3
    y[split == 1] = [0, 1, 2]
    user = np.repeat(np.arange(len(USERS)), ROWS)
    held = {"x": rng.random((count, 4)), "y": y, "user": user, "split": split} | changed
    return {name: array for name, array in held.items() if array is not None}


def npz(path, **changed):
    """Write an .npz file of arrays by user."""
    np.savez(path, **arrays(**changed))
    return path


def npy(folder, **changed):
    """Write a folder of .npy files of arrays by user."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays(**changed).items():
        np.save(folder / f"{name}.npy", array)
    return folder


def jsonl(path):
    """Write a file of JSON lines, compressed where its name says so."""
    path.write_bytes(gzip.compress(LINES.encode()) if path.suffix == ".gz" else LINES.encode())
    return path


def vocabulary(path):
    path.write_text("to\nbe\nhow\ndo\nthis\nor\nnot\nthat\nis\n")
    return path


def table():
    """Return the rows of a table of one's own: users, numbers, labels and split."""
    held = arrays()
    columns = {f"x{place}": held["x"][:, place].round(4).tolist() for place in range(2)}
    users = [USERS[number] for number in held["user"]]
    return {"user": users, **columns, "label": held["y"].tolist(), "split": held["split"].tolist()}


def rows(count=12):
    """Return rows of three users in turn; the feature `place` tells rows apart, the last three are test rows."""
    return {
        "user": [("bob", "ann", "7")[n % 3] for n in range(count)],
        "place": [float(n) for n in range(count)],
        "height": [n / 4 for n in range(count)],
        "label": [n % 2 for n in range(count)],
        "split": [int(n >= count - 3) for n in range(count)],
    }


def write(path, form, table):
    """Write a table as csv, parquet or hub, and return its path."""
    if form == "csv":
        pyarrow.csv.write_csv(pyarrow.table(table), path)
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=5)
    else:
        datasets.Dataset.from_dict(table).save_to_disk(str(path))
    return path


in_every_form = pytest.mark.parametrize("form", ["csv", "parquet", "hub"])
"""Runs a test with each form of `opened`."""


def opened(folder, form, table, **settings):
    """Write a table and load it."""
    return load(f"by_user_{form}", path=str(write(folder / f"data.{form}", form, table)), **settings)


def assert_fails_alone(dataset, client, sentence):
    """Assert that one of three clients cannot be read, and the others can."""
    assert len(dataset.clients) == 3
    assert min(len(dataset.clients[other]) for other in {0, 1, 2} - {client}) > 0
    with pytest.raises(DataError, match=sentence):
        dataset.clients[client]


def spoilt(values, row):
    """Return an array of texts in which the one in `row` is not UTF-8."""
    held = [b"\xff" if n == row else value.encode() for n, value in enumerate(values)]
    return pyarrow.array(held, pyarrow.binary()).view(pyarrow.string())


def own_csv(path, **changed):
    """Write a table of one's own as CSV."""
    return write(path, "csv", table() | changed)


def own_parquet(path, **changed):
    """Write a table of one's own as parquet, with a column of texts and one of pictures."""
    more = {"said": [LINE] * len(USERS) * ROWS, "picture": [png()] * len(USERS) * ROWS} | changed
    return write(path, "parquet", table() | more)


def own_hub(folder):
    """Write a table of one's own as `save_to_disk` does."""
    return write(folder, "hub", table())


def pictures(folder):
    """Write pictures of one's own, named by a table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.png").write_bytes(png()["bytes"])
    rows = [f"a.png,{user},{row % 2},{int(row > 3)}" for user in USERS for row in range(ROWS)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,user,label,split", *rows]) + "\n")
    return folder


# Form -> (dataset, what writes it at a path in a folder, its name there).
FORMS = {
    "npz": ("by_user_npz", npz, "data.npz"),
    "npy": ("by_user_npz", npy, "arrays"),
    "dealt": ("partitioned", npz, "data.npz"),
    "own_csv": ("by_user_csv", own_csv, "data.csv"),
    "own_parquet": ("by_user_parquet", own_parquet, "data.parquet"),
    "own_hub": ("by_user_hub", own_hub, "saved"),
    "own_texts": ("by_user_parquet", own_parquet, "data.parquet"),
    "own_column": ("by_user_parquet", own_parquet, "data.parquet"),
    "own_pictures": ("by_user_images", pictures, "pictures"),
    "jsonl": ("by_user_text", jsonl, "texts.jsonl"),
    "gz": ("by_user_text", jsonl, "texts.jsonl.gz"),
    "femnist_hdf5": ("femnist", lambda path: hdf5(path, "femnist"), "hdf5"),
    "femnist_sqlite": ("femnist", lambda path: sqlite(path, "femnist"), "emnist_all.sqlite"),
    "femnist_leaf": ("femnist", lambda path: leaf(path, "femnist"), "leaf"),
    "femnist_parquet": ("femnist", parquet, "hub"),
    "shakespeare_hdf5": ("shakespeare", lambda path: hdf5(path, "shakespeare"), "hdf5"),
    "shakespeare_sqlite": ("shakespeare", lambda path: sqlite(path, "shakespeare"), "shakespeare.sqlite"),
    "shakespeare_leaf": ("shakespeare", lambda path: leaf(path, "shakespeare"), "leaf"),
    "shakespeare_csv": ("shakespeare", csv, "hub"),
    "stackoverflow_hdf5": ("stackoverflow", lambda path: hdf5(path, "stackoverflow"), "hdf5"),
    "stackoverflow_sqlite": ("stackoverflow", lambda path: sqlite(path, "stackoverflow"), "stackoverflow.sqlite"),
}  # fmt: skip


COLUMNS = {
    "own_parquet": {"features": ["x0", "x1"]},
    "own_texts": {"text": "said", "vocabulary_size": 9},
    "own_column": {"image": "picture"},
}


def settings(form, folder):
    """Write the files of a form into `folder`; return the arguments of `client.data.load` for them."""
    name, write, place = FORMS[form]
    given = {"name": name, "path": str(write(folder / place))}
    if name in ("stackoverflow", "by_user_text"):
        given["vocabulary"] = str(vocabulary(folder / "words.txt"))
    given |= COLUMNS.get(form, {})
    if name == "partitioned":
        given["clients"] = 4
    return given
