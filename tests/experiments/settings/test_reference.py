"""The reference of the settings is what commands take and what --help shows: keys, defaults, choices."""

import re
from functools import reduce

import pytest
from omegaconf import OmegaConf

from experiments.cli.console import PACKAGE, USAGE
from experiments.cli.help import print_help
from experiments.settings import compose
from experiments.settings.reference import SETTINGS, reference, settings_of
from experiments.settings.schema import FOR_DEPLOYMENTS
from runs import composed
from test_site import ROOT


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


OFFERED = [
    item for item in reference("simulate").settings if item.choices and not item.type.startswith("tuple")
]


@pytest.mark.parametrize("item", OFFERED, ids=lambda item: item.key)
def test_a_value_offered_is_taken(item):
    choice = [f"{item.group}={item.of[0]}"] if item.of else []
    if item.key.removeprefix("population.") in FOR_DEPLOYMENTS:
        choice.append("engine=deployment")
    *_, value = item.choices
    assert reduce(getattr, item.key.split("."), composed(*choice, f"{item.key}={value}")) == value


INTERNAL = re.compile(r"_target_|omegaconf|_self_|\?\?\?|dataclass|experiments\.settings", re.IGNORECASE)


@pytest.fixture
def shown(capsys):
    def show(command, *topics):
        print_help(
            command, "Do it: `python -m experiments.plan`.\n\n    fedmf plan epsilon=1", ["--help", *topics]
        )
        return capsys.readouterr().out

    return show


def shows(text, *parts):
    """Return whether the words of all parts are shown: columns tear them apart."""
    return {*" ".join(parts).split()} <= {*text.split()}


@pytest.mark.parametrize("name", SETTINGS)
def test_help_shows_every_key_with_default_and_meaning_in_100_columns_and_a_topic_all_choices(name, shown):
    known, text = reference(name), shown(name)
    assert not INTERNAL.search(text), INTERNAL.search(text)
    assert max(map(len, text.splitlines())) <= 100
    for item in known.settings:
        if not item.group or item.is_of(known.groups[item.group].default):
            assert shows(text, item.meaning), item
            assert item.key in "".join(text.split())
    for group, about in known.groups.items():
        assert shows(text.replace(":", ""), about.about.replace(":", ""))
        topic = shown(name, group)
        for item in known.settings:
            if item.group == group:
                assert all(choice in "".join(topic.split()) for choice in (item.key, *item.choices, *item.of))
