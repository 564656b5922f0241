"""TFF's own files as they lie: the reader of examples, sqlite files and their metadata, ~/.tff."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from client.data import load
from client.data.sources import examples
from fedmf.errors import DataError
from published import handwriting, named, serialise, write_sqlite


def test_the_reader_agrees_with_tensorflows_message() -> None:
    values = {
        "bytes": b"\x00two words\xff",
        "floats": np.array([1.5, -2.0, 1e30], dtype=np.float32),
        "integers": np.array([0, 1, -1, 2**62, -(2**63)]),
        "none": b"",
    }
    got = {name: column[0] for name, column in examples([serialise(**values)], list(values)).items()}
    assert (got["bytes"], got["none"]) == (values["bytes"], b"")
    np.testing.assert_array_equal(np.float32(got["floats"]), values["floats"])
    np.testing.assert_array_equal(got["integers"], values["integers"])


@pytest.mark.parametrize("message", [serialise(tokens=b"some words")[:-3], b"\xff", "text", None])
def test_what_is_no_message_is_a_data_error(message: object) -> None:
    with pytest.raises(DataError, match=r"is no tf\.train\.Example"):
        examples([message], ["tokens"])


def test_a_name_twice_in_the_metadata_is_one_client_with_all_its_examples(tmp_path: Path) -> None:
    """TFF asks client_metadata for distinct names (sql_client_data.py), whatever its counts are."""
    data = handwriting()
    path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    with sqlite3.connect(path) as file:
        again = "SELECT client_id, split_name, 1 FROM client_metadata WHERE client_id = 'f0001_41'"
        file.execute(f"INSERT INTO client_metadata {again}")
        file.execute("UPDATE client_metadata SET num_examples = 4 WHERE num_examples = 5")
    file.close()
    dataset = load("femnist", path=path)
    assert [len(client) for client in dataset.clients] == [3, 5, 1]
    assert dataset.clients[1].y.tolist() == data["train"]["f0001_41"]["label"].tolist()


def test_the_folder_of_tff_is_read_as_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names: emnist_all.sqlite, shakespeare.sqlite and stackoverflow.sqlite side by side, and others of TFF's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".tff"
    folder.mkdir()
    plays = {
        split: {"HAMLET": {"snippets": [b"To be"]}, "LEAR": {"snippets": [b"Howl"]}}
        for split in ("train", "test")
    }
    posts = {split: {str(user): {"tokens": [b"how to"]} for user in range(3)} for split in ("train", "test")}
    write_sqlite(folder / "emnist_all.sqlite", named(handwriting(), "all_train", "all_test"))
    for name, data in (("shakespeare", plays), ("stackoverflow", posts), ("cifar100", posts)):
        write_sqlite(folder / f"{name}.sqlite", data)
    (tmp_path / "words").write_text("how\nto\n")
    assert [len(client) for client in load("femnist", path="~/.tff").clients] == [3, 5, 1]
    assert len(load("shakespeare", path=str(folder)).clients) == 2
    assert len(load("stackoverflow", path="~/.tff", vocabulary="~/words").clients) == 3
    (folder / "fed_emnist_train.h5").write_text("")
    with pytest.raises(DataError, match=r"HDF5 files and emnist_all\.sqlite, of which either may be meant"):
        load("femnist", path="~/.tff")


def test_examples_that_the_metadata_does_not_count_are_used_as_tff_uses_them(tmp_path: Path) -> None:
    data = handwriting()
    path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    with sqlite3.connect(path) as file:
        file.execute("UPDATE client_metadata SET num_examples = 1")
    file.close()
    dataset = load("femnist", path=path)
    assert [client.y.tolist() for client in dataset.clients] == [
        data["train"][user]["label"].tolist() for user in sorted(data["train"])
    ]


@pytest.mark.parametrize("split", ["all_train", "all_test"])
def test_a_split_without_examples_is_a_sentence_that_names_the_file(tmp_path: Path, split: str) -> None:
    path = write_sqlite(tmp_path / "emnist_all.sqlite", named(handwriting(), "all_train", "all_test"))
    with sqlite3.connect(path) as file:
        file.execute(f"UPDATE client_metadata SET num_examples = 0 WHERE split_name = '{split}'")
        file.execute(f"DELETE FROM examples WHERE split_name = '{split}'")
    file.close()
    with pytest.raises(
        DataError, match=rf"emnist_all\.sqlite holds no example in the split '{split}'; fetch"
    ):
        load("femnist", path=path)


def test_one_sentence_cannot_be_parted_into_validation_and_test(tmp_path: Path) -> None:
    users = {"a": {"tokens": np.array([b"how to"])}}
    path = write_sqlite(tmp_path / "stackoverflow.sqlite", {"train": users, "test": users})
    words = tmp_path / "words.txt"
    words.write_text("how\nto\n")
    with pytest.raises(DataError, match=r"stackoverflow\.sqlite holds 1 sentence .* set test=test"):
        load("stackoverflow", path=path, vocabulary=str(words), test="validation")
    assert len(load("stackoverflow", path=path, vocabulary=str(words), test="test").test) == 1
