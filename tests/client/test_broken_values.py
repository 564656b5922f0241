"""One user's values that are wrong fail that client alone, and only when it is read."""

import json
from pathlib import Path

import numpy as np
import pytest

import small_files
from client.data import load
from damage import (
    BOB,
    COUNT,
    CSV,
    INTEGER_PIXELS,
    LINES,
    NO_TEXTS,
    altered,
    arrays,
    bobs_line,
    changed_hdf5,
    leaf,
    parquet,
    replaced,
    text,
)
from fedmf.errors import DataError

# One user's values: (form, what breaks them, what reading the client says).
VALUES = [
    ("npz", arrays(x=np.where(np.arange(COUNT)[:, None] == 7, np.nan, 0.5) * np.ones(4)), "not finite"),
    ("npz", arrays(x=np.where(np.arange(COUNT)[:, None] == 7, 1e300, 0.5) * np.ones(4)), "not finite"),
    ("npz", arrays(y=np.where(np.arange(COUNT) == 7, 3, np.arange(COUNT) % 6 % 3)), "label 3; .* 0 to 2"),
    ("npz", arrays(y=np.where(np.arange(COUNT) == 7, -1, np.arange(COUNT) % 6 % 3)), "label -1"),
    ("npy", arrays(y=np.where(np.arange(COUNT) == 7, 2**62, np.arange(COUNT) % 6 % 3)), "label"),
    *(("jsonl", bobs_line(value), r"token -1 \(-1 stands for what could not be read") for value in NO_TEXTS),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "label", np.full(6, 62))), "label 62; .* 0 to 61"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "label", np.full(5, 1))), "could not be read"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "pixels", np.full((6, 28, 28), 255.0))), "could not be read"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = x'0a' WHERE client_id = 'bob' "
     "AND split_name LIKE '%train'"), "could not be read"),
    ("femnist_sqlite", altered("DELETE FROM examples WHERE client_id = 'bob'"), "could not be read"),
    ("femnist_sqlite", altered(f"UPDATE examples SET serialized_example_proto = x'{INTEGER_PIXELS}' WHERE client_id = "
     "'bob' AND split_name LIKE '%train'"), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(2, 62)), "label 62"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(2, 10**30)), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].pop()), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].pop()), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].__setitem__(0, float("nan"))), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].__setitem__(0, 10**400)), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"].pop("y")), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"].update(x="text")), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][0].__setitem__(3, None)), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"].__setitem__(0, "text")), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, 2.5)), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, None)), "could not be read"),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["x"].__setitem__(0, 3), "shakespeare"), "could not be read"),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, None), "shakespeare"), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, True)), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, 1.0)), "could not be read"),
    ("femnist_parquet", parquet(character=[None if row == 6 else 3 for row in range(COUNT)]), "could not be read"),
    ("femnist_parquet", parquet(image=[None if row == 6 else small_files.png() for row in range(COUNT)]), "could not be read"),
    ("femnist_parquet", parquet(image=[{"bytes": None if row == 6 else small_files.png()["bytes"]} for row in range(COUNT)]),
     "could not be read"),
    ("femnist_parquet", parquet(character=[99 if row == 6 else 3 for row in range(COUNT)]), "label 99"),
    ("femnist_parquet", parquet(image=[small_files.png((9, 9)) if row == 6 else small_files.png() for row in range(COUNT)]),
     "could not be read"),
    ("femnist_parquet", parquet(image=[small_files.png(mode="P") if row == 6 else small_files.png() for row in range(COUNT)]),
     "could not be read"),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("bob", "snippets", [b"fine", b"\xff"])), "could not be read"),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["x"].__setitem__(0, "short"), "shakespeare"), "could not be read"),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["x"].pop(), "shakespeare"), "could not be read"),
    ("shakespeare_csv", text(CSV.replace(BOB, BOB.replace("to be", "be")), "shakespeare.csv"), "could not be read"),
    ("stackoverflow_hdf5", changed_hdf5("train", replaced("bob", "tokens", [b"\xff"])), "could not be read"),
    ("stackoverflow_sqlite", altered("UPDATE examples SET serialized_example_proto = x'' WHERE client_id = 'bob' "
     "AND split_name = 'train'"), "could not be read"),
]  # fmt: skip  # fmt: skip


