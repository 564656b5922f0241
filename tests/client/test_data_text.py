"""Texts: the vocabulary, the windows, files of JSON lines, and what is valid JSON but no value that can be used."""

import bz2
import gzip
import json
import lzma

import numpy as np
import pytest
from hypothesis import given, strategies as st

from client.data import IGNORED_TARGET, load
from client.data.reading import DEEPEST, read_json
from client.data.text import (
    BOS,
    EOS,
    OOV,
    PAD,
    Vocabulary,
    most_frequent,
    read_vocabulary,
    windows,
)
from fedmf.errors import DataError, SettingError

LINES = [
    {"user": "ann", "text": "the cat sat"},
    {"user": "bob", "tokens": "the dog ran"},
    {"user": "ann", "tokens": ["the", "cat", "slept"]},
    {"user": "bob", "text": "A dog!"},
]
TEST = {"user": "eve", "split": 1}
PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000


def write(path, *lines, split=True):
    """Write JSON lines, compressed when the name says so; ann's, for training, unless they say otherwise."""
    full = [({"user": "ann", "split": 0} if split else {}) | line for line in lines]
    path.write_bytes(
        PACKERS.get(path.suffix, bytes)("".join(json.dumps(line) + "\n" for line in full).encode())
    )
    return str(path)


def words(folder, text):
    (folder / "words.txt").write_text(text, encoding="utf-8")
    return str(folder / "words.txt")


@given(st.lists(st.lists(st.integers(4, 99), max_size=9), min_size=1, max_size=5), st.integers(1, 6))
def test_windows_ask_for_every_token_and_the_end_exactly_once(sentences, length):
    x, y, owner = windows([np.array(tokens, dtype=np.int32) for tokens in sentences], length)
    for number, tokens in enumerate(sentences):
        own = y[owner == number].reshape(-1)
        assert own[own != IGNORED_TARGET].tolist() == [*tokens, EOS]
        inputs = x[owner == number].reshape(-1)
        assert inputs[inputs != PAD].tolist() == [BOS, *tokens]
    assert ((x == PAD) == (y == IGNORED_TARGET)).all()


def test_truncation_keeps_the_first_window_and_a_vocabulary_the_most_frequent_words_in_a_fixed_order():
    x, y, owner = windows([np.arange(4, 12), np.arange(4, 6)], 3, truncate=True)
    assert (x.tolist(), y.tolist()) == ([[BOS, 4, 5], [BOS, 4, 5]], [[4, 5, 6], [4, 5, EOS]])
    assert owner.tolist() == [0, 1]
    assert most_frequent([["b", "a"], ["c", "b"], ["a"]], 2) == ("a", "b")
    assert Vocabulary(("a", "b")).encode(["b", "c", "a"]).tolist() == [5, OOV, 4]


def test_a_public_vocabulary_leaves_nothing_uncovered_but_one_from_the_training_lines_does(
    tmp_path,
):
    path = write(tmp_path / "texts.jsonl", *({"split": int("cat" in str(line))} | line for line in LINES))
    learnt = load("by_user_text", path=path)
    assert learnt.classes == 4 + len({"the", "dog", "ran", "a", "!"})  # none of the test lines'
    assert any("uncovered release" in sentence for sentence in learnt.uncovered)
    public = load("by_user_text", path=path, vocabulary=words(tmp_path, "the\ncat\ndog\n"))
    assert public.classes == 7
    assert not any("vocabulary" in sentence for sentence in public.uncovered)
    assert (
        load("by_user_text", path=path, vocabulary=words(tmp_path, "the\ncat\n"), vocabulary_size=1).classes
        == 5
    )


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.jsonl.gz", "texts.jsonl.bz2", "texts.jsonl.xz"])
def test_clients_are_the_users_with_all_their_lines(tmp_path, name):
    path = write(tmp_path / name, *LINES, TEST | {"text": "the"})
    vocabulary = words(tmp_path, "the\ncat\ndog\nran\n")
    dataset = load("by_user_text", path=path, vocabulary=vocabulary, length=4)
    assert [client.x.tolist() for client in dataset.clients] == [
        [[BOS, 4, 5, OOV], [BOS, 4, 5, OOV]],
        [[BOS, 4, 6, 7], [BOS, OOV, 6, OOV]],
    ]
    assert dataset.clients[0].y.tolist()[0] == [4, 5, OOV, EOS]
    assert dataset.test.x.tolist() == [[BOS, 4, PAD, PAD]]
    assert dataset.test.y.tolist() == [[4, EOS, IGNORED_TARGET, IGNORED_TARGET]]
    assert (dataset.task, dataset.uncounted, dataset.uncovered) == ("next_token", (OOV, EOS), ())


