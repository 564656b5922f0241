"""Text: the vocabulary, the windows, and files of JSON lines."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from client.data import IGNORED_TARGET, load
from client.data.text import BOS, EOS, OOV, PAD, Vocabulary, most_frequent, read_words, windows
from fedmf.errors import DataError, SettingError

LINES = [
    {"user": "ann", "text": "the cat sat"},
    {"user": "bob", "tokens": "the dog ran"},
    {"user": "ann", "tokens": ["the", "cat", "slept"]},
    {"user": "bob", "text": "A dog!"},
]


def write(path: Path, lines: list[dict[str, object]]) -> str:
    """Write JSON lines, compressed when the name says so."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    packers = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(text.encode()))
    return str(path)


@given(
    st.lists(st.lists(st.integers(4, 99), max_size=9), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_windows_ask_for_every_token_and_the_end_exactly_once(
    sentences: list[list[int]], length: int
) -> None:
    x, y, owner = windows([np.array(tokens, dtype=np.int32) for tokens in sentences], length)
    for number, tokens in enumerate(sentences):
        own = y[owner == number].reshape(-1)
        assert own[own != IGNORED_TARGET].tolist() == [*tokens, EOS]
        inputs = x[owner == number].reshape(-1)
        assert inputs[inputs != PAD].tolist() == [BOS, *tokens]
    assert ((x == PAD) == (y == IGNORED_TARGET)).all()


def test_truncation_keeps_the_first_window_of_each_sentence() -> None:
    sentences = [np.arange(4, 12), np.arange(4, 6)]
    x, y, owner = windows(sentences, 3, truncate=True)
    assert x.tolist() == [[BOS, 4, 5], [BOS, 4, 5]]
    assert y.tolist() == [[4, 5, 6], [4, 5, EOS]]
    assert owner.tolist() == [0, 1]


def test_the_vocabulary_keeps_the_most_frequent_words_in_a_fixed_order() -> None:
    assert most_frequent([["b", "a"], ["c", "b"], ["a"]], 2) == ("a", "b")
    assert Vocabulary(("a", "b")).encode(["b", "c", "a"]).tolist() == [5, OOV, 4]


def test_a_public_vocabulary_leaves_nothing_uncovered_but_one_from_the_users_does(tmp_path: Path) -> None:
    lines = [line | {"split": number // 3} for number, line in enumerate(LINES)]
    path = write(tmp_path / "texts.jsonl", lines)
    (tmp_path / "words.txt").write_text("the\ncat\ndog\n")
    public = load("by_user_text", path=path, vocabulary=str(tmp_path / "words.txt"))
    learnt = load("by_user_text", path=path)
    assert public.classes == 7
    assert not any("vocabulary" in sentence for sentence in public.uncovered)
    assert any("uncovered release" in sentence for sentence in learnt.uncovered)


def test_a_learnt_vocabulary_never_sees_the_test_lines(tmp_path: Path) -> None:
    lines = [line | {"split": int("cat" in str(line))} for line in LINES]
    dataset = load("by_user_text", path=write(tmp_path / "texts.jsonl", lines))
    assert dataset.classes == 4 + len({"the", "dog", "ran", "a", "!"})


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.jsonl.gz", "texts.jsonl.bz2", "texts.jsonl.xz"])
def test_clients_are_the_users_with_all_their_lines(tmp_path: Path, name: str) -> None:
    lines = [*LINES, {"user": "eve", "text": "the", "split": 1}]
    lines = [{"split": 0} | line for line in lines]
    (tmp_path / "words.txt").write_text("the\ncat\ndog\nran\n")
    dataset = load(
        "by_user_text", path=write(tmp_path / name, lines), vocabulary=str(tmp_path / "words.txt"), length=4
    )
    assert [client.x.tolist() for client in dataset.clients] == [
        [[BOS, 4, 5, OOV], [BOS, 4, 5, OOV]],
        [[BOS, 4, 6, 7], [BOS, OOV, 6, OOV]],
    ]
    assert dataset.clients[0].y.tolist()[0] == [4, 5, OOV, EOS]
    assert dataset.test.x.tolist() == [[BOS, 4, PAD, PAD]]
    assert dataset.test.y.tolist() == [[4, EOS, IGNORED_TARGET, IGNORED_TARGET]]
    assert (dataset.task, dataset.uncounted, dataset.uncovered) == ("next_token", (OOV, EOS), ())


def test_characters_have_a_public_alphabet_and_longer_windows(tmp_path: Path) -> None:
    lines = [{"user": "ann", "text": "x" * 100, "split": 0}, {"user": "bob", "text": "y\n", "split": 1}]
    dataset = load("by_user_text", path=write(tmp_path / "texts.jsonl", lines), level="characters")
    assert (dataset.input_shape, dataset.classes, len(dataset.clients[0])) == ((80,), 100, 2)
    assert OOV not in dataset.test.x
    assert dataset.uncovered == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("{", "Line 1 .* cannot be read as JSON"),
        ('{"user": "a"}', "user and text"),
        ('["a"]', "user and text"),
        ('{"text": "b"}', "user and text"),
        (
            '{"user": "a", "text": 3, "split": 1}\n{"user": "a", "text": "b", "split": 0}',
            "Row 1 .* holds no text",
        ),
        ('{"user": "a", "text": "b", "split": 0}', "both present, or on none"),
        ('{"user": "a", "text": "b", "split": 0}\n{"user": "a", "text": "b"}', "both present, or on none"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "texts.jsonl").write_text(text)
    with pytest.raises(DataError, match=sentence):
        load("by_user_text", path=str(tmp_path / "texts.jsonl"))


def test_bad_vocabularies_are_refused(tmp_path: Path) -> None:
    for text, sentence in (
        ("", "it is empty"),
        ("a\n\nb\n", "line 2 is empty"),
        ("a\nb\na\n", "'a' occurs twice"),
    ):
        (tmp_path / "words.txt").write_text(text)
        with pytest.raises(DataError, match=sentence):
            read_words(tmp_path / "words.txt", 100)
    with pytest.raises(SettingError, match="words, characters"):
        load("by_user_text", path=write(tmp_path / "texts.jsonl", LINES), level="letters")


def test_test_texts_that_are_all_empty_are_refused_where_they_are_used(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"user": "a", "text": "the cat" if split == 0 or row else "", "split": split}
        for split in (0, 1)
        for row in range(2)
    ]
    public = load("by_user_text", path=write(tmp_path / "good.jsonl", lines)).public
    lines[-1]["text"] = ""
    with pytest.raises(DataError, match="no target that the accuracy counts"):
        load("by_user_text", path=write(tmp_path / "empty.jsonl", lines))
    load("by_user_text", path=str(tmp_path / "empty.jsonl"), public=public)
