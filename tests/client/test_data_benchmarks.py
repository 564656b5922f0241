"""The benchmarks' files as TFF, LEAF and the hub publish them (written_data.py says where), and the folders that are imported.

TFF's file names are those of its download module and its loaders (tensorflow_federated/python/simulation/datasets/
download.py, emnist.py, shakespeare.py, stackoverflow.py). What `fedmf data import` writes is what the files say, to the bit.
"""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import small_files
from client.data import IGNORED_TARGET, dataset as shared, load, sources
from client.data.conversion import as_bytes
from client.data.dataset import as_float32
from client.data.own import fifth_of_each
from client.data.sources import parsed
from client.data.text import LEAF_CHARACTERS, OOV, SPECIAL
from client.scoring import score
from fedmf.errors import DataError, SettingError
from written_data import handwriting, serialise, write_sqlite

# What the files hold.


def test_every_pixel_of_eight_bits_is_kept_as_a_byte_and_no_other_number():
    x = np.array(json.loads(json.dumps([k / 255 for k in range(256)]))).astype(np.float32)
    held = as_bytes(x)
    assert held.dtype == np.uint8
    assert as_float32(held).tobytes() == x.tobytes()
    for near in (np.nextafter(x[77], np.float32(2)), np.float32(-0.0), np.float32(np.nan), np.float32(1.001)):
        assert as_bytes(np.append(x, near)).dtype == np.float32


def test_the_hubs_pictures_are_bit_for_bit_those_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_AT_ONCE", 4)
    pictures = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    column = [{"bytes": small_files.encoded(picture), "path": None} for picture in pictures]
    column[6] = {"bytes": b"no picture", "path": None}
    users = ["b"] * 10 + ["a"] * 10
    path = small_files.parquet(tmp_path / "hub", image=column, writer_id=users, character=list(range(20)))
    dataset = load("femnist", path=str(path))
    test = fifth_of_each(np.repeat(["b", "a"], 10), seed=0)
    np.testing.assert_array_equal(dataset.test.x, as_float32(255 - pictures[test]))
    assert dataset.clients[0].x.tobytes() == as_float32(255 - pictures[10:][~test[10:]]).tobytes()
    with pytest.raises(DataError, match="could not be read"):
        dataset.clients[1]


@pytest.mark.parametrize("form", ["leaf", "csv"])
def test_shakespeare_pairs_ask_for_the_next_character_only(tmp_path, monkeypatch, form):
    monkeypatch.setattr(sources, "_AT_ONCE", 4)
    dataset = load(**small_files.settings(f"shakespeare_{form}", tmp_path))
    numbers = {character: number for number, character in enumerate(LEAF_CHARACTERS, start=SPECIAL)}
    context = [numbers.get(character, OOV) for character in small_files.LINE]
    ends = [numbers[character] for character in "abcdef"]
    tested = [] if form == "leaf" else dataset.test.y[:, -1].tolist()
    for place, client in enumerate(dataset.clients):
        left = [end for end in ends if form == "leaf" or end != tested[place]]
        assert (client.x.dtype, client.y.dtype) == (np.int64, np.int64)
        assert client.x.tolist() == [context] * len(left)
        assert client.y[:, -1].tolist() == left
        assert (client.y[:, :-1] == IGNORED_TARGET).all()


# TFF's own files.


def test_the_reader_of_examples_agrees_with_tensorflows_message():
    values = {
        "bytes": b"\x00two words\xff",
        "floats": np.array([1.5, -2.0, 1e30], dtype=np.float32),
        "integers": np.array([0, 1, -1, 2**62, -(2**63)]),
        "none": b"",
    }
    got = parsed("ann", Path("file"), serialise(**values), list(values)).columns
    assert (got["bytes"], got["none"]) == (values["bytes"], b"")
    np.testing.assert_array_equal(np.float32(got["floats"]), values["floats"])
    np.testing.assert_array_equal(got["integers"], values["integers"])
    for message in (serialise(tokens=b"some words")[:-3], b"\xff", "text", None):
        assert "is no tf.train.Example" in parsed("ann", Path("file"), message, ["tokens"]).wrong


