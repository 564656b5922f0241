"""TFF's own files as they lie: the reader of examples, sqlite files and their metadata, ~/.tff."""

import lzma
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from client.data import load
from client.data.tf_example import read_example
from fedmf.errors import DataError
from published import handwriting, named, serialise, write_hdf5, write_sqlite


def test_the_reader_agrees_with_the_protobuf_package() -> None:
    values = {
        "bytes": b"\x00two words\xff",
        "floats": np.array([1.5, -2.0, 1e30], dtype=np.float32),
        "integers": np.array([0, 1, -1, 2**62, -(2**63)]),
        "none": b"",
    }
    got = read_example(serialise(**values))
    assert got["bytes"] == [values["bytes"]]
    assert got["none"] == [b""]
    np.testing.assert_array_equal(got["floats"], values["floats"])
    np.testing.assert_array_equal(got["integers"], values["integers"])


def test_the_reader_takes_unpacked_numbers_as_old_writers_wrote_them() -> None:
    # Feature.int64_list { value: 5 value: 3 }, each number with its own tag instead of one packed run
    entry = b"\x0a\x01x\x12\x06\x1a\x04\x08\x05\x08\x03"
    message = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    assert read_example(message)["x"].tolist() == [5, 3]  # type: ignore[union-attr]


@pytest.mark.parametrize("cut", [1, 3, 9, 20])
def test_the_reader_refuses_a_message_that_ends_early(cut: int) -> None:
    with pytest.raises(DataError, match=r"tf\.train\.Example"):
        read_example(serialise(tokens=b"some words", label=7)[:-cut])


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


@pytest.mark.parametrize("form", ["sqlite", "sqlite.lzma"])
def test_the_folder_of_tff_is_read_as_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Names: emnist_all.sqlite, shakespeare.sqlite and stackoverflow.sqlite side by side, and others of TFF's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / ".tff"
    folder.mkdir()
    plays = {
        split: {"HAMLET": {"snippets": [b"To be"]}, "LEAR": {"snippets": [b"Howl"]}}
        for split in ("train", "test")
    }
    posts = {split: {str(user): {"tokens": [b"how to"]} for user in range(3)} for split in ("train", "test")}
    for name, data in (
        ("emnist_all", named(handwriting(), "all_train", "all_test")),
        ("shakespeare", plays),
        ("stackoverflow", posts),
        ("cifar100", posts),
    ):
        file = Path(write_sqlite(folder / f"{name}.sqlite", data))
        if form.endswith("lzma"):
            (folder / f"{name}.{form}").write_bytes(
                lzma.compress(file.read_bytes(), format=lzma.FORMAT_ALONE)
            )
            file.unlink()
    (tmp_path / "words").write_text("how\nto\n")
    assert [len(client) for client in load("femnist", path="~/.tff").clients] == [3, 5, 1]
    assert len(load("shakespeare", path=str(folder)).clients) == 2
    assert len(load("stackoverflow", path="~/.tff", vocabulary="~/words").clients) == 3
    for name in ("femnist", "shakespeare", "stackoverflow"):
        with pytest.raises(
            DataError, match=rf"TFF's \S+\.{form} lies in ~/\.tff: set path to ~/\.tff to use it"
        ):
            load(name)
    (folder / "fed_emnist_train.h5").write_text("")
    with pytest.raises(
        DataError, match=r"emnist_all\.\S+ and fed_emnist_train\.h5, of which either may be meant"
    ):
        load("femnist", path="~/.tff")


@pytest.mark.parametrize("form", ["sqlite", "hdf5"])
def test_a_file_that_was_replaced_is_read_anew_and_one_in_use_stays_as_it_was(
    tmp_path: Path, form: str
) -> None:
    def write(folder: Path, label: int) -> Path:
        folder.mkdir()
        users = {"a": {"pixels": np.full((2, 28, 28), 0.5, np.float32), "label": np.full(2, label, np.int32)}}
        names = ("fed_emnist_train", "fed_emnist_test") if form == "hdf5" else ("all_train", "all_test")
        data = named({"train": users, "test": users}, *names)
        return Path(write_hdf5(folder, data) if form == "hdf5" else write_sqlite(folder / "f.sqlite", data))

    path, other = write(tmp_path / "one", 1), write(tmp_path / "two", 2)
    before = load("femnist", path=str(path))
    assert before.clients[0].y.tolist() == [1, 1]
    for file in other.iterdir() if form == "hdf5" else [other]:
        file.replace((path if form == "hdf5" else path.parent) / file.name)
    after = load("femnist", path=str(path))
    assert (after.clients[0].y.tolist(), after.test.y.tolist()) == ([2, 2], [2, 2])
    assert before.clients[0].y.tolist() == [1, 1]


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
