"""A process that only runs clients, a worker or a node, is given what is public and reads no test set."""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_files
from client.data import CLASSIFICATION, NEXT_TOKEN, Dataset, Public, load
from client.data.own import fifth_of_each
from fedmf.errors import DataError, SettingError

HELD = small_files.arrays()["split"] == 1  # rows of the files that say it
DRAWN = fifth_of_each(np.repeat(small_files.USERS, small_files.ROWS), seed=0)


def numbers(path: Path) -> None:
    """Spoil the test inputs of arrays."""
    x = np.where(HELD[:, None], np.nan, small_files.arrays()["x"])
    small_files.npz(path, x=x)


def cells(path: Path) -> None:
    """Spoil the test inputs of a table of numbers: empty cells."""
    head, *rows = path.read_text().splitlines()
    spoilt = [
        ",".join([row.split(",")[0], "", *row.split(",")[2:]]) if row.endswith(",1") else row for row in rows
    ]
    path.write_text("\n".join([head, *spoilt]) + "\n")


def pictures(path: Path) -> None:
    """Spoil the test pictures of a table, but for the first, which says the shape."""
    first = int(np.argmax(HELD))
    column = [
        {"bytes": b"no picture"} if test and row != first else small_files.png()
        for row, test in enumerate(HELD)
    ]
    small_files.own_parquet(path, picture=column)


def files_of_pictures(path: Path) -> None:
    """Spoil the test rows of a table of pictures, but for the first, which says the shape."""
    table = (path / "metadata.csv").read_text().splitlines()
    tested = [place for place, row in enumerate(table) if row.endswith(",1")]
    for place in tested[1:]:
        table[place] = table[place].replace("a.png", "none.png")
    (path / "metadata.csv").write_text("\n".join(table) + "\n")


def lines(path: Path) -> None:
    """Spoil the test lines of JSON lines."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(r | ({"text": None} if r["split"] else {})) + "\n" for r in records))


def rows(path: Path) -> None:
    """Spoil the test splits of TFF's sqlite file, and forget whose they are."""
    with sqlite3.connect(path) as file:
        file.execute(
            "UPDATE examples SET serialized_example_proto = x'0a' WHERE split_name NOT LIKE '%train'"
        )
        file.execute("UPDATE client_metadata SET client_id = NULL WHERE split_name NOT LIKE '%train'")
    file.close()


def files(path: Path) -> None:
    """Remove the test files of TFF's HDF5, or write nonsense into LEAF's."""
    for file in (*path.glob("*_test.h5"), *path.glob("*_held_out.h5")):
        file.unlink()
    for file in (path / "test").glob("*.json"):
        file.write_text("{")


def hub_pictures(path: Path) -> None:
    small_files.parquet(path, image=[None if test else small_files.png() for test in DRAWN])


SPOIL: dict[str, Callable[[Path], None]] = {
    "npz": numbers, "dealt": numbers, "own_csv": cells,
    "own_column": pictures, "own_pictures": files_of_pictures, "jsonl": lines, "femnist_hdf5": files,
    "femnist_leaf": files, "femnist_parquet": hub_pictures, "stackoverflow_sqlite": rows,
}  # fmt: skip


def assert_same(clients: Dataset, whole: Dataset) -> None:
    """Assert that a process that only runs clients has the same ones, and no test set."""
    assert (clients.public, clients.unit) == (whole.public, whole.unit)
    assert len(clients.clients) == len(whole.clients)
    for one, other in zip(clients.clients, whole.clients, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert len(clients.test) == 0 < len(whole.test)


@pytest.mark.parametrize("form", SPOIL)
def test_a_process_that_only_runs_clients_reads_no_test_example(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    whole = load(**given)
    assert_same(load(**given, public=whole.public), whole)
    SPOIL[form](Path(given["path"]))
    with pytest.raises(DataError):
        load(**given)
    assert_same(load(**given, public=whole.public), whole)


def test_a_loader_of_ones_own_is_given_what_is_public_if_it_takes_it() -> None:
    whole = load("own_loaders:load_telling")
    assert whole.source == "clients and test set"
    assert load("own_loaders:load_telling", public=whole.public).source == "clients"
    for name in ("load", "load_with_an_odd_test_example"):
        dataset = load(f"own_loaders:{name}", public=whole.public)
        assert (len(dataset.test), dataset.public) == (0, whole.public)
    with pytest.raises(DataError, match="not finite"):
        load("own_loaders:load_with_an_odd_test_example")


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
def test_what_is_public_is_a_setting_and_back(public: Public, setting: dict[str, Any]) -> None:
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
def test_what_cannot_be_public_is_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=f"public is .*{sentence}"):
        Public.of(given)


@pytest.mark.parametrize("form", ["npz", "own_csv", "own_parquet", "jsonl"])
def test_a_file_of_another_shape_or_vocabulary_is_refused_as_such(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    public = load(**given).public
    other = replace(public, classes=9) if form == "jsonl" else replace(public, shape=(9,))
    with pytest.raises(DataError, match=r"those of this data set are \[9\]|this data set has 9 tokens"):
        load(**given, public=other)
    if form != "jsonl":
        with pytest.raises(SettingError, match="classes is 4, but public says 3"):
            load(**given, classes=4, public=public)


def few(form: str, folder: Path, hers: int) -> dict[str, Any]:
    """Write rows of six users without a split: four of each, and `hers` of one; a fifth of four is none."""
    folder.mkdir()
    held = [(user, place) for user in range(6) for place in range(hers if user == 1 else 4)]
    if form == "npz":
        np.savez(
            folder / "data.npz", x=np.array(held, "f4"), y=[0] * len(held), user=[user for user, _ in held]
        )
        return {"name": "by_user_npz", "path": str(folder / "data.npz")}
    lines = [json.dumps({"user": f"u{user}", "text": "to be " * (place + 1)}) for user, place in held]
    (folder / "data.jsonl").write_text("\n".join(lines))
    words = str(small_files.vocabulary(folder / "words"))
    return {"name": "by_user_text", "path": str(folder / "data.jsonl"), "vocabulary": words}


@pytest.mark.parametrize(
    ("form", "public"),
    [("npz", Public((2,), 3)), ("jsonl", Public.of({"shape": [20], "classes": 13, "task": "next_token"}))],
)
def test_the_others_are_the_same_whether_one_user_has_four_rows_or_five(
    tmp_path: Path, form: str, public: Public
) -> None:
    """Where one user has five and the others have four, all test rows are hers."""
    four, five = (load(**few(form, tmp_path / str(n), n), public=public).clients for n in (4, 5))
    assert len(four) == len(five) == 6
    for user in (0, 2, 3, 4, 5):
        np.testing.assert_array_equal(four[user].x, five[user].x)
        np.testing.assert_array_equal(four[user].y, five[user].y)
    with pytest.raises(DataError, match="no user has five"):
        load(**few(form, tmp_path / "whole", 4))
