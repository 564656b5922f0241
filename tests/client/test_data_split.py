"""Without a split, what a user trains on follows from that user alone, through every door."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from client.data import load
from client.data.dataset import Dataset
from client.data.own import fifth_of_each
from small_files import LINE

COUNT = 20  # of each user
CHARACTERS = "abcdefghijklmnopqrst"


def numbered(users: list[str]) -> dict[str, list]:
    """Return a table in which `x` tells the rows of a user apart."""
    return {
        "user": [user for user in users for _ in range(COUNT)],
        "x": [float(n) for _ in users for n in range(COUNT)],
        "said": [CHARACTERS[n] for _ in users for n in range(COUNT)],
        "label": [0, 1] * (COUNT * len(users) // 2),
    }


def picture(n: int, size: tuple[int, int] = (2, 2)) -> Image.Image:
    return Image.fromarray(np.full(size, n, np.uint8))


def csv(path: Path, users: list[str]) -> Dataset:
    pyarrow.csv.write_csv(pyarrow.table(numbered(users)), path)
    return load("by_user_csv", path=str(path), features=["x"])


def dictionary(path: Path, users: list[str]) -> Dataset:
    table = numbered(users) | {"user": pyarrow.array(numbered(users)["user"]).dictionary_encode()}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return load("by_user_parquet", path=str(path), features=["x"])


def whole_numbers(path: Path, users: list[str]) -> Dataset:
    table = numbered(users)
    table["user"] = [{"ann": -4, "bob": 7, "cat": 2**62}[user] for user in table["user"]]
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    return load("by_user_parquet", path=str(path), features=["x"])


def folders(path: Path, users: list[str]) -> Dataset:
    for user in users:
        for n in range(COUNT):
            (path / user / "0").mkdir(parents=True, exist_ok=True)
            picture(n).save(path / user / "0" / f"{n:02}.png")
    return load("by_user_images", path=str(path))


def femnist(path: Path, users: list[str]) -> Dataset:
    import io

    def encoded(n: int) -> dict[str, bytes]:
        data = io.BytesIO()
        picture(n, (28, 28)).save(data, "png")
        return {"bytes": data.getvalue()}

    table = {
        "writer_id": numbered(users)["user"],
        "image": [encoded(n) for _ in users for n in range(COUNT)],
        "character": [1] * COUNT * len(users),
    }
    path.mkdir()
    pyarrow.parquet.write_table(pyarrow.table(table), path / "train.parquet")
    return load("femnist", path=str(path))


def shakespeare(path: Path, users: list[str]) -> Dataset:
    path.mkdir()
    rows = [f"{user},{LINE},{CHARACTERS[n]}" for user in users for n in range(COUNT)]
    (path / "shakespeare.csv").write_text("\n".join(["character_id,x,y", *rows]))
    return load("shakespeare", path=str(path))


def lines(path: Path, users: list[str]) -> Dataset:
    table = numbered(users)
    rows = [{"user": user, "text": text} for user, text in zip(table["user"], table["said"], strict=True)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return load("by_user_text", path=str(path), level="characters", length=2)


def arrays(path: Path, users: list[str]) -> Dataset:
    table = numbered(users)
    np.savez(path, x=np.array(table["x"])[:, None], y=table["label"], user=table["user"])
    return load("by_user_npz", path=f"{path}.npz")


DOORS = [
    csv, dictionary, whole_numbers, folders, femnist, shakespeare, lines, arrays,
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=[door.__name__ for door in DOORS])
def test_what_a_user_trains_on_does_not_depend_on_who_else_is_in_the_file(
    tmp_path: Path, door: Callable[[Path, list[str]], Dataset]
) -> None:
    with_ann = door(tmp_path / "three", ["ann", "bob", "cat"])
    without = door(tmp_path / "two", ["bob", "cat"])
    for place in (1, 2):
        held, alone = with_ann.clients[place], without.clients[place - 1]
        assert len(held) == COUNT * 4 // 5
        np.testing.assert_array_equal(held.x, alone.x)
        np.testing.assert_array_equal(held.y, alone.y)


def test_all_doors_draw_the_same_rows_of_a_user_by_name(tmp_path: Path) -> None:
    """The name alone says it: not what stores it, nor how often a table holds it."""
    users = ["ann", "bob", "cat"]
    first = [client.x.ravel().tolist() for client in csv(tmp_path / "csv", users).clients]
    for door in (dictionary, arrays):
        assert [
            client.x.ravel().tolist() for client in door(tmp_path / door.__name__, users).clients
        ] == first


def test_places_among_names_are_drawn_for_as_the_names() -> None:
    names = np.array(["ann", "bob", "cat"])
    users = np.random.default_rng(0).integers(0, 3, 60)
    expected = fifth_of_each(names[users], seed=0)
    np.testing.assert_array_equal(fifth_of_each(users, seed=0, names=names), expected)
    np.testing.assert_array_equal(fifth_of_each(users, seed=0, names=names.tolist()), expected)
    numbers = [-3, 7, 2**63 - 1]
    of_numbers = fifth_of_each(np.array(numbers)[users], seed=0)
    np.testing.assert_array_equal(fifth_of_each(users, seed=0, names=numbers), of_numbers)
