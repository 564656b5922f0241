"""TFF's, LEAF's and the hub's files as they are published (written_data.py says where), and what users they share.

Names of splits, words and sentences below are those of tensorflow/federated:
tensorflow_federated/python/simulation/datasets/emnist.py, shakespeare.py and stackoverflow.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import small_files
from client.data import IGNORED_TARGET, Dataset, load
from client.data.text import BOS, EOS, LEAF_CHARACTERS, OOV, PAD, SPECIAL, windows
from fedmf.errors import DataError, SettingError
from written_data import write_hdf5, write_leaf, write_sqlite

RNG = np.random.default_rng(8)
Columns = dict[str, Any]


def writer(count: int, classes: int) -> Columns:
    """TFF's columns of one writer; white = 1."""
    pixels = (RNG.integers(0, 256, (count, 28, 28)) / 255).astype(np.float32)
    return {"label": RNG.integers(0, classes, count).astype(np.int64), "pixels": pixels}


def emnist() -> dict[str, dict[str, Columns]]:
    """The four splits of emnist_all.sqlite."""
    return {
        "all_test": {"f0000_14": writer(2, 62), "f0001_41": writer(1, 62)},
        "all_train": {"f0000_14": writer(5, 62), "f0001_41": writer(3, 62)},
        "digits_only_test": {"f0000_14": writer(1, 10)},
        "digits_only_train": {"f0000_14": writer(4, 10)},
    }


def hub(folder: Path, images: np.ndarray, writers: list[str], kinds: np.ndarray) -> str:
    """Write the hub's file of images [n, 28, 28], uint8, of these writers and classes; return its path."""
    column = [{"bytes": small_files.encoded(image), "path": None} for image in images]
    more = {"writer_id": writers, "hsf_id": [0] * len(images), "character": kinds}
    return str(small_files.parquet(folder, image=column, **more) / "train.parquet")


def labels(dataset: Dataset) -> tuple[list[list[int]], list[int]]:
    return [client.y.tolist() for client in dataset.clients], sorted(dataset.test.y.tolist())


def as_written(train: dict[str, Columns], test: dict[str, Columns]) -> tuple[list[list[int]], list[int]]:
    return (
        [columns["label"].tolist() for columns in train.values()],
        sorted(label for columns in test.values() for label in columns["label"].tolist()),
    )


@pytest.mark.parametrize("form", ["sqlite", "hdf5"])
@pytest.mark.parametrize("only_digits", [False, True])
def test_emnist_of_tff_loads_both_of_its_pairs_of_splits(
    tmp_path: Path, form: str, only_digits: bool
) -> None:
    data = emnist()
    if form == "sqlite":
        path = write_sqlite(tmp_path / "emnist_all.sqlite", data)
    else:
        files = {"all": "fed_emnist", "digits_only": "fed_emnist_digitsonly"}
        renamed = {f"{files[name.rpartition('_')[0]]}_{name.rpartition('_')[2]}": data[name] for name in data}
        path = write_hdf5(tmp_path, renamed)
    dataset = load("femnist", path=path, only_digits=only_digits)
    kind = "digits_only" if only_digits else "all"
    assert labels(dataset) == as_written(data[f"{kind}_train"], data[f"{kind}_test"])
    assert dataset.classes == (10 if only_digits else 62)


def test_a_tff_file_of_another_data_set_says_which_splits_it_has(tmp_path: Path) -> None:
    words = {
        "creation_date": [b""],
        "score": [1],
        "tags": [b""],
        "title": [b""],
        "tokens": [b"how to"],
        "type": [b""],
    }
    path = write_sqlite(tmp_path / "x.sqlite", {"train": {"1": words}, "heldout": {"2": words}})
    with pytest.raises(
        DataError, match=r"no clients in the split 'all_train'; its splits are 'heldout', 'train'"
    ):
        load("femnist", path=path)


