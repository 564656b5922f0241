"""A process that plays clients, a worker or a node, reads no test set: what is broken there does not concern it."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import small_files
from client.data import Dataset, load
from client.data.split import fifth_of_each
from fedmf.errors import DataError

HELD = small_files.arrays()["split"] == 1  # rows of the files that say it
DRAWN = fifth_of_each(np.repeat(small_files.USERS, small_files.ROWS), seed=0)


def numbers(path: Path) -> None:
    """Spoil the test inputs of arrays."""
    x = np.where(HELD[:, None], np.nan, small_files.arrays()["x"])
    (small_files.npz if path.is_file() else small_files.npy)(path, x=x)


def cells(path: Path) -> None:
    """Spoil the test inputs of a table of numbers: empty cells."""
    table = {
        name: [None if name == "x0" and test else value for value, test in zip(values, HELD, strict=True)]
        for name, values in small_files.table().items()
    }
    if path.suffix == ".csv":
        rows = [
            "" if value is None else str(value) for row in zip(*table.values(), strict=True) for value in row
        ]
        lines = [",".join(rows[start : start + len(table)]) for start in range(0, len(rows), len(table))]
        path.write_text("\n".join([",".join(table), *lines]) + "\n")
    else:
        small_files.own_hub(path, **table)


def texts(path: Path) -> None:
    """Spoil the test texts of a table: empty cells."""
    small_files.own_parquet(path, said=[None if test else small_files.LINE for test in HELD])


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
    "npz": numbers, "npy": numbers, "dealt": numbers, "own_csv": cells, "own_hub": cells, "own_texts": texts,
    "own_column": pictures, "own_pictures": files_of_pictures, "jsonl": lines, "femnist_hdf5": files,
    "femnist_leaf": files, "femnist_parquet": hub_pictures, "stackoverflow_sqlite": rows,
}  # fmt: skip


def assert_same(clients: Dataset, whole: Dataset) -> None:
    """Assert that a process that plays clients has the same ones, and one test example of the same kind."""
    assert (clients.input_shape, clients.classes, clients.unit) == (
        whole.input_shape,
        whole.classes,
        whole.unit,
    )
    assert len(clients.clients) == len(whole.clients)
    for one, other in zip(clients.clients, whole.clients, strict=True):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert len(clients.test) == 1 < len(whole.test)
    for one, other in ((clients.test.x, whole.test.x), (clients.test.y, whole.test.y)):
        assert (one.dtype, one.shape[1:]) == (other.dtype, other.shape[1:])


@pytest.mark.parametrize("form", SPOIL)
def test_who_plays_clients_reads_no_test_example(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    whole = load(**given)
    assert_same(load(**given, clients_only=True), whole)
    SPOIL[form](Path(given["path"]))
    with pytest.raises(DataError):
        load(**given)
    assert_same(load(**given, clients_only=True), whole)


def test_a_loader_of_ones_own_is_told_that_only_clients_are_played_if_it_takes_it() -> None:
    assert load("own_loaders:load_telling").source == "clients and test set"
    assert load("own_loaders:load_telling", clients_only=True).source == "clients"
    assert len(load("own_loaders:load", clients_only=True).test) == 1 < len(load("own_loaders:load").test)


def test_of_ones_own_test_set_one_example_is_looked_at() -> None:
    load("own_loaders:load_with_an_odd_test_example", clients_only=True)
    with pytest.raises(DataError, match="not finite"):
        load("own_loaders:load_with_an_odd_test_example")
