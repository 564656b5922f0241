"""The reference of all settings, from the fields of the commands' settings classes, for `--help`, "did you mean" and the site."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import EnumMeta
from functools import cache
from importlib import import_module
from inspect import formatannotation
from pathlib import Path
from typing import get_args, get_type_hints

from experiments.settings.values import Choice, is_group, plain, text_of

PACKAGE = Path(__file__).resolve().parents[1]
CONF = PACKAGE.parent / "conf"
RUN = "simulate"
# The class of each command's settings, below `experiments`.
SETTINGS = {
    RUN: "settings.schema:Settings",
    "audit": "audit.__main__:AuditSettings",
    "compare": "compare:CompareSettings",
    "datasets": "datasets:DatasetsSettings",
    "deploy_demo": "deploy_demo:DeployDemoSettings",
    "evaluate": "evaluate:EvaluateSettings",
    "export": "export:ExportSettings",
    "mechanisms": "mechanisms:MechanismsSettings",
    "node_check": "deployment.node:NodeSettings",
    "plan": "settings.figures:PlanSettings",
    "report": "report:ReportSettings",
    "runs": "runs:RunsSettings",
    "vocabulary": "vocabulary:VocabularySettings",
}
NOT_SIMULATED = ("deployment",)  # choices that `flwr run` makes by itself, and no user


@dataclass(frozen=True)
class Setting:
    """One setting; `of` are the choices of its group that have it so, none: all."""

    key: str
    meaning: str
    type: str
    choices: tuple[str, ...]
    default: str
    of: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """The group that it is in, "" for none."""
        return self.key.rpartition(".")[0]

    def is_of(self, choice: str | None) -> bool:
        """Return whether it is there with this choice of its group."""
        return not self.of or choice in self.of


@dataclass(frozen=True)
class Group:
    """A group of settings: its description, and its choices with their descriptions; the `default` one, None without choices."""

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
        return tuple(dict.fromkeys(setting.key for setting in self.settings))


@cache
def reference(command: str) -> Reference:
    """Return the reference of a command; raises `KeyError` for an unknown one."""
    settings = settings_of(command)
    hints, groups = get_type_hints(settings), {}
    found = list(_plain_settings(settings, ""))
    for item in fields(settings):
        name, group = item.name, hints[item.name]
        if not is_group(group):
            continue
        chosen, choices = None, {}
        if issubclass(group, Choice):
            chosen = item.metadata["chosen"] or "null"
            choices = {key: one.means for key, one in group.options.items() if key not in NOT_SIMULATED}
            found += _of_choices(name, group)
        else:
            found += _plain_settings(group, f"{name}.", item.default)
        groups[name] = Group(item.metadata["means"], chosen, choices)
    return Reference(tuple(found), groups)


def settings_of(command: str) -> type:
    """Return the frozen dataclass of a command's settings."""
    module, _, name = SETTINGS[command].partition(":")
    settings: type = getattr(import_module(f"experiments.{module}"), name)
    return settings


def experiments(folders: Iterable[Path] = ()) -> tuple[str, ...]:
    """Return the published runs whose settings +experiment=NAME takes, with those in `folders` of the user's."""
    files = (file for folder in (CONF, *folders) for file in (folder / "experiment").glob("*.yaml"))
    return tuple(sorted({file.stem for file in files}))


def called(command: str) -> str:
    """Return how a command is called: as `fedmf NAME`, or as this process was, `python -m experiments.NAME`."""
    is_module = Path(sys.argv[0]).resolve().is_relative_to(PACKAGE)
    return f"python -m experiments.{command}" if is_module else f"fedmf {command}"


def _of_choices(group: str, base: type[Choice]) -> Iterator[Setting]:
    """Yield the settings of a group with choices; a setting that several choices share is yielded once and names them."""
    found: dict[Setting, tuple[str, ...]] = {}
    for choice, option in base.options.items():
        for item in _plain_settings(option.settings, f"{group}."):
            # A choice is made by its name: only custom code has a name to give.
            if choice == "custom" or item.key != f"{group}.name":
                found[item] = (*found.get(item, ()), choice)
    for item, of in found.items():
        yield replace(item, of=() if of == tuple(base.options) else of)


def _plain_settings(settings: type, prefix: str, default: object = None) -> Iterator[Setting]:
    """Yield the fields of a class that are no groups; `default` is an object of it whose values are the defaults."""
    hints = get_type_hints(settings)
    for item in fields(settings):
        hint = hints[item.name]
        if is_group(hint):
            continue
        value = getattr(default, item.name) if is_dataclass(default) else item.default
        shown = "required" if value is MISSING else text_of(plain(value))
        choices, kind = item.metadata["choices"], formatannotation(hint).replace("None", "null")
        for part in (hint, *get_args(hint)):
            choices_of_part = part if isinstance(part, EnumMeta) else get_args(part)
            if offered := [value for value in choices_of_part if isinstance(value, str)]:
                choices, kind = tuple(offered), "choice"
        kind = kind.replace("collections.abc.", "").replace("typing.", "")
        yield Setting(f"{prefix}{item.name}", item.metadata["means"], kind, choices, shown)
