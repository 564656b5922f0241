"""The listing of data sets and models."""

import json

from client.data import DATASETS
from client.models import MODELS
from experiments.datasets import DatasetsSettings, datasets
from experiments.settings.compose import compose


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