def test_digits_of_leafs_and_the_hubs_files_are_those_with_such_a_label(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (20, 28, 28)).astype(np.uint8)
    kinds = np.arange(20) * 5  # 0 and 5 are digits, 10 is the letter A
    leaf = {
        "a": ((images[:10].reshape(-1, 784) / 255).tolist(), kinds[:10].tolist()),
        "b": ([[1.0] * 784], [61]),
    }
    path = write_leaf(tmp_path / "leaf", {"train": leaf, "test": leaf})
    assert labels(load("femnist", path=path, only_digits=True)) == ([[0, 5]], [0, 5])
    path = hub(tmp_path / "hub", images, ["w"] * 20, kinds % 15)
    dataset = load("femnist", path=path, only_digits=True)
    held = np.concatenate([dataset.clients[0].y, dataset.test.y])
    assert sorted(held.tolist()) == sorted(kind for kind in kinds % 15 if kind < 10)
    with pytest.raises(DataError, match=r"no label below 10"):
        load(
            "femnist",
            path=write_leaf(tmp_path / "b", {"train": {"b": leaf["b"]}, "test": {"b": leaf["b"]}}),
            only_digits=True,
        )


@pytest.mark.parametrize("wrong", [62, -3, None])
def test_a_label_of_no_class_fails_its_client_with_only_digits_too(tmp_path: Path, wrong: int | None) -> None:
    picture = [[0.5] * 784]
    good = (picture * 2, [1, 40])
    path = write_leaf(tmp_path, {"train": {"a": good, "b": (picture, [wrong])}, "test": {"a": good}})
    dataset = load("femnist", path=path, only_digits=True)
    assert (len(dataset.clients), dataset.clients[0].y.tolist()) == (2, [1])
    with pytest.raises(DataError, match=r"client 1 .* (the label|a label that could not)"):
        dataset.clients[1]
    (tmp_path / "other").mkdir()
    path = write_leaf(tmp_path / "other", {"train": {"a": good}, "test": {"a": (picture * 2, [1, wrong])}})
    with pytest.raises(DataError, match="label"):
        load("femnist", path=path, only_digits=True)


def test_choosing_examples_by_their_labels_is_said_where_the_file_has_no_split_of_digits(
    tmp_path: Path,
) -> None:
    users = {"a": ([[0.5] * 784] * 2, [1, 40])}
    path = write_leaf(tmp_path / "leaf", {"train": users, "test": users})
    said = ["follows from their labels" in " ".join(load("femnist", path=path, only_digits=chosen).uncovered)
            for chosen in (True, False)]  # fmt: skip
    assert said == [True, False]
    path = write_sqlite(tmp_path / "emnist_all.sqlite", emnist())
    assert "labels" not in " ".join(load("femnist", path=path, only_digits=True).uncovered)


@pytest.mark.parametrize("form", ["sqlite", "leaf", "hub"])
def test_pixels_as_published_have_paper_as_one(tmp_path: Path, form: str) -> None:
    data = emnist()
    pixels = data["all_train"]["f0001_41"]["pixels"]
    if form == "sqlite":
        path = write_sqlite(tmp_path / "emnist_all.sqlite", data)
    elif form == "leaf":
        users = {
            split: {
                user: (c["pixels"].reshape(-1, 784).tolist(), c["label"].tolist())
                for user, c in data[split].items()
            }
            for split in ("all_train", "all_test")
        }
        path = write_leaf(tmp_path, {"train": users["all_train"], "test": users["all_test"]})
    else:
        # Each image twice for each of two writers.
        images = np.repeat(np.rint(pixels * 255).astype(np.uint8), 4, axis=0)
        writers = ["f0001_41", "f0001_41", "f0000_14", "f0000_14"] * len(pixels)
        path = hub(tmp_path / "hub", images, writers, np.ones(len(images), np.int64))
    published, turned = load("femnist", path=path, as_published=True), load("femnist", path=path)
    for one, other in zip([*published.clients, published.test], [*turned.clients, turned.test], strict=True):
        np.testing.assert_allclose(one.x, 1 - other.x, atol=1e-6)
    if form != "hub":
        np.testing.assert_allclose(published.clients[1].x, pixels, atol=1e-6)
    else:
        assert any(np.allclose(published.clients[1].x[0], image, atol=1e-6) for image in pixels)


