"""What is known of every setting without importing what it sets: reference.json, which docs/site_tools/settings.py writes."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
DATA = Path(__file__).with_name("reference.json")
RUN = "simulate"
CONF = PACKAGE.parent / "conf"


@dataclass(frozen=True)
class Setting:
    """One setting as reference.json has it; `of` are the choices of its group that have it so, none: all."""

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
    """A group of settings: what it is, and its choices with their sentences; the `default` one, None without choices."""

    about: str
    default: str | None
    choices: Mapping[str, str]


@dataclass(frozen=True)
class Reference:
    """All settings of a command, with those of its groups, in the order of the documents."""

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
    known = json.loads(DATA.read_text(encoding="utf-8"))
    found = known[command]
    settings = [_setting(entry) for entry in found["keys"]]
    groups = {}
    for name, entry in found["groups"].items():
        shared = known[entry["of"]] if "of" in entry else found
        about = shared["groups"][name]
        groups[name] = Group(about["about"], entry["default"], about["choices"])
        if "of" in entry:
            settings += [_setting(row) for row in shared["keys"] if row["key"].startswith(f"{name}.")]
    return Reference(tuple(settings), groups)


def commands() -> tuple[str, ...]:
    """Return the commands that have settings."""
    return tuple(json.loads(DATA.read_text(encoding="utf-8")))


def experiments() -> tuple[str, ...]:
    """Return the published runs whose settings +experiment=NAME takes."""
    return choices_in_conf("experiment")


def choices_in_conf(group: str) -> tuple[str, ...]:
    """Return all choices of a group, with those that only `flwr run` makes: what works, but is not offered."""
    return tuple(sorted(file.stem for file in (CONF / group).glob("*.yaml")))


def called(command: str) -> str:
    """Return how a command is called: as `fedmf NAME`, or as this process was, `python -m experiments.NAME`."""
    is_module = Path(sys.argv[0]).resolve().is_relative_to(PACKAGE)
    return f"python -m experiments.{command}" if is_module else f"fedmf {command}"


def _setting(entry: Mapping[str, Any]) -> Setting:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    return Setting(**values)
