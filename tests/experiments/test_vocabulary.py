"""The vocabulary command."""

import gzip
import sys
from pathlib import Path

import pytest

from client.data.text import read_characters, read_words
from experiments.settings.compose import compose
from experiments.vocabulary import VocabularySettings, characters, vocabulary
from fedmf.errors import DataError, SettingError


def run(*overrides: str) -> None:
    """Call the command as the command line would."""
    vocabulary(compose("vocabulary", overrides, VocabularySettings))


@pytest.mark.parametrize("name", ["public.txt", "public.txt.gz"])
def test_the_file_holds_the_most_frequent_words_of_the_text(tmp_path: Path, name: str) -> None:
    text = b"The cat saw the dog.\nThe dog saw a cat\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    run(f"text={tmp_path / name}", f"file={tmp_path / 'words.txt'}", "size=4")
    assert read_words(tmp_path / "words.txt", 10_000).tokens == ("the", "cat", "dog", "saw")


def test_without_a_text_the_words_are_those_of_pythons_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdlib_module_names", frozenset({"json", "statistics", "_no_python"}))
    run(f"file={tmp_path / 'words.txt'}", "size=2000")
    known = read_words(tmp_path / "words.txt", 10_000).tokens
    assert len(known) == 2000
    assert {"the", "class", "statement", "median"} <= set(known)
    assert "documentation of Python 3." in capsys.readouterr().out


def test_nothing_is_written_over_and_mistakes_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("words\n")
    (tmp_path / "words.txt").write_text("kept\n")
    with pytest.raises(DataError, match="exists already"):
        run(f"text={tmp_path / 'text'}", f"file={tmp_path / 'words.txt'}")
    assert (tmp_path / "words.txt").read_text() == "kept\n"
    with pytest.raises(DataError, match="cannot be read"):
        run(f"text={tmp_path / 'none'}", f"file={tmp_path / 'new.txt'}")
    with pytest.raises(SettingError, match="size is 0"):
        run(f"text={tmp_path / 'text'}", f"file={tmp_path / 'new.txt'}", "size=0")
    (tmp_path / "text").write_text("\n")
    with pytest.raises(DataError, match="holds no words"):
        run(f"text={tmp_path / 'text'}", f"file={tmp_path / 'new.txt'}")
    assert not (tmp_path / "new.txt").exists()


def test_characters_of_a_public_text_make_a_list_of_them(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_text("\u043e\u043d \u043e\n\u043e\r\n", encoding="utf-8")
    run(f"text={tmp_path / 'public.txt'}", f"file={tmp_path / 'letters.txt'}", "level=characters")
    assert read_characters(tmp_path / "letters.txt").tokens == ("\u043e", " ", "\u043d", "\n")
    assert characters("of\r\nPython\n") == list("ofPython")  # its documentation comes in texts of many lines
    with pytest.raises(SettingError, match=r"^level is 'letters'; it must be one of words, characters"):
        run(f"file={tmp_path / 'other.txt'}", "level=letters")