SENTENCES = {  # of get_synthetic in stackoverflow.py
    "train": {
        "11": ["css3 does finally define the", "edit :"],
        "12": ["the spec is available here ."],
        "7": ["thanks ."],
    },
    "heldout": {"10": ["edit :", "which is exactly how you'd want it to work ."], "20": ["thanks ."]},
    "test": {"11": ["edit : the spec", "thanks ."], "12": ["it is ."], "13": ["define the spec ."] * 3},
}
WORD_COUNTS = (
    ". 4\nis 3\n: 3\nto 3\nthe 2\nedit 2\nyou're 1\nsql 1\nthanks 1\nspec 1\n<URL> 1\ndefine 1\nit 1\n"
)


def stack_overflow(folder: Path, form: str = "sqlite", counts: str = WORD_COUNTS) -> dict[str, Any]:
    """Write TFF's files and its word counts; return the settings that name them."""
    data: dict[str, dict[str, Columns]] = {
        split: {
            user: {
                "creation_date": [b"2010-01-08 09:34:05 UTC"] * len(texts),
                "score": np.arange(len(texts)),
                "tags": [b"sql|median"] * len(texts),
                "title": [b"creating rounded corners using css"] * len(texts),
                "tokens": [text.encode() for text in texts],
                "type": [b"answer"] * len(texts),
            }
            for user, texts in users.items()
        }
        for split, users in SENTENCES.items()
    }
    if form == "sqlite":
        path = write_sqlite(folder / "stackoverflow.sqlite", data)
    else:
        names = {
            "train": "stackoverflow_train",
            "heldout": "stackoverflow_held_out",
            "test": "stackoverflow_test",
        }
        path = write_hdf5(folder, {names[split]: users for split, users in data.items()})
    (folder / "stackoverflow.word_count").write_text(counts)
    return {"path": path, "vocabulary": str(folder / "stackoverflow.word_count")}


def sentences_of(dataset: Dataset) -> list[list[int]]:
    return [row[row > 0].tolist() for row in dataset.test.x]


@pytest.mark.parametrize("form", ["sqlite", "hdf5"])
def test_users_of_the_test_split_who_train_too_are_counted_and_said(tmp_path: Path, form: str) -> None:
    settings = stack_overflow(tmp_path, form)
    by_date = load("stackoverflow", **settings)
    assert by_date.uncovered[-1] == (
        "2 of 3 users of the test split also train: their test examples are treated as public, and only their training "
        "examples are covered."
    )
    held_out = load("stackoverflow", **settings, test="heldout")
    assert not any("also train" in sentence for sentence in held_out.uncovered)
    assert any(
        "TFF counted its words among the training users" in sentence for sentence in held_out.uncovered
    )
    assert len(held_out.test) == 3


def test_validation_and_test_part_the_test_split_and_share_no_sentence(tmp_path: Path) -> None:
    settings = stack_overflow(tmp_path)
    validation, test = (load("stackoverflow", **settings, test=test) for test in ("validation", "test"))
    assert (len(validation.test), len(test.test)) == (3, 3)  # of 6 half, of 20,000 and more the first 10,000
    words = WORD_COUNTS.split()[::2]
    all_rows = [
        [BOS, *(words.index(word) + SPECIAL if word in words else OOV for word in text.split())]
        for texts in SENTENCES["test"].values()
        for text in texts
    ]
    assert sorted(sentences_of(validation) + sentences_of(test)) == sorted(all_rows)
    assert sentences_of(load("stackoverflow", **settings, max_test_examples=2)) == sentences_of(test)[:2]
    assert load("stackoverflow", **settings).test.x.tolist() == test.test.x.tolist()


