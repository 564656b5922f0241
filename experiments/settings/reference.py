"""What is known of every setting: the fields of its command's settings class, as `--help`, "did you mean" and the site say it."""

import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from experiments.settings.values import Choice, group_of

PACKAGE = Path(__file__).resolve().parents[1]
CONF = PACKAGE.parent / "conf"
RUN = "simulate"
SETTINGS = {
    RUN: "settings.schema:Settings",
    "audit": "settings.commands:AuditSettings",
    "benchmark": "benchmark.__main__:BenchmarkSettings",
    "certificates": "certificates:CertificatesSettings",
    "compare": "compare:CompareSettings",
    "datasets": "settings.commands:DatasetsSettings",
    "deploy_demo": "settings.commands:DeployDemoSettings",
    "evaluate": "settings.commands:EvaluateSettings",
    "export": "settings.commands:ExportSettings",
    "mechanisms": "mechanisms:MechanismsSettings",
    "node": "deployment.warm_node:NodeCommandSettings",
    "node_check": "deployment.node:NodeSettings",
    "nodes": "nodes:NodesSettings",
    "plan": "plan:PlanSettings",
    "proxy": "proxy:ProxySettings",
    "report": "report:ReportSettings",
    "reproduce": "reproduce.__main__:ReproduceSettings",
    "server": "deployment.warm_server:ServerCommandSettings",
    "soak": "soak.__main__:SoakSettings",
    "vocabulary": "vocabulary:VocabularySettings",
    "wipe": "wipe:WipeSettings",
}
"""The class of each command's settings, below `experiments`."""
NOT_SIMULATED = ("deployment",)  # choices that `flwr run` makes by itself, and no user

_TYPES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    NoneType: "null",
    Mapping: "mapping",
}
_LISTS = {str: "list of texts", float: "list of numbers", int: "list of whole numbers"}


@dataclass(frozen=True)
class Setting:
    """One setting; `of` are the choices of its group that have it so, none: all."""

    key: str
    of: tuple[str, ...]
    meaning: str
    type: str
    choices: tuple[str, ...]
    default: str

    @property
    def group(self) -> str:
        """The group that it is in, "" for none."""
        return self.key.rpartition(".")[0]

    def is_of(self, choice: str | None) -> bool:
        """Say whether it is there with this choice of its group."""
        return not self.of or choice in self.of


@dataclass(frozen=True)
class Group:
    """A group of settings: what it is, and its choices with their phrases; the `default` one, None without choices."""

    about: str
    default: str | None
    choices: Mapping[str, str]


@dataclass(frozen=True)
class Reference:
    """All settings of a command, with those of its groups, in the order of their fields."""

    settings: tuple[Setting, ...]
    groups: Mapping[str, Group]

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key, once."""
        return tuple(dict.fromkeys(setting.key for setting in self.settings))

    def of_key(self, key: str) -> list[Setting]:
        """Return what is known of a key: once for each kind of choice that has it another way."""
        return [setting for setting in self.settings if setting.key == key]


@cache
def reference(command: str) -> Reference:
    """Return what is known of a command; raises `KeyError` for one that is none."""
    settings = settings_of(command)
    hints, found, groups = get_type_hints(settings), [], {}
    for item in fields(settings):
        group = group_of(hints[item.name])
        if group is None:
            found.append(_setting(item.name, item, hints[item.name], item.default))
        elif issubclass(group, Choice):
            groups[item.name] = Group(
                item.metadata["means"], item.metadata["chosen"] or "null", _choices(group)
            )
            found += _of_choices(item.name, group)
        else:
            groups[item.name] = Group(item.metadata["means"], None, {})
            found += _of_group(item.name, group, item.default)
    return Reference(tuple(found), groups)


def settings_of(command: str) -> type:
    """Return the frozen dataclass of a command's settings."""
    module, _, name = SETTINGS[command].partition(":")
    settings: type = getattr(import_module(f"experiments.{module}"), name)
    return settings


def experiments() -> tuple[str, ...]:
    """Return the published runs whose settings +experiment=NAME takes."""
    return tuple(sorted(file.stem for file in (CONF / "experiment").glob("*.yaml")))


def called(command: str) -> str:
    """Return how a command is called: as `fedmf NAME`, or as this process was, `python -m experiments.NAME`."""
    is_module = Path(sys.argv[0]).resolve().is_relative_to(PACKAGE)
    return f"python -m experiments.{command}" if is_module else f"fedmf {command}"


def _choices(group: type[Choice]) -> dict[str, str]:
    return {name: option.means for name, option in group.options.items() if name not in NOT_SIMULATED}


def _of_choices(group: str, base: type[Choice]) -> list[Setting]:
    """Return the settings of a group with choices; what several choices have alike is one setting, which names them."""
    found: dict[Setting, tuple[str, ...]] = {}
    for choice, option in base.options.items():
        for item in _of_group(group, option.settings):
            # A choice is made by its name: only code of one's own has a name to give.
            if choice == "custom" or item.key != f"{group}.name":
                found[item] = (*found.get(item, ()), choice)
    everywhere = tuple(base.options)
    told = [replace(item, of=() if of == everywhere else of) for item, of in found.items()]
    keys = list(dict.fromkeys(item.key for item in told))
    return sorted(told, key=lambda item: (bool(item.of), keys.index(item.key)))


def _of_group(group: str, settings: type, default: object = None) -> Iterator[Setting]:
    """Yield the settings of a class; `default` is an object of it whose values stand in place of the fields' defaults."""
    hints = get_type_hints(settings)
    for item in fields(settings):
        value = getattr(default, item.name) if is_dataclass(default) else item.default
        yield _setting(f"{group}.{item.name}", item, hints[item.name], value)


def _setting(key: str, item: Field[Any], hint: Any, default: object) -> Setting:
    parts = (hint, *get_args(hint))
    enums = [part for part in parts if isinstance(part, type) and issubclass(part, Enum)]
    choices = tuple(one.name for one in enums[0]) if enums else item.metadata["choices"]
    shown = "required" if default is MISSING else _as_yaml(default)
    return Setting(key, (), item.metadata["means"], type_name(hint, choices), choices, shown)


def type_name(hint: Any, choices: Collection[str]) -> str:
    """Return a type in words.

    >>> type_name(tuple[str, ...] | None, ()), type_name(int, ())
    ('list of texts or null', 'whole number')
    """
    words = []
    for part in get_args(hint) if get_origin(hint) is UnionType else (hint,):
        kind = get_origin(part) or part
        if kind is tuple:
            words.append(_LISTS[get_args(part)[0]])
        else:
            words.append("choice" if choices and kind is not NoneType else _TYPES[kind])
    return " or ".join(words)


def _as_yaml(value: object) -> str:
    """Return a default as it would be typed."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_as_yaml, value))}]"
    return yaml.safe_dump(value.name if isinstance(value, Enum) else value).splitlines()[0]
