"""Vocabularies: which files are one, whose case counts, and what becomes of texts that they do not know."""

import json
from pathlib import Path

import numpy as np
import pytest

from client.data import Dataset, load
from client.data.text import BOS, OOV, read_characters, read_words
from fedmf.errors import DataError

TEST = 1


def texts(folder: Path, *lines: dict[str, object]) -> str:
    """Write JSON lines; ann's are for training and eve's for testing unless they say otherwise."""
    path = folder / "texts.jsonl"
    full = [{"user": "eve" if line.get("split") else "ann", "split": 0} | line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in full), encoding="utf-8")
    return str(path)


def file(folder: Path, text: str) -> str:
    (folder / "words.txt").write_text(text, encoding="utf-8")
    return str(folder / "words.txt")


def test_a_list_of_counts_is_told_from_a_list_of_words(tmp_path: Path) -> None:
    for text, tokens, counted in (
        ("the 30\nto\t20\n<URL> 20\n7 3\n", ("the", "to", "<URL>", "7"), True),
        ("the\nto\n7\n", ("the", "to", "7"), False),
    ):
        read = read_words(file(tmp_path, text), 10)
        assert (read.tokens, read.counted) == (tokens, counted)
    assert read_words(file(tmp_path, "the 30\nto 20\na 1\n"), 2).tokens == ("the", "to")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "the 30\nto 40\n",
            r"Line 2 of .* has the count 40 after 30; the most frequent words must stand first",
        ),
        (
            "the 30\nto\n",
            r"Line 1 of .* is 'the 30'; each line must hold one token, or each a token and its count",
        ),
        ("New York\nto\n", r"Line 1 of .* is 'New York'"),
        ("a 3\nb 2\na 1\n", r"'a' occurs twice"),
        ("a\n   \nb\n", r"line 2 is empty"),
        ("", r"it is empty"),
    ],
)
def test_a_file_that_is_neither_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_words(file(tmp_path, text), 100)


def test_what_lies_beyond_the_size_is_not_read(tmp_path: Path) -> None:
    assert read_words(file(tmp_path, "the 30\nto 20\n" + "no count here\n"), 2).tokens == ("the", "to")


def test_text_tokens_and_vocabulary_fold_case_alike(tmp_path: Path) -> None:
    path = texts(
        tmp_path,
        {"text": "The <URL> CAT"},
        {"tokens": "The <URL> CAT"},
        {"tokens": ["The", "<URL>", "CAT"]},
        {"text": "the", "split": TEST},
    )
    dataset = load("by_user_text", path=path, vocabulary=file(tmp_path, "The 9\nthe 8\n<URL> 7\nCat 5\n"))
    text, string, listed = (row[row > BOS].tolist() for row in dataset.clients[0].x)
    assert dataset.classes == 3 + 4  # The and the are one word
    assert string == listed == [4, 5, 6]
    assert (text[0], text[-1]) == (4, 6)  # a text is parted at the brackets too
    learnt = load("by_user_text", path=path)
    assert learnt.clients[0].x[1].tolist() == learnt.clients[0].x[2].tolist()
    assert learnt.classes == len({"the", "<", "url", ">", "cat", "<url>"}) + 4


def test_given_words_are_cut_to_the_most_frequent(tmp_path: Path) -> None:
    path = texts(tmp_path, {"text": "the cat"}, {"text": "the cat", "split": TEST})
    dataset = load("by_user_text", path=path, vocabulary=file(tmp_path, "the\ncat\n"), vocabulary_size=1)
    assert dataset.test.x[0, :3].tolist() == [BOS, 4, OOV]
    assert dataset.notes[0].startswith(
        "Warning: 50.0% of the tokens of the test texts are not in the 1 words of"
    )


def test_words_of_another_language_are_refused_and_a_fifth_of_them_is_warned_of(tmp_path: Path) -> None:
    words = file(tmp_path, "the\ncat\nsat\n")
    path = texts(tmp_path, {"text": "the cat"}, {"text": "le chat", "split": TEST})
    with pytest.raises(
        DataError, match=r"^100\.0% of the tokens .* set vocabulary to a public file of words of this"
    ):
        load("by_user_text", path=path, vocabulary=words)
    for known, begin in ((4, "20.0% of"), (3, "Warning: 25.0% of")):
        path = texts(tmp_path, {"text": "the"}, {"text": "cat " * known + "chat", "split": TEST})
        assert load("by_user_text", path=path, vocabulary=words).notes[0].startswith(begin)


RUSSIAN = {"text": "Мой дядя самых честных правил", "split": TEST}


def russian(folder: Path, **settings: object) -> Dataset:
    path = texts(folder, {"text": "Когда не в шутку занемог"}, RUSSIAN)
    return load("by_user_text", path=path, level="characters", **settings)  # type: ignore[arg-type]


def test_characters_of_another_script_are_refused_without_a_list_of_them(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"86\.2% .* not in printable ASCII; set vocabulary to a public file with one char"
    ):
        russian(tmp_path)


def test_characters_of_another_script_come_from_a_public_list(tmp_path: Path) -> None:
    alphabet = "абвгдежзиклмнопрстуфхцчшщыьэюяйМК "
    dataset = russian(tmp_path, vocabulary=file(tmp_path, "\n".join(alphabet) + "\n"), vocabulary_size=2)
    assert (
        dataset.classes == len(alphabet) + 1 + 4
    )  # the line break is always known, and no character is cut off
    spelt = [alphabet[number - 4] for number in dataset.test.x[0] if number >= 4]
    assert "".join(spelt) == RUSSIAN["text"]
    assert dataset.notes == (
        f"0.0% of the tokens of the test texts are not in the characters of {tmp_path / 'words.txt'}.",
    )
    assert dataset.uncovered == ()


def test_a_list_of_words_is_no_list_of_characters(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"Line 2 of .* is 'bc'; level=characters needs one character on each line"
    ):
        read_characters(file(tmp_path, "a\nbc\n"))


def test_a_few_foreign_characters_leave_ascii_as_it_is(tmp_path: Path) -> None:
    path = texts(tmp_path, {"text": "so"}, {"text": "a caf\u00e9 in town", "split": TEST})
    dataset = load("by_user_text", path=path, level="characters")
    assert (np.asarray(dataset.test.y) == OOV).sum() == 1
    assert dataset.notes[0].startswith("7.1% of the tokens of the test texts are not in printable ASCII")