def test_settings_are_chosen_on_ten_thousand_sentences_where_there_are_enough(tmp_path: Path) -> None:
    from client.data.benchmarks import _place

    class Many:
        order = range(204_088 * 82)

    held = len(Many.order)
    assert _place(Many, "validation", 10**9) == (0, 10_000)  # type: ignore[arg-type]
    assert _place(Many, "test", 10**9) == (10_000, held)  # type: ignore[arg-type]
    assert _place(Many, "test", 10_000) == (10_000, 20_000)  # type: ignore[arg-type]
    assert _place(Many, "heldout", 10**9) == (0, held)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["femnist", "shakespeare", "by_user_npz", "by_user_text"])
def test_every_loader_counts_the_users_that_its_splits_share(tmp_path: Path, name: str) -> None:
    if name == "femnist":
        data = emnist()
        data["all_test"]["f0009_00"] = data["all_test"].pop("f0001_41")
        path = write_sqlite(tmp_path / "emnist_all.sqlite", data)
    elif name == "shakespeare":
        play: dict[str, dict[str, Columns]] = {
            "train": {"MACBETH": {"snippets": [b"Hark!"]}, "EMILIA": {"snippets": [b"Never."]}},
            "test": {"MACBETH": {"snippets": [b"When?"]}, "CUPID": {"snippets": [b"Hail to thee"]}},
        }
        path = write_sqlite(tmp_path / "shakespeare.sqlite", play)
    elif name == "by_user_npz":
        path = str(tmp_path / "data.npz")
        np.savez(path, x=np.ones((4, 2)), y=np.zeros(4, int), user=list("abac"), split=[0, 0, 1, 1])
    else:
        path = str(tmp_path / "texts.jsonl")
        lines = [
            f'{{"user": "{u}", "text": "hark", "split": {s}}}'
            for u, s in zip("abac", (0, 0, 1, 1), strict=True)
        ]
        Path(path).write_text("\n".join(lines))
    dataset = load(name, path=path)
    assert any(
        sentence.startswith("1 of 2 users of the test split also train") for sentence in dataset.uncovered
    )


def test_tffs_word_counts_are_read_as_distributed_and_cut_to_the_most_frequent(tmp_path: Path) -> None:
    settings = stack_overflow(tmp_path)
    whole, small = load("stackoverflow", **settings), load("stackoverflow", **settings, vocabulary_size=6)
    assert (whole.classes, small.classes) == (13 + SPECIAL, 6 + SPECIAL)
    first = whole.clients[0]  # user 11: "css3 does finally define the", "edit :"
    assert first.y[1, :3].tolist() == [5 + SPECIAL, 2 + SPECIAL, EOS]
    assert first.y[0, :6].tolist() == [OOV, OOV, OOV, 11 + SPECIAL, 4 + SPECIAL, EOS]
    assert small.clients[0].y[0, :6].tolist() == [OOV, OOV, OOV, OOV, 4 + SPECIAL, EOS]
    assert any("among the training users: an uncovered release" in said for said in whole.uncovered)


def test_a_plain_list_of_words_says_nothing_of_counts(tmp_path: Path) -> None:
    settings = stack_overflow(tmp_path, counts="the\nspec\n.\nis\nit\n")
    assert not any("with counts" in sentence for sentence in load("stackoverflow", **settings).uncovered)


