"""Where clients are played, on a node or in a worker, no single row and no single user says what the others' rows are.

Each case holds the same rows twice, with and without one user's odd ones: the others train on the same examples, to the bit,
and the node is ready.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import small_files
from client.data import Public, load
from experiments.deployment.node import readiness
from fedmf.errors import DataError
from nodes import node_with

USERS = range(4)
HERS = 2

PUBLIC = Public((2,), classes=2)  # of all cases, but for their shapes and names
Given = dict[str, Any]
Cell = Callable[[int, int], object]


def rows(hers: int) -> list[tuple[int, int]]:
    """Return (user, place) of each row: four of each user, and `hers` of one, of which every fifth is a test row."""
    return [(user, place) for user in USERS for place in range(hers if user == HERS else 4)]


def whole(user: int, place: int) -> object:
    return place % 2


def named(user: int, place: int) -> object:
    return "yes" if place % 2 else "no"


def csv(odd: object = None, column: str = "a", hers: int = 5, label: Cell = whole, **settings: Any) -> Any:
    """Return a case whose one user has `odd` in a column, None: what everybody has there."""

    def write(folder: Path, *, is_odd: bool) -> Given:
        lines = ["user,a,b,label"]
        for user, place in rows(hers):
            cells = {"a": f"{user}.5", "b": str(place), "label": str(label(user, place))}
            if is_odd and user == HERS and odd is not None:
                cells[column] = str(odd)
            lines.append(",".join([f"u{user}", *cells.values()]))
        (folder / "data.csv").write_text("\n".join(lines) + "\n")
        return {"name": "by_user_csv", "path": str(folder / "data.csv"), "classes": 2, **settings}

    return write


def split(case: Any) -> Any:
    """Return a case with a column that calls all rows training rows."""

    def write(folder: Path, *, is_odd: bool) -> Given:
        given: Given = case(folder, is_odd=is_odd)
        head, *lines = Path(given["path"]).read_text().splitlines()
        Path(given["path"]).write_text("\n".join([f"{head},split", *(f"{line},0" for line in lines)]) + "\n")
        return given

    return write


def parquet(folder: Path, **column: list[Any]) -> str:
    held = rows(5)
    table = {"user": [user for user, _ in held], "label": [place % 2 for _, place in held], **column}
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "data.parquet")
    return str(folder / "data.parquet")


def lists(folder: Path, *, is_odd: bool) -> Given:
    """The only test row is hers, and holds a shorter list."""
    values = [[float(user), float(place)] + [1.0] * (not is_odd or user != HERS) for user, place in rows(5)]
    path = parquet(folder, values=values)
    return {"name": "by_user_parquet", "path": path, "classes": 2, "features": ["values"]}


def pictures_of_a_table(folder: Path, *, is_odd: bool) -> Given:
    """The only test row is hers, and holds a larger picture."""
    shown = [small_files.png((9, 8) if is_odd and user == HERS else (8, 8)) for user, _ in rows(5)]
    path = parquet(folder, picture=shown)
    return {"name": "by_user_parquet", "path": path, "classes": 2, "image": "picture"}


def broken_pictures(folder: Path, *, is_odd: bool) -> Given:
    """Each user has a test picture; hers is no picture, nor are her others."""
    for user in USERS:
        for place in range(5):
            file = folder / f"u{user}" / str(place % 2) / f"{place}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"junk" if is_odd and user == 0 else small_files.png((8, 8))["bytes"])
    return {"name": "by_user_images", "path": str(folder), "classes": 2}


FEATURES = {"features": ["a", "b"]}
CASES = {
    "true among numbers": csv("true", **FEATURES),
    "true among numbers, features not named": csv("true"),
    "no number, features not named": csv("oops"),
    "most rows true": split(csv("true", hers=40, **FEATURES)),
    "labels that are names": csv("x", "label", **FEATURES),
    "a label below 0": csv("-7", "label", **FEATURES),
    "a name of her own, names listed": csv("x", "label", label=named, labels=["no", "yes"], **FEATURES),
    "lists": lists,
    "pictures of a table": pictures_of_a_table,
    "pictures that are none": broken_pictures,
}
SHAPES = {lists: (3,), pictures_of_a_table: (8, 8), broken_pictures: (8, 8)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_users_rows_change_nothing_for_the_others_and_the_node_is_ready(
    tmp_path: Path, case: Any
) -> None:
    odd, plain = tmp_path / "odd", tmp_path / "plain"
    odd.mkdir()
    plain.mkdir()
    given, usual = case(odd, is_odd=True), case(plain, is_odd=False)
    public = replace(PUBLIC, shape=SHAPES.get(case, PUBLIC.shape))
    assert readiness(node_with(given, len(USERS), public)) == ""
    one, other = load(**given, public=public), load(**usual, public=public)
    assert (one.input_shape, one.classes) == (other.input_shape, other.classes)
    hers = 0 if case is broken_pictures else HERS
    for user in set(USERS) - {hers}:
        np.testing.assert_array_equal(one.clients[user].x, other.clients[user].x)
        np.testing.assert_array_equal(one.clients[user].y, other.clients[user].y)
        assert np.isfinite(one.clients[user].x).all()


def test_names_of_labels_without_a_list_need_no_test_row_where_their_number_is_said(tmp_path: Path) -> None:
    given = csv(label=named, hers=4, **FEATURES)(tmp_path, is_odd=False)
    public = replace(PUBLIC, labels=("no", "yes"))
    assert readiness(node_with(given, len(USERS), public)) == ""
    assert load(**given, public=public).clients[0].y.tolist() == [0, 1, 0, 1]


def test_more_names_than_classes_make_no_node_unready(tmp_path: Path) -> None:
    """Of one user's name among ten test rows of other names nothing is seen."""
    held = [
        f"u{user},{place},{'a' if user == 1 and place < 5 else named(user, place)}"
        for user in range(5)
        for place in range(10)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["user,b,label", *held]) + "\n")
    given = {"name": "by_user_csv", "path": str(tmp_path / "data.csv"), "classes": 2, "features": ["b"]}
    public = Public((1,), classes=2, labels=("no", "yes"))
    assert readiness(node_with(given, 5, public)) == ""
    with pytest.raises(DataError, match="client 1"):
        load(**given, public=public).clients[1]
    assert set(load(**given, public=public).clients[0].y.tolist()) == {0, 1}