@pytest.mark.parametrize(("form", "damage", "sentence"), VALUES, ids=[f"{row[0]}-{row[2]}" for row in VALUES])
def test_one_users_values_fail_that_client_alone_and_only_when_it_is_read(
    tmp_path: Path, form, damage, sentence
) -> None:
    given = small_files.settings(form, tmp_path)
    damage(Path(given["path"]))
    dataset = load(**given)
    assert len(dataset.clients) == 3
    for other in (0, 2):
        assert len(dataset.clients[other]) > 0
    with pytest.raises(DataError, match=sentence) as raised:
        dataset.clients[1]
    assert "client 1" in str(raised.value) or str(tmp_path) in str(raised.value)
    with pytest.raises(DataError, match=sentence):
        dataset.clients[0:2]


def test_what_could_not_be_read_is_said_on_this_machines_stderr(tmp_path: Path, caplog) -> None:
    given = small_files.settings("femnist_leaf", tmp_path)
    leaf(lambda data: data["bob"]["x"][2].pop())(Path(given["path"]))
    load(**given)
    assert "1 noted" in caplog.text
    assert "'bob'" in caplog.text


@pytest.mark.parametrize("form", ["jsonl", "shakespeare_csv"])
def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    before = load(**given)
    file = next(file for file in sorted(tmp_path.rglob("*")) if file.suffix in (".jsonl", ".csv"))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    after = load(**given)
    np.testing.assert_array_equal(after.test.x, before.test.x)
    for one, other in zip(after.clients, before.clients, strict=True):
        np.testing.assert_array_equal(one.x, other.x)


def test_values_of_training_users_are_not_looked_at_when_a_file_is_loaded(tmp_path: Path) -> None:
    """All of them bad, none of the test examples: whether a run happens must not depend on values."""
    held = small_files.arrays()
    training = held["split"] == 0
    x, y = held["x"].copy(), held["y"].copy()
    x[training], y[training] = np.nan, 77
    path = small_files.npz(tmp_path / "data.npz", x=x, y=y)
    dataset = load("by_user_npz", path=str(path))
    assert (len(dataset.clients), dataset.classes) == (3, 3)


def test_a_test_line_without_a_text_and_a_line_without_a_user_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    for record, sentence in (
        ({"user": "ann", "split": 1}, r"Row 19 of .*texts\.jsonl is a test row and holds no text"),
        ({"text": "to", "split": 0}, r"Line 20 of .*texts\.jsonl must be an object with user and text"),
    ):
        path.write_text(LINES + "\n" + json.dumps(record) + "\n")
        with pytest.raises(DataError, match=sentence):
            load("by_user_text", path=str(path))


def test_a_line_whose_text_is_no_text_changes_nothing_for_its_neighbours_and_is_said_on_stderr(
    tmp_path: Path, caplog
) -> None:
    """With a public vocabulary, so that nothing is learnt from the lines."""
    given = small_files.settings("jsonl", tmp_path)
    whole = load(**given)
    for number, values in enumerate(NO_TEXTS, start=1):
        small_files.jsonl(Path(given["path"]))
        bobs_line(values)(Path(given["path"]))
        odd = load(**given)
        assert (odd.classes, odd.uncovered, odd.notes) == (whole.classes, whole.uncovered, whole.notes)
        for one, other in (
            (odd.clients[0], whole.clients[0]),
            (odd.clients[2], whole.clients[2]),
            (odd.test, whole.test),
        ):
            np.testing.assert_array_equal(one.x, other.x)
            np.testing.assert_array_equal(one.y, other.y)
        assert caplog.text.count(f"text or tokens on line 7 of {given['path']} must be a string") == number


def test_labels_of_another_byte_order_are_dealt_out_too(tmp_path: Path) -> None:
    held = small_files.arrays()
    path = small_files.npz(tmp_path / "data.npz", y=held["y"].astype(">i8"))
    dataset = load("partitioned", path=str(path), clients=4, partitioner="dirichlet")
    assert sum(len(client) for client in dataset.clients) == 15