def test_the_share_of_unknown_words_is_noted_warned_of_and_refused(tmp_path: Path) -> None:
    good = load("stackoverflow", **stack_overflow(tmp_path), test="heldout").notes
    assert good == (
        "Warning: 42.9% of the tokens of the test texts are not in the 13 words of "
        f"{tmp_path / 'stackoverflow.word_count'}; a model can neither read nor write them. Set vocabulary to TFF's "
        "stackoverflow.word_count, or to another public file of English words.",
    )
    settings = {"path": str(tmp_path / "stackoverflow.sqlite")}
    known = sorted({word for texts in SENTENCES["test"].values() for text in texts for word in text.split()})
    (tmp_path / "words").write_text("".join(f"{word}\n" for word in known))
    whole = load("stackoverflow", **settings, vocabulary=str(tmp_path / "words")).notes  # type: ignore[arg-type]
    assert whole == (
        f"0.0% of the tokens of the test texts are not in the {len(known)} words of {tmp_path / 'words'}.",
    )
    (tmp_path / "words").write_text("bonjour\nmonde\n")
    with pytest.raises(
        DataError, match=r"^100\.0% of the tokens .* not in the 2 words of .*; set vocabulary to"
    ):
        load("stackoverflow", **settings, vocabulary=str(tmp_path / "words"))  # type: ignore[arg-type]


def plays(folder: Path, snippet: bytes) -> str:
    users: dict[str, Columns] = {"HAMLET": {"snippets": [snippet]}}
    return write_sqlite(folder / "shakespeare.sqlite", {"train": users, "test": users})


@pytest.mark.parametrize("length", [0, 1, 78, 79, 80, 81, 159, 160, 161, 200])
def test_snippets_as_published_are_cut_into_pieces_of_81_as_tff_cuts_them(length: int) -> None:
    """The twin does what char_prediction_preprocessing.py of tensorflow/federated describes, token by token."""
    text = RNG.integers(SPECIAL, 90, length).astype(np.int32)
    tokens = [BOS, *text.tolist(), EOS]
    tokens += [PAD] * (-len(tokens) % 81)
    pieces = [tokens[start : start + 81] for start in range(0, len(tokens), 81)]
    asked = [piece for piece in pieces if any(piece[1:])]  # one that asks for nothing counts for nothing
    x, y, owner = windows([text, text[:3]], 80, apart=True)
    assert x[:-1].tolist() == [piece[:-1] for piece in asked]
    assert y[:-1].tolist() == [[token or IGNORED_TARGET for token in piece[1:]] for piece in asked]
    assert owner.tolist() == [0] * len(asked) + [1]


def test_shakespeare_as_published_takes_bytes_and_counts_all_but_padding(tmp_path: Path) -> None:
    path = plays(tmp_path, "Where, caf\u00e9 ".encode() * 13)
    own, published = load("shakespeare", path=path), load("shakespeare", path=path, as_published=True)
    assert (own.uncounted, published.uncounted) == ((OOV, EOS), ())
    assert ((own.test.y == OOV).sum(), (published.test.y == OOV).sum()) == (13, 26)
    characters = len("Where, caf\u00e9 ".encode()) * 13
    pieces = -(-(characters + 2) // 81)
    assert (published.test.y != IGNORED_TARGET).sum() == characters + 1 - (pieces - 1)
    assert (own.test.y != IGNORED_TARGET).sum() == 13 * 12 + 1


def test_the_published_alphabet_is_tffs() -> None:
    """86 characters in the order of CHAR_VOCAB: char_prediction_preprocessing.py in tensorflow/federated."""
    assert len(set(LEAF_CHARACTERS)) == len(LEAF_CHARACTERS) == 86
    assert LEAF_CHARACTERS.startswith("dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:")


def test_leafs_accuracy_as_published_counts_unknown_characters(tmp_path: Path) -> None:
    pairs = (["x" * 80] * 3, ["a", "\u00e9", "b"])
    path = write_leaf(tmp_path, {"train": {"A": pairs}, "test": {"A": pairs}})
    assert load("shakespeare", path=path, as_published=True).uncounted == ()
    assert "33.3%" in load("shakespeare", path=path).notes[0]


def test_the_old_name_of_a_limit_is_refused_with_the_new_one(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"test_examples is 7, but dataset stackoverflow does not use it; .* max_test_exa"
    ):
        load("stackoverflow", **stack_overflow(tmp_path), test_examples=7)