def test_a_strange_label_of_a_test_row_is_refused_where_the_test_set_is_read(tmp_path: Path) -> None:
    """And said by its row: most test rows hold whole numbers, so that it is none."""
    held = [
        f"u{user},{place},{'SMITH' if user == 1 else place % 2}" for user in range(5) for place in range(5)
    ]
    (tmp_path / "data.csv").write_text("\n".join(["user,b,label", *held]) + "\n")
    given: Given = {"name": "by_user_csv", "path": str(tmp_path / "data.csv"), "features": ["b"]}
    with pytest.raises(
        DataError, match=r"'label' of .* no whole number in row ([6-9]|10), a test row"
    ) as raised:
        load(**given)
    assert "SMITH" not in str(raised.value)
    assert load(**given, public=Public((1,), classes=2)).classes == 2


@pytest.mark.parametrize("label", ["-1", str(10**9)])
@pytest.mark.parametrize("form", ["csv", "npz"])
def test_a_label_of_no_class_makes_no_node_unready_where_classes_are_not_said(
    tmp_path: Path, form: str, label: str
) -> None:
    y = [int(label) if user == 1 else place % 2 for user in range(5) for place in range(5)]
    user, x = np.repeat(np.arange(5), 5), np.ones((25, 2), np.float32)
    path = tmp_path / f"data.{form}"
    if form == "npz":
        np.savez(path, x=x, y=np.array(y), user=user)
    else:
        held = [f"{who},1,{value}" for who, value in zip(user, y, strict=True)]
        path.write_text("\n".join(["user,b,label", *held]) + "\n")
    given = {"name": f"by_user_{form}", "path": str(path)}
    assert readiness(node_with(given, 5, Public((2,) if form == "npz" else (1,), classes=2))) == ""
    with pytest.raises(DataError, match=f"the label {label}"):
        load(**given)


@pytest.mark.parametrize(
    ("form", "cell", "says"),
    [
        ("csv", "{:g}", ""),
        ("csv", "{}", "in the test rows"),
        ("npz", "", "in the test rows"),
    ],
)
def test_targets_of_training_rows_decide_no_task_and_are_in_no_note(
    tmp_path: Path, form: str, cell: str, says: str
) -> None:
    """They are amounts, in most rows; the targets of the test rows are 0 and 1, which may be classes."""
    split = np.arange(20) % 5 == 0
    y, user = np.where(split, np.arange(20) % 2, 1000.5), np.arange(20) // 10
    path = tmp_path / f"data.{form}"
    if form == "npz":
        np.savez(path, x=np.ones((20, 1)), y=y, user=user, split=split)
    else:
        held = [
            f"{who},1,{cell.format(value)},{part:d}" for who, value, part in zip(user, y, split, strict=True)
        ]
        path.write_text("\n".join(["user,b,label,split", *held]) + "\n")
    with pytest.raises(DataError, match=says) if says else nullcontext():
        assert load(f"by_user_{form}", path=str(path)).task == "classification"
    notes = load(f"by_user_{form}", path=str(path), task="regression").notes
    assert "the task is regression: 1 number a target, from 0 to 1" in notes
