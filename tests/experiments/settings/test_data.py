"""Every choice of the groups dataset and model composes, and its keys are those that the loader takes."""

import inspect
from typing import Any

import pytest

from client.data import DATASETS as LOADERS
from client.models import MODELS as BUILDERS, build
from experiments.settings.data import arguments
from runs import composed

COMMON = {
    "name",
    "path",
    "examples_per_client",
    "max_examples_per_user",
    "max_test_examples",
    "vocabulary",
    "held_out",
    "held_out_use",
}  # of all data sets, and refused or done for those whose loader does not take them


@pytest.mark.parametrize("name", LOADERS)
def test_a_data_set_takes_the_keys_of_its_settings(name: str) -> None:
    given = arguments(composed(f"dataset={name}").dataset)
    assert given["name"] == name
    parameters = inspect.signature(LOADERS[name].load).parameters
    assert set(given) - COMMON <= set(parameters)
    defaults = {key: parameters[key].default for key in given if key in parameters and given[key] is not None}
    assert all(given[key] == value for key, value in defaults.items())


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_takes_the_keys_of_its_settings(name: str) -> None:
    given = arguments(composed(f"model={name}").model)
    assert given.pop("name") == name
    taken = {**inspect.signature(BUILDERS[name][0]).parameters, **inspect.signature(build).parameters}
    assert set(given) <= set(taken)


def test_settings_of_ones_own_become_plain_arguments() -> None:
    dataset = composed("dataset=custom", "dataset.name=a.b:c", "dataset.settings={size: 3}").dataset
    expected: dict[str, Any] = {
        "name": "a.b:c",
        "path": None,
        "examples_per_client": None,
        "max_examples_per_user": None,
        "max_test_examples": None,
        "vocabulary": None,
        "held_out": None,
        "held_out_use": "score",
        "size": 3,
    }
    assert arguments(dataset) == expected
