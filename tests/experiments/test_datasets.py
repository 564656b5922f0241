"""The listing of data sets and models."""

import json

import pytest

from client.data import DATASETS
from client.models import MODELS
from experiments.datasets import DatasetsSettings, datasets, listing
from experiments.settings.compose import compose


def test_every_data_set_says_what_it_is_its_licence_and_its_source() -> None:
    rows = listing()["datasets"]
    assert [row["name"] for row in rows] == list(DATASETS)
    assert all(row[key] for row in rows for key in ("summary", "test_users", "licence", "source"))


def test_every_model_says_how_many_parameters_it_has() -> None:
    sizes = {row["name"]: row["parameters"] for row in listing()["models"]}
    assert list(sizes) == list(MODELS)
    assert (sizes["logistic"], sizes["cnn"], sizes["lstm"]) == (650, 1_018_174, 4_053_428)


def test_the_command_prints_one_json_document_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    datasets(compose("datasets", ["output=json"], DatasetsSettings))
    assert json.loads(capsys.readouterr().out) == listing()
    datasets(compose("datasets", [], DatasetsSettings))
    assert "1,018,174" in capsys.readouterr().out
