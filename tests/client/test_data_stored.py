"""Benchmark data sets in the formats of TFF, LEAF and the hub; published.py says where these are published."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from client.data import IGNORED_TARGET, load
from client.data.text import BOS, EOS, LEAF_CHARACTERS, OOV, PAD, SPECIAL
from fedmf.errors import DataError, SettingError
from published import RNG, handwriting, named, write_hdf5, write_leaf, write_sqlite


@pytest.mark.parametrize("form", ["hdf5", "sqlite", "leaf"])
def test_femnist_is_the_same_in_every_format_with_ink_as_one(tmp_path: Path, form: str) -> None:
    data = handwriting()
    if form == "hdf5":
        path = write_hdf5(tmp_path, named(data, "fed_emnist_train", "fed_emnist_test"))
    elif form == "sqlite":
        path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    else:
        leaf = {
            split: {
                user: (columns["pixels"].reshape(-1, 784).tolist(), columns["label"].tolist())
                for user, columns in users.items()
            }
            for split, users in data.items()
        }
        path = write_leaf(tmp_path / "femnist", leaf)
    dataset = load("femnist", path=path)
    assert (len(dataset.clients), len(dataset.test), dataset.input_shape, dataset.classes) == (
        3,
        9,
        (28, 28),
        62,
    )
    for client, columns in zip(dataset.clients, data["train"].values(), strict=True):
        assert client.x.dtype == np.float32
        np.testing.assert_allclose(client.x, 1 - columns["pixels"], atol=1e-6)
        assert client.y.tolist() == columns["label"].tolist()
    tested = {tuple(image.ravel().round(3)) for image in dataset.test.x}
    expected = {
        tuple(np.round(1 - image.ravel(), 3)) for user in data["test"].values() for image in user["pixels"]
    }
    assert tested == expected


def test_users_are_cut_and_survive_pickling(tmp_path: Path) -> None:
    data = handwriting()
    path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    whole = load("femnist", path=path)
    dataset = load("femnist", path=path, examples_per_client=2)
    assert [len(client) for client in dataset.clients] == [2, 1, 2, 2, 1, 1]
    joined = np.concatenate([dataset.clients[number].x for number in (2, 3, 4)])
    np.testing.assert_array_equal(joined, whole.clients[1].x)
    copy = pickle.loads(pickle.dumps(dataset.clients))
    np.testing.assert_array_equal(copy[3].x, dataset.clients[3].x)
    assert "not the writer" in dataset.unit


def test_shakespeare_snippets_become_windows_of_eighty_characters(tmp_path: Path) -> None:
    data = {
        "train": {"HAMLET": {"snippets": [b"To be", b"x" * 100]}, "LEAR": {"snippets": [b"Howl\xc3\xa9"]}},
        "test": {"HAMLET": {"snippets": [b"or not"]}, "LEAR": {"snippets": [b"howl"]}},
    }
    dataset = load(
        "shakespeare", path=write_hdf5(tmp_path, named(data, "shakespeare_train", "shakespeare_test"))
    )
    hamlet, lear = dataset.clients
    assert hamlet.x.shape == (3, 80)
    numbers = [LEAF_CHARACTERS.index(character) + SPECIAL for character in "To be"]
    assert hamlet.x[0, :7].tolist() == [BOS, *numbers, PAD]
    assert hamlet.y[0, :7].tolist() == [*numbers, EOS, IGNORED_TARGET]
    assert (hamlet.y[1:] != IGNORED_TARGET).sum() == 101
    assert lear.y[0, 4] == OOV
    assert (len(dataset.test), dataset.classes) == (2, 90)


def leaf_pairs(count: int) -> tuple[list[str], list[str]]:
    """Return contexts of eighty characters and the next one."""
    text = "".join(RNG.choice(list("abc def"), 80 + count))
    return [text[i : i + 80] for i in range(count)], [text[i + 80] for i in range(count)]


@pytest.mark.parametrize("form", ["leaf", "csv"])
def test_shakespeare_pairs_ask_for_the_next_character_only(tmp_path: Path, form: str) -> None:
    x, y = leaf_pairs(10)
    if form == "leaf":
        path = write_leaf(
            tmp_path, {"train": {"A": (x[:4], y[:4]), "B": (x[4:8], y[4:8])}, "test": {"A": (x[8:], y[8:])}}
        )
    else:
        path = str(tmp_path)
        lines = [
            f'{"AB"[number // 5]},"{context}","{following}"'
            for number, (context, following) in enumerate(zip(x, y, strict=True))
        ]
        (tmp_path / "shakespeare.csv").write_text("\n".join(["character_id,x,y", *lines]) + "\n")
    dataset = load("shakespeare", path=path)
    assert ([len(client) for client in dataset.clients], len(dataset.test)) == ([4, 4], 2)
    client = dataset.clients[0]
    assert (client.y[:, :-1] == IGNORED_TARGET).all()
    spoken = ["".join(LEAF_CHARACTERS[token - SPECIAL] for token in row) for row in client.x]
    following = [LEAF_CHARACTERS[token - SPECIAL] for token in client.y[:, -1]]
    pairs = set(zip(x, y, strict=True))
    assert set(zip(spoken, following, strict=True)) <= pairs


@pytest.mark.parametrize("form", ["hdf5", "sqlite"])
def test_stack_overflow_rows_are_sentences_cut_after_twenty_words(tmp_path: Path, form: str) -> None:
    data = {
        "train": {"10": {"tokens": [b"how to do", b"a " * 30]}, "7": {"tokens": [b"how"]}},
        "test": {str(user): {"tokens": [b"to do", b"how"]} for user in range(20)},
    }
    path = (
        write_hdf5(tmp_path, named(data, "stackoverflow_train", "stackoverflow_test"))
        if form == "hdf5"
        else write_sqlite(tmp_path / "stackoverflow.sqlite", data)
    )
    (tmp_path / "words.txt").write_text("a\nto\nhow\n")
    settings = {"path": path, "vocabulary": str(tmp_path / "words.txt")}
    dataset = load("stackoverflow", **settings)
    first = dataset.clients[0]
    assert first.x.shape == (2, 20)
    assert first.x[0, :5].tolist() == [BOS, 6, 5, OOV, PAD]
    assert first.y[0, :5].tolist() == [6, 5, OOV, EOS, IGNORED_TARGET]
    assert first.y[1].tolist() == [4] * 20
    assert (len(dataset.clients), len(dataset.test)) == (2, 20)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        (
            "femnist",
            {},
            "fed_emnist_train.h5.* `python -m experiments.data import flwrlabs/femnist FOLDER` wrote",
        ),
        ("shakespeare", {}, "shakespeare_train.h5"),
        ("stackoverflow", {}, "stackoverflow.sqlite"),
        ("stackoverflow", {"path": "."}, "public vocabulary"),
        ("femnist", {"path": "{tmp}"}, "lacks fed_emnist_train.h5; it holds no HDF5 file"),
        ("femnist", {"path": "{tmp}/no.sqlite"}, "does not exist"),
    ],
)
def test_without_files_a_sentence_says_what_to_put_where(
    tmp_path: Path, name: str, settings: dict[str, str], sentence: str
) -> None:
    settings = {key: value.format(tmp=tmp_path) for key, value in settings.items()}
    with pytest.raises(DataError, match=sentence):
        load(name, **settings)  # type: ignore[arg-type]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_hdf5(tmp_path, named(handwriting(), "fed_emnist_train", "fed_emnist_test"))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SettingError, match=r"needs the package h5py.*fedmf\[data\]"):
        load("femnist", path=str(tmp_path))
