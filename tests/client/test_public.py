"""A process that only runs clients, a worker or a node, is given what is public and reads no test set."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import small_files
from client.data import CLASSIFICATION, NEXT_TOKEN, Public, load
from client.data.own import fifth_of_each
from fedmf.errors import DataError, SettingError

HELD = small_files.arrays()["split"] == 1  # rows of the files that say it
DRAWN = fifth_of_each(np.repeat(small_files.USERS, small_files.ROWS), seed=0)


def cells(path):
    """Spoil the test inputs of a table of numbers: empty cells."""
    head, *rows = path.read_text().splitlines()
    spoilt = [
        ",".join([row.split(",")[0], "", *row.split(",")[2:]]) if row.endswith(",1") else row for row in rows
    ]
    path.write_text("\n".join([head, *spoilt]) + "\n")


def rows(path):
    """Spoil the test splits of TFF's sqlite file, and forget whose they are."""
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            "UPDATE examples SET serialized_example_proto = x'0a' WHERE split_name NOT LIKE '%train';"
            "UPDATE client_metadata SET client_id = NULL WHERE split_name NOT LIKE '%train'"
        )


def files(path):
    """Remove the test files of TFF's HDF5, or write nonsense into LEAF's."""
    for file in (*path.glob("*_test.h5"), *path.glob("*_held_out.h5")):
        file.unlink()
    for file in (path / "test").glob("*.json"):
        file.write_text("{")


NAN = np.where(HELD[:, None], np.nan, small_files.arrays()["x"])
NO_TEXTS = "".join(
    json.dumps(json.loads(line) | ({"text": None} if '"split": 1' in line else {})) + "\n"
    for line in small_files.LINES.splitlines()
)
# Of a table the first test picture stays, which has the shape of all.
PICTURES = [
    small_files.png() if row <= np.argmax(HELD) or not HELD[row] else {"bytes": b"no picture"}
    for row in range(18)
]
HUB = [None if test else small_files.png() for test in DRAWN]
SPOIL = {
    "npz": lambda path: small_files.npz(path, x=NAN),
    "dealt": lambda path: small_files.npz(path, x=NAN),
    "own_csv": cells,
    "own_column": lambda path: small_files.own_parquet(path, picture=PICTURES),
    "jsonl": lambda path: path.write_text(NO_TEXTS),
    "femnist_hdf5": files,
    "femnist_leaf": files,
    "femnist_parquet": lambda path: small_files.parquet(path, image=HUB),
    "stackoverflow_sqlite": rows,
}


def assert_same(clients, whole):
    """Assert that a process that only runs clients has the same ones, and no test set."""
    assert (clients.public, clients.unit) == (whole.public, whole.unit)
    assert len(clients.clients) == len(whole.clients)
    for one, other in zip(clients.clients, whole.clients, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert len(clients.test) == 0 < len(whole.test)


@pytest.mark.parametrize("form", SPOIL)
def test_a_process_that_only_runs_clients_reads_no_test_example(tmp_path, form):
    given = small_files.settings(form, tmp_path)
    whole = load(**given)
    assert_same(load(**given, public=whole.public), whole)
    SPOIL[form](Path(given["path"]))
    with pytest.raises(DataError):
        load(**given)
    assert_same(load(**given, public=whole.public), whole)


def test_a_loader_of_ones_own_is_given_what_is_public_if_it_takes_it():
    whole = load("users_own:load_telling")
    assert whole.source == "clients and test set"
    assert load("users_own:load_telling", public=whole.public).source == "clients"
    dataset = load("users_own:load_with_an_odd_test_example", public=whole.public)
    assert (len(dataset.test), dataset.public) == (0, whole.public)
    with pytest.raises(DataError, match="not finite"):
        load("users_own:load_with_an_odd_test_example")


@pytest.mark.parametrize(
    ("public", "setting"),
    [
        (Public((8, 8), 10), {"shape": [8, 8], "classes": 10}),
        (
            Public((20,), 104, NEXT_TOKEN, "int64", (20,)),
            {"shape": [20], "classes": 104, "task": "next_token"},
        ),
        (Public((2,), 2, labels=("no", "yes")), {"shape": [2], "classes": 2, "labels": ["no", "yes"]}),
        (
            Public((2,), 3, CLASSIFICATION, "float32", (3,), "float32"),
            {"shape": [2], "classes": 3, "target_shape": [3], "target_dtype": "float32"},
        ),
    ],
)
def test_what_is_public_is_a_setting_and_back(public, setting):
    assert public.setting() == setting
    assert Public.of(setting) == public


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "it must be a mapping of shape, classes and"),
        ({"shape": [1], "classes": 2, "size": 3}, "it must be a mapping of"),
        ({"shape": 2, "classes": 2}, "shape is 2; it must be a list of whole numbers"),
        ({"shape": [2], "classes": 0}, "classes is 0; it must be a whole number"),
        ({"shape": [2], "classes": 2, "task": "guess"}, "task is 'guess'; it must be one of"),
        ({"shape": [2], "classes": 2, "dtype": "number"}, "data type 'number' not understood"),
    ],
)
def test_what_cannot_be_public_is_a_sentence(given, sentence):
    with pytest.raises(SettingError, match=f"public is .*{sentence}"):
        Public.of(given)


@pytest.mark.parametrize("form", ["npz", "own_csv", "own_parquet", "jsonl"])
def test_a_file_of_another_shape_or_vocabulary_is_refused_as_such(tmp_path, form):
    given = small_files.settings(form, tmp_path)
    public = load(**given).public
    other = replace(public, classes=9) if form == "jsonl" else replace(public, shape=(9,))
    with pytest.raises(DataError, match=r"those of this dataset are \[9\]|this dataset has 9 tokens"):
        load(**given, public=other)
    if form != "jsonl":
        with pytest.raises(SettingError, match="classes is 4, but public says 3"):
            load(**given, classes=4, public=public)


def test_the_others_are_the_same_whether_one_user_has_four_rows_or_five(tmp_path):
    """Where one user has five and the others have four, all test rows are hers."""

    def few(hers):
        held = [(user, place) for user in range(6) for place in range(hers if user == 1 else 4)]
        np.savez(
            tmp_path / str(hers), x=np.array(held, "f4"), y=[0] * len(held), user=[user for user, _ in held]
        )
        return str(tmp_path / f"{hers}.npz")

    four, five = (load("by_user_npz", path=few(hers), public=Public((2,), 3)).clients for hers in (4, 5))
    assert len(four) == len(five) == 6
    for user in (0, 2, 3, 4, 5):
        np.testing.assert_array_equal(four[user].x, five[user].x)
    with pytest.raises(DataError, match="no user has five"):
        load("by_user_npz", path=few(4))