def test_a_client_of_sqlite_has_all_its_examples_whatever_the_metadata_count(tmp_path):
    """TFF asks client_metadata for distinct names (sql_client_data.py)."""
    data = handwriting()
    path = write_sqlite(
        tmp_path / "emnist_all.sqlite", {"all_train": data["train"], "all_test": data["test"]}
    )
    with closing(sqlite3.connect(path)) as file:
        again = "SELECT client_id, split_name, 1 FROM client_metadata WHERE client_id = 'f0001_41'"
        file.executescript(
            f"INSERT INTO client_metadata {again}; UPDATE client_metadata SET num_examples = 1"
        )
    dataset = load("femnist", path=path)
    assert [client.y.tolist() for client in dataset.clients] == [
        data["train"][user]["label"].tolist() for user in sorted(data["train"])
    ]


def test_the_folder_of_tff_is_read_as_it_is(tmp_path, monkeypatch):
    """Names: emnist_all.sqlite, shakespeare.sqlite and stackoverflow.sqlite side by side, and others of TFF's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".tff"
    folder.mkdir()
    plays = {"HAMLET": {"snippets": [b"To be"]}, "LEAR": {"snippets": [b"Howl"]}}
    posts = {str(user): {"tokens": [b"how to"]} for user in range(3)}
    write_sqlite(
        folder / "emnist_all.sqlite", {f"all_{split}": users for split, users in handwriting().items()}
    )
    for name, users in (("shakespeare", plays), ("stackoverflow", posts), ("cifar100", posts)):
        write_sqlite(folder / f"{name}.sqlite", dict.fromkeys(("train", "test"), users))
    (tmp_path / "words").write_text("how\nto\n")
    assert [len(client) for client in load("femnist", path="~/.tff").clients] == [3, 5, 1]
    assert len(load("shakespeare", path=str(folder)).clients) == 2
    assert len(load("stackoverflow", path="~/.tff", vocabulary="~/words").clients) == 3
    (folder / "fed_emnist_train.h5").write_text("")
    with pytest.raises(DataError, match=r"HDF5 files and emnist_all\.sqlite, of which either may be meant"):
        load("femnist", path="~/.tff")


# Files that are missing, too big, packed, or something else.


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        (
            "femnist",
            {},
            "fed_emnist_train.h5.* `fedmf data import flwrlabs/femnist FOLDER` wrote",
        ),
        ("shakespeare", {}, "shakespeare_train.h5"),
        ("stackoverflow", {}, "stackoverflow.sqlite"),
        ("stackoverflow", {"path": "."}, "public vocabulary"),
        ("femnist", {"path": "{tmp}"}, "lacks fed_emnist_train.h5; it holds no HDF5 file"),
        ("femnist", {"path": "{tmp}/no.sqlite"}, "does not exist"),
    ],
)
def test_without_files_a_sentence_says_what_to_put_where(tmp_path, name, settings, sentence):
    settings = {key: value.format(tmp=tmp_path) for key, value in settings.items()}
    with pytest.raises(DataError, match=sentence):
        load(name, **settings)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    small_files.hdf5(tmp_path, "femnist")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SettingError, match=r"needs the package h5py.*fedmf\[data\]"):
        load("femnist", path=str(tmp_path))


@pytest.mark.parametrize(
    "form", ["npz", "npy", "femnist_leaf", "femnist_parquet", "shakespeare_csv", "dealt"]
)
def test_a_test_set_too_big_to_hold_is_the_same_batch_by_batch_and_scored_alike(tmp_path, monkeypatch, form):
    import torch

    given, model = small_files.settings(form, tmp_path), torch.nn.Linear(4, 3)
    held = load(**given).test
    monkeypatch.setattr(shared, "HELD", 0)
    assert len(load(**given, max_test_examples=2).test) == 2
    test = load(**given).test
    assert isinstance(test.x, shared.Converted)
    assert (test.x.dtype, test.x.shape, test.y.dtype) == (held.x.dtype, held.x.shape, held.y.dtype)
    assert test.x[:].tobytes() == held.x.tobytes()
    assert np.asarray(test.y).tobytes() == held.y.tobytes()
    np.testing.assert_array_equal(test.x[1:3], held.x[1:3])
    np.testing.assert_array_equal(test.x[np.array([2, 0])], held.x[np.array([2, 0])])
    if form == "npz":
        assert score(model, test, batch_size=2) == score(model, held, batch_size=2)