def test_characters_have_a_public_alphabet_and_longer_windows(tmp_path):
    path = write(tmp_path / "texts.jsonl", {"text": "x" * 100}, TEST | {"text": "a caf\u00e9 in town\n"})
    dataset = load("by_user_text", path=path, level="characters")
    assert (dataset.input_shape, dataset.classes, len(dataset.clients[0])) == ((80,), 100, 2)
    assert (np.asarray(dataset.test.y) == OOV).sum() == 1
    assert dataset.notes[0].startswith("6.7% of the tokens of the test texts are not in printable ASCII")
    assert dataset.uncovered == ()
    text = "Мой дядя самых честных правил"
    path = write(tmp_path / "texts.jsonl", {"text": "Когда не в шутку занемог"}, TEST | {"text": text})
    with pytest.raises(
        DataError, match=r"86\.2% .* not in printable ASCII; set vocabulary to a public file with one char"
    ):
        load("by_user_text", path=path, level="characters")
    alphabet = "абвгдежзиклмнопрстуфхцчшщыьэюяйМК "
    public = words(tmp_path, "\n".join(alphabet) + "\n")
    dataset = load("by_user_text", path=path, level="characters", vocabulary=public, vocabulary_size=2)
    assert dataset.classes == len(alphabet) + 1 + 4  # the line break is always known, and none is cut off
    assert "".join(alphabet[number - 4] for number in dataset.test.x[0] if number >= 4) == text
    assert dataset.notes == (f"0.0% of the tokens of the test texts are not in the characters of {public}.",)


def test_text_tokens_and_vocabulary_fold_case_alike(tmp_path):
    forms = ({"text": "The <URL> CAT"}, {"tokens": "The <URL> CAT"}, {"tokens": ["The", "<URL>", "CAT"]})
    path = write(tmp_path / "texts.jsonl", *forms, TEST | {"text": "the"})
    dataset = load("by_user_text", path=path, vocabulary=words(tmp_path, "The 9\nthe 8\n<URL> 7\nCat 5\n"))
    text, string, listed = (row[row > BOS].tolist() for row in dataset.clients[0].x)
    assert dataset.classes == 3 + 4  # The and the are one word
    assert string == listed == [4, 5, 6]
    assert (text[0], text[-1]) == (4, 6)  # a text is split at the brackets too
    learnt = load("by_user_text", path=path)
    assert learnt.clients[0].x[1].tolist() == learnt.clients[0].x[2].tolist()
    assert learnt.classes == len({"the", "<", "url", ">", "cat", "<url>"}) + 4


@pytest.mark.parametrize(
    ("tested", "said"),
    [
        ("the cat cat the chat", "20.0% of"),
        ("the cat the chat", "Warning: 25.0% of"),
        ("le chat", r"^100\.0% of the tokens .* set vocabulary to a public file of words of this"),
        ("", "no target that the accuracy counts"),
    ],
)
def test_how_much_is_unknown_is_noted_warned_of_and_refused(tmp_path, tested, said):
    given = {"vocabulary": words(tmp_path, "the\ncat\n")}
    path = write(tmp_path / "texts.jsonl", {"text": "the"}, TEST | {"text": tested})
    if said.endswith("% of"):
        assert load("by_user_text", path=path, **given).notes[0].startswith(said)
    else:
        with pytest.raises(DataError, match=said):
            load("by_user_text", path=path, **given)


def test_a_list_of_counts_is_told_from_a_list_of_words(tmp_path):
    counted = read_vocabulary(words(tmp_path, "the 30\nto\t20\n<URL> 20\n7 3\nno count here\n"), 4)
    assert counted == (("the", "to", "<URL>", "7"), True)
    assert read_vocabulary(words(tmp_path, "the\nto\n7\n"), 10) == (("the", "to", "7"), False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\nbc\n", r"Line 2 of .* holds more than one character; level=characters needs one on each line"),
        (
            "the 30\nto 40\n",
            r"Line 2 of .* has a greater count than the line before; the most frequent words must stand first",
        ),
        (
            "the 30\nto\n",
            r"Line 1 of .* holds more than one token; each line must hold one, or each a token and its count",
        ),
        ("a 3\nb 2\na 1\n", r"'a' occurs twice"),
        ("a\n   \nb\n", r"line 2 is empty"),
        ("", r"it is empty"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence):
        read_vocabulary(words(tmp_path, text), 100, "characters" if "level" in sentence else "words")
    with pytest.raises(SettingError, match="words, characters"):
        load("by_user_text", path=write(tmp_path / "texts.jsonl", *LINES), level="letters")


@pytest.mark.parametrize("text", [DEEP[:-1], '{"a": ' + DEEP, "[" * 100_000, DEEP + "]"])
def test_a_deep_text_that_is_no_json_is_refused(text):
    with pytest.raises(DataError, match="x cannot be read as JSON"):
        read_json(text, "x")


def test_a_deep_text_keeps_all_that_is_above():
    text = f'{{"a": "]}}\\"[", "b": [1, {DEEP}, "\\\\"], "c": {{"d": [{DEEP}, 2]}}}}'
    value = read_json(text, "x")
    assert (value["a"], value["b"][::2], value["c"]["d"][1]) == (']}"[', [1, "\\"], 2)
    depth, inner = 0, value["b"][1]
    while inner is not None:
        depth, inner = depth + 1, inner[0] if inner else None
    assert depth == DEEPEST - 2
    numbers = read_json(f"[{LONG}, -{LONG}, 7, {'7' * 4000}]", "x")
    assert numbers == [float("inf"), -float("inf"), 7, int("7" * 4000)]
