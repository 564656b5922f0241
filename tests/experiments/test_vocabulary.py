"""The vocabulary command."""

import json
import sys

import pytest

from client.data.text import read_characters, read_words
from experiments.settings.compose import compose
from experiments.vocabulary import VocabularySettings, vocabulary
from fedmf.errors import DataError, SettingError


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A function of overrides that writes a vocabulary below the current directory."""
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: vocabulary(compose("vocabulary", overrides, VocabularySettings))


def test_the_file_has_the_most_frequent_words_or_characters_of_a_text(make, tmp_path, capsys):
    (tmp_path / "words").write_text("The cat saw the dog.\nThe dog saw a cat\n")
    make("text=words", "file=four", "size=4")
    assert read_words(tmp_path / "four", 10_000)[0] == ("the", "cat", "dog", "saw")
    (tmp_path / "letters").write_text("\u043e\u043d \u043e\n\u043e\r\n", encoding="utf-8")
    capsys.readouterr()
    make("text=letters", "file=three", "level=characters")
    assert read_characters(tmp_path / "three").tokens == ("\u043e", " ", "\u043d", "\n")
    assert capsys.readouterr().out == "3 characters of letters written to three\n"


def test_without_a_text_the_words_are_those_of_pythons_documentation(make, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdlib_module_names", frozenset({"json", "statistics", "_no_python"}))
    make("file=words.txt", "size=2000", "output=json")
    known = read_words(tmp_path / "words.txt", 10_000)[0]
    assert len(known) == 2000
    assert {"the", "class", "statement", "median"} <= set(known)
    said = json.loads(capsys.readouterr().out)
    assert (said["file"], said["words"]) == ("words.txt", 2000)
    assert "documentation of Python 3." in said["source"]


def test_nothing_is_written_over_and_mistakes_are_sentences(make, tmp_path):
    (tmp_path / "words.txt").write_text("kept\n")
    (tmp_path / "blank").write_text("\n")
    for error, says, given in (
        (DataError, "exists already", "text=blank file=words.txt"),
        (OSError, "No such file", "text=none file=new.txt"),
        (DataError, "contains no words", "text=blank file=new.txt"),
        (SettingError, "size is 0", "text=blank file=new.txt size=0"),
        (SettingError, "level is 'letters'; it must be one of words, char", "file=new.txt level=letters"),
    ):
        with pytest.raises(error, match=says):
            make(*given.split())
    assert (tmp_path / "words.txt").read_text() == "kept\n"
    assert not (tmp_path / "new.txt").exists()
