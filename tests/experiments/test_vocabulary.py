"""The commands datasets and vocabulary."""

import json

import pytest

from client.data import DATASETS
from client.data.text import read_characters, read_words
from client.models import MODELS
from experiments.datasets import DatasetsSettings, datasets
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


def test_the_command_prints_every_data_set_and_model_as_json_or_as_tables(capsys):
    datasets(compose("datasets", ["output=json"], DatasetsSettings))
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["datasets"]] == list(DATASETS)
    said = ("summary", "test_users", "licence", "source")
    assert all(row[key] for row in found["datasets"] for key in said)
    sizes = {row["name"]: row["parameters"] for row in found["models"]}
    assert list(sizes) == list(MODELS)
    assert (sizes["logistic"], sizes["cnn"], sizes["lstm"]) == (650, 1_018_174, 4_053_428)
    datasets(compose("datasets", [], DatasetsSettings))
    assert "1,018,174" in capsys.readouterr().out
