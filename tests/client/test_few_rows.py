"""A process that plays clients needs no test set: one user's number of rows does not decide what becomes of the others.

Without a split a fifth of each user's rows is the test set, and of four rows that is none. Where one user has five and the
others have four, all test rows are hers.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import small_files
from client.data import Dataset, load
from experiments.deployment.node import Node, node_settings, readiness
from fedmf.errors import DataError

USERS = range(6)
HERS = 1  # the user with one row more or less

Rows = list[tuple[int, int]]


def rows(hers: int) -> Rows:
    """Return (user, place) of each row."""
    return [(user, place) for user in USERS for place in range(hers if user == HERS else 4)]


def number(user: int, place: int) -> float:
    return user + place / 8


def npz(folder: Path, held: Rows) -> dict[str, Any]:
    x = np.array([[number(*row), 1] for row in held], "f4")
    y = np.array([place % 3 for _, place in held])
    np.savez(folder / "data.npz", x=x, y=y, user=np.array([user for user, _ in held]))
    return {"name": "by_user_npz", "path": folder / "data.npz", "classes": 3}


def csv(folder: Path, held: Rows, label: Callable[[int], object] = lambda place: place % 3) -> dict[str, Any]:
    lines = [
        f"u{user},{label(place)},{number(user, place)},{str(place == 1).lower()}" for user, place in held
    ]
    (folder / "data.csv").write_text("\n".join(["user,label,a,b", *lines]) + "\n")
    return {"name": "by_user_csv", "path": folder / "data.csv", "classes": 3}


def csv_of_names(folder: Path, held: Rows) -> dict[str, Any]:
    return {**csv(folder, held, "xyz__".__getitem__), "classes": None, "labels": ["x", "y", "z", "_"]}


def csv_with_odd_rows(folder: Path, held: Rows) -> dict[str, Any]:
    """Of two users of six a label, or a cell of true and false, is none."""
    given = csv(folder, held)
    text = given["path"].read_text().replace("u0,0,0.0,false", "u0,0,0.0,maybe")
    given["path"].write_text(text.replace("u5,1,", "u5,home,"))
    return given


def parquet(folder: Path, held: Rows, **more: list[Any]) -> Path:
    table = {"user": [user for user, _ in held], "label": [place % 3 for _, place in held], **more}
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "data.parquet")
    return folder / "data.parquet"


def lists(folder: Path, held: Rows) -> dict[str, Any]:
    """The first row, of the first user, has another shape."""
    values = [[number(*row)] * (2 + 5 * (row == (0, 0))) for row in held]
    path = parquet(folder, held, values=values)
    return {"name": "by_user_parquet", "path": path, "classes": 3, "features": ["values"]}


def pictures(folder: Path, held: Rows) -> dict[str, Any]:
    """The first picture, of the first user, is broken, and one of the last user's is larger."""
    shown = [small_files.png((8, 8)) for _ in held]
    shown[0], shown[-1] = {"bytes": b"no picture", "path": None}, small_files.png((9, 8))
    path = parquet(folder, held, picture=shown)
    return {"name": "by_user_parquet", "path": path, "classes": 3, "image": "picture"}


def texts(folder: Path, held: Rows) -> dict[str, Any]:
    lines = [json.dumps({"user": f"u{user}", "text": "to be " * (place + 1)}) for user, place in held]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    words = str(small_files.vocabulary(folder / "words.txt"))
    return {"name": "by_user_text", "path": folder / "data.jsonl", "vocabulary": words}


FORMS = (npz, csv, csv_of_names, csv_with_odd_rows, lists, pictures, texts)
each_form = pytest.mark.parametrize("form", FORMS)


def given(form: Callable[..., dict[str, Any]], folder: Path, hers: int) -> dict[str, Any]:
    folder.mkdir()
    settings = form(folder, rows(hers))
    return {key: str(value) if key == "path" else value for key, value in settings.items()}


def clients(dataset: Dataset) -> Iterator[tuple[int, Any]]:
    """Yield (user, examples) of each client, None for one that cannot be read."""
    for user in USERS:
        try:
            yield user, dataset.clients[user]
        except DataError:
            yield user, None


@each_form
def test_the_others_are_the_same_whether_one_user_has_four_rows_or_five(tmp_path: Path, form: Any) -> None:
    four, five = (load(**given(form, tmp_path / str(hers), hers), clients_only=True) for hers in (4, 5))
    assert len(four.clients) == len(five.clients) == len(USERS)
    assert (four.input_shape, four.classes, four.task) == (five.input_shape, five.classes, five.task)
    read = 0
    for (user, one), (_, other) in zip(clients(four), clients(five), strict=True):
        assert (one is None) == (other is None)
        if user != HERS and one is not None:
            np.testing.assert_array_equal(one.x, other.x)
            np.testing.assert_array_equal(one.y, other.y)
            read += 1
    assert read >= 3


@each_form
def test_who_needs_a_test_set_is_told_that_there_is_none(tmp_path: Path, form: Any) -> None:
    with pytest.raises(DataError, match="no user has five"):
        load(**given(form, tmp_path / "4", 4))


@pytest.mark.parametrize("hers", [4, 5])
def test_a_node_is_ready_whatever_number_of_rows_one_of_its_users_has(tmp_path: Path, hers: int) -> None:
    path = given(npz, tmp_path / "data", hers)["path"]
    data = f"clients=6 dataset=by_user_npz dataset.path={path} dataset.classes=3"
    assert readiness(Node(node_settings(data))) == ""


@pytest.mark.parametrize("form", [npz, csv, csv_of_names])
def test_classes_that_no_test_row_shows_are_to_be_said(tmp_path: Path, form: Any) -> None:
    settings = given(form, tmp_path / "data", 4) | {"classes": None}
    if form is csv_of_names:
        settings |= {"labels": None}
        # Without the number names are counted, which needs no test row; the statement says so of every such run.
        assert load(**settings, clients_only=True).classes == 4
        return
    with pytest.raises(DataError, match="set classes"):
        load(**settings, clients_only=True)


@pytest.mark.parametrize("form", ["npz", "own_csv", "jsonl"])
def test_a_file_whose_split_has_no_test_row_is_read_for_its_clients(tmp_path: Path, form: str) -> None:
    """Whose rows are test rows says the file; that one user's were the last of them decides nothing."""
    settings = small_files.settings(form, tmp_path)
    if form == "npz":
        small_files.npz(Path(settings["path"]), split=np.zeros(18, int))
    elif form == "own_csv":
        text = Path(settings["path"]).read_text()
        Path(settings["path"]).write_text(
            "".join(f"{line[:-1]}0\n" if line[-1] == "1" else f"{line}\n" for line in text.splitlines())
        )
    else:
        text = Path(settings["path"]).read_text()
        Path(settings["path"]).write_text(text.replace('"split": 1', '"split": 0'))
    more = {} if form == "jsonl" else {"classes": 3}
    assert len(load(**settings, **more, clients_only=True).clients) == 3
    with pytest.raises(DataError, match=r"no test example|both present"):
        load(**settings, **more)


def test_a_test_cell_that_is_no_number_concerns_nobody_where_features_are_named(tmp_path: Path) -> None:
    settings = small_files.settings("own_csv", tmp_path) | {"features": ["x0", "x1"], "classes": 3}
    path = Path(settings["path"])
    lines = path.read_text().splitlines()
    lines[6] = ",".join([lines[6].split(",")[0], "much", *lines[6].split(",")[2:]])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="something else in row 6, a test row"):
        load(**settings)
    assert np.isfinite(load(**settings, clients_only=True).clients[0].x).all()
