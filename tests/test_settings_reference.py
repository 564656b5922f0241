"""The reference of the settings: complete, up to date, and true of what the commands take."""

import json
import re

import pytest
from omegaconf import OmegaConf

from client.data.registry import DATASETS
from client.models import MODELS
from experiments.settings import compose
from experiments.settings.engine import ENGINES
from experiments.settings.reference import commands, experiments, reference
from experiments.settings.schema import FOR_DEPLOYMENTS
from fedmf.mechanisms import FAMILIES
from runs import composed
from test_site import ROOT, tool

settings = tool("settings")
NEEDED = {"custom": "a:b"}


def test_the_reference_is_what_its_sources_give():
    document = settings.reference()
    advice = "the reference is not up to date; run `make settings` and commit what it writes"
    assert settings.as_json(document) == settings.DATA.read_text(), advice
    assert settings.page(document) == settings.PAGE.read_text(), advice
    assert json.loads(settings.DATA.read_text()) == document


def test_the_page_is_in_the_navigation():
    assert "Settings: settings.md" in (ROOT / "mkdocs.yml").read_text()


def copied(tmp_path, monkeypatch, file, old, new):
    """Let the generator read a copy of conf/ in which one line is another one."""
    import shutil

    shutil.copytree(settings.CONF, tmp_path / "conf")
    changed = tmp_path / "conf" / file
    assert old in changed.read_text()
    changed.write_text(changed.read_text().replace(old, new))
    monkeypatch.setattr(settings, "CONF", tmp_path / "conf")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("compare.yaml", "directory: ??? # folder: every run below it is compared", "directory: ???", "directory of compare has no sentence"),
        ("population/default.yaml", "cohort_size: 64 # n, clients of a round", "cohort_size: 64", "population.cohort_size of simulate has no sentence"),
        ("model/mlp.yaml", "hidden: 256 # units of the hidden layer", "hidden: 256", "model.hidden of simulate (model=mlp) has no sentence"),
        ("client/default.yaml", "# batch_size: examples of a batch\n", "", "client.batch_size of simulate has no sentence"),
        ("compare.yaml", "text | json: what is printed", "text | yaml: what is printed", "output of compare is said to be text | yaml, but the choices are text, json"),
        ("compare.yaml", "text | json: what is printed, a table for people or one JSON document", "text | json", "output of compare has no sentence"),
        ("model/cnn.yaml", "name: cnn # convolutional network for images of at least 8 x 8", "name: cnn", "model=cnn has no sentence"),
        ("config.yaml", "- population: default # who takes part", "- population: default", "the group population has no sentence"),
    ],
)  # fmt: skip
def test_a_key_a_choice_or_a_group_without_its_sentence_is_refused(
    tmp_path, monkeypatch, file, old, new, said
):
    copied(tmp_path, monkeypatch, file, old, new)
    with pytest.raises(ValueError, match=re.escape(said)):
        settings.reference()


def leaves(config, prefix=""):
    """Yield (key, value) of a composed configuration; lists and empty mappings are values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("name", commands())
def test_every_key_that_is_composed_is_in_the_reference_with_its_default(name):
    conf = "config" if name == "simulate" else name
    found = OmegaConf.to_container(compose._composed(conf, [], settings.settings_of(name)))
    known = reference(name)
    for key, value in leaves(found):
        group = key.rpartition(".")[0]
        if key == f"{group}.name" and group in known.groups:
            assert known.groups[group].default == (value or "null")
            continue
        chosen = known.groups[group].default if group else None
        if chosen == "null":  # of an earlier run, as `evaluate` finds it
            continue
        (item,) = [item for item in known.of_key(key) if not group or item.is_of(chosen)]
        as_text = "???" if item.default == "required" else item.default
        assert OmegaConf.create(f"x: {as_text}")._get_node("x")._value() == getattr(value, "name", value), key


def test_choices_offered_are_those_that_there_are():
    groups = reference("simulate").groups
    assert set(groups["dataset"].choices) == {*DATASETS, "custom"}
    assert set(groups["model"].choices) == {*MODELS, "custom"}
    assert set(groups["mechanism"].choices) == {*FAMILIES, "custom"}
    assert set(groups["engine"].choices) == {*ENGINES} - {"deployment"}  # `flwr run` chooses that one
    assert experiments() == tuple(sorted(file.stem for file in (ROOT / "conf" / "experiment").glob("*.yaml")))


@pytest.mark.parametrize(
    ("item", "value"),
    [(item, choice) for item in reference("simulate").settings for choice in item.choices if not item.type.startswith("list")],
    ids=lambda part: getattr(part, "key", part),
)  # fmt: skip
def test_every_value_offered_is_taken(item, value):
    choice = [f"{item.group}={item.of[0]}"] if item.of else []
    if item.key.removeprefix("population.") in FOR_DEPLOYMENTS:
        choice.append("engine=deployment")
    found = composed(*choice, f"{item.key}={value}")
    for part in item.key.split("."):
        found = getattr(found, part)
    assert found == value
