"""Every choice of the groups dataset and model composes, and its keys are those that the loader takes."""

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from client.data import DATASETS as LOADERS
from client.models import MODELS as BUILDERS
from experiments.cli import command
from experiments.settings import data
from experiments.settings.data import DATASETS, MODELS, DatasetConfig, ModelConfig, arguments


@dataclass
class Groups:
    """Both groups, as in a run's configuration."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    model: ModelConfig = field(default_factory=ModelConfig)


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration directory with the shipped groups and a small root."""
    for group in ("dataset", "model"):
        (tmp_path / group).symlink_to(command.CONF / group)
    (tmp_path / "groups.yaml").write_text(
        "defaults: [groups_schema, dataset: digits, model: logistic, _self_]\n"
    )
    monkeypatch.setattr(command, "CONF", tmp_path)
    data.register()


def composed(*overrides: str) -> DictConfig:
    """Return the composed groups."""
    return command.compose_config("groups", overrides, Groups)


def test_every_file_has_its_schema_and_every_schema_its_file() -> None:
    for group, schemas in (("dataset", DATASETS), ("model", MODELS)):
        assert {file.stem for file in (command.CONF / group).glob("*.yaml")} == set(schemas)
    assert set(DATASETS) == {*LOADERS, "custom"}
    assert set(MODELS) == {*BUILDERS, "custom"}


@pytest.mark.parametrize("name", LOADERS)
def test_a_data_set_takes_the_keys_of_its_schema(name: str) -> None:
    given = arguments(composed(f"dataset={name}").dataset)
    assert given["name"] == name
    parameters = inspect.signature(LOADERS[name].load).parameters
    assert {key for key in given if key not in ("name", "path", "examples_per_client", "vocabulary")} <= set(
        parameters
    )
    defaults = {key: parameters[key].default for key in given if key in parameters and given[key] is not None}
    assert all(given[key] == value for key, value in defaults.items())


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_takes_the_keys_of_its_schema(name: str) -> None:
    given = arguments(composed(f"model={name}").model)
    assert given.pop("name") == name
    assert set(given) <= set(inspect.signature(BUILDERS[name][0]).parameters)


def test_settings_of_ones_own_become_plain_arguments() -> None:
    config = composed("dataset=custom", "dataset.name=a.b:c", "dataset.settings={size: 3}").dataset
    expected: dict[str, Any] = {
        "name": "a.b:c",
        "path": None,
        "examples_per_client": None,
        "vocabulary": None,
        "size": 3,
    }
    assert arguments(config) == expected
