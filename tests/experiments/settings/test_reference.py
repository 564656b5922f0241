"""The reference of the settings is what commands take: keys, defaults, choices."""

import re
import sys
from functools import reduce

import pytest
from omegaconf import OmegaConf

from client.data.registry import DATASETS
from client.models import MODELS
from experiments.cli.console import PACKAGE, USAGE
from experiments.settings import compose
from experiments.settings.reference import SETTINGS, experiments, reference, settings_of
from experiments.settings.schema import FOR_DEPLOYMENTS
from fedmf.mechanisms import FAMILIES
from runs import composed
from test_site import ROOT, tool


def test_every_command_has_its_settings_and_is_listed():
    """A command is a package with a __main__.py, or a module that says what to do when it is `__main__`."""
    modules = {file.stem for file in PACKAGE.glob("*.py") if 'if __name__ == "__main__":' in file.read_text()}
    packages = {file.parent.name for file in PACKAGE.glob("*/__main__.py")}
    commands = {*SETTINGS, "data"}  # which takes two paths, and no settings
    assert commands == modules | packages - {"benchmark", "reproduce"}  # of a checkout alone
    assert commands == set(re.findall(r"(?m)^  (\w+)  ", USAGE))
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z_]+)", row.split(" | ")[0])} == commands


def leaves(config, prefix=""):
    """Yield (key, value) of a composed configuration; lists and empty mappings are values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}", value


@pytest.mark.parametrize("name", SETTINGS)
def test_every_key_that_is_composed_is_in_the_reference_with_its_default(name):
    conf = "config" if name == "simulate" else name
    found = compose.composed(conf, [], settings_of(name))
    known = reference(name)
    for key, value in leaves(found):
        group = key.rpartition(".")[0]
        if key == f"{group}.name" and group in known.groups:
            assert known.groups[group].default == (value or "null")
            continue
        chosen = known.groups[group].default if group else None
        if chosen == "null":  # of an earlier run, as `evaluate` finds it
            continue
        (item,) = [item for item in known.settings if item.key == key and (not group or item.is_of(chosen))]
        as_text = "???" if item.default == "required" else item.default
        assert OmegaConf.create(f"x: {as_text}")._get_node("x")._value() == getattr(value, "name", value), key


def test_choices_offered_are_those_that_there_are():
    groups = reference("simulate").groups
    assert set(groups["dataset"].choices) == {*DATASETS, "custom"}
    assert set(groups["model"].choices) == {*MODELS, "custom"}
    assert set(groups["mechanism"].choices) == {*FAMILIES, "custom"}
    assert set(groups["engine"].choices) == {"local", "ray"}  # `flwr run` chooses deployment
    assert experiments() == tuple(sorted(file.stem for file in (ROOT / "conf" / "experiment").glob("*.yaml")))


OFFERED = [
    item for item in reference("simulate").settings if item.choices and not item.type.startswith("tuple")
]


@pytest.mark.parametrize("item", OFFERED, ids=lambda item: item.key)
def test_every_value_offered_is_taken(item):
    choice = [f"{item.group}={item.of[0]}"] if item.of else []
    if item.key.removeprefix("population.") in FOR_DEPLOYMENTS:
        choice.append("engine=deployment")
    for value in item.choices:
        assert reduce(getattr, item.key.split("."), composed(*choice, f"{item.key}={value}")) == value


def test_the_site_has_a_row_for_every_key(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    page = tool("pages").settings_page()
    assert all(f"\n## {command}\n" in page for command in SETTINGS)
    for item in reference("simulate").settings:
        assert f"\n| `{item.key}` | {item.meaning.replace('|', chr(92) + '|')} |" in page
