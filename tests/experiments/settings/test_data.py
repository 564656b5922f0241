"""The groups dataset and model: their keys are what loaders and models take."""

import inspect
import pickle
from dataclasses import fields

import pytest

from client.data import DATASETS
from client.models import MODELS, build
from experiments.settings.data import MEANS, DatasetSettings, arguments, load_dataset
from fedmf.errors import SettingError
from runs import composed

COMMON = {item.name for item in fields(DatasetSettings)}


@pytest.mark.parametrize("name", DATASETS)
def test_the_keys_of_a_data_set_are_the_arguments_of_its_loader_with_their_defaults(name: str) -> None:
    settings = composed(f"dataset={name}")
    given, taken = arguments(settings.dataset), inspect.signature(DATASETS[name].load).parameters
    assert (settings.dataset.name, pickle.loads(pickle.dumps(settings))) == (name, settings)
    own = {key: argument.default for key, argument in taken.items() if key in MEANS and key not in COMMON}
    assert own.items() <= given.items()
    assert set(given) - COMMON <= set(taken)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_the_keys_of_its_settings_and_has_their_defaults(name: str) -> None:
    given = arguments(composed(f"model={name}").model)
    assert given.pop("name") == name
    taken = {**inspect.signature(MODELS[name][0]).parameters, **inspect.signature(build).parameters}
    assert all(value in (None, taken[key].default) for key, value in given.items())


def test_custom_settings_become_plain_arguments_hide_no_key_and_are_a_mapping() -> None:
    dataset = composed("dataset=custom", "dataset.name=a.b:c", "dataset.settings={size: 3}").dataset
    given = arguments(dataset)
    assert (given["name"], given["size"], given["path"]) == ("a.b:c", 3, None)
    assert set(given) == {*COMMON, "size"}
    for own, said in (({"path": "x"}, "no argument of its own"), (3, "must be a mapping")):
        with pytest.raises(SettingError, match=said):
            arguments({"name": "mine:load", "path": None, "settings": own})
    with pytest.raises(SettingError, match=r"^dataset\.name is 'nowhere:load', which cannot be imported"):
        load_dataset({"name": "nowhere:load"})
