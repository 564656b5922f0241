"""The reference of all settings: `python docs/site_tools/settings.py` writes it for people and for `--help`.

Sources, each for one thing: what a key means is its comment in conf/; its type and its default without conf/ are those
of the frozen dataclass; its choices are the library's tuples (`CHOICES`) or the files of conf/GROUP. It writes docs/settings.md
and experiments/settings/reference.json, which `--help` and every "did you mean" read, so that neither imports the classes. A test holds both to be what this gives.
"""

import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # the project is imported from the checkout that this file lies in

# ruff: noqa: E402
import client.settings as training
from client.data import by_user_text, partitioners, stackoverflow
from client.metric_names import METRICS
from experiments.deployment.certificate_folder import RENEWALS
from experiments.reproduce import NAMES
from experiments.run_files.model_files import FORMATS
from experiments.settings.compose import choices_of
from fedmf import choices
from fedmf.mechanisms import FAMILIES

CONF, PAGE = ROOT / "conf", ROOT / "docs" / "settings.md"
DATA = ROOT / "experiments" / "settings" / "reference.json"
RUN = "simulate"
NOT_SIMULATED = {"engine": ("deployment",)}  # choices that `flwr run` makes by itself, and no user

CHOICES: Mapping[str, Collection[str]] = {
    "compression.rotation": choices.ROTATIONS,
    "compression.value_type": choices.VALUE_TYPES,
    "privacy.adjacency": choices.ADJACENCIES,
    "privacy.accountant": choices.ACCOUNTANTS,
    "privacy.geometry": choices.GEOMETRIES,
    "optimizer.schedule": choices.SCHEDULES,
    "client.device": training.DEVICES,
    "client.optimizer": training.OPTIMIZERS,
    "client.loss": training.LOSSES,
    "client.autocast": training.AUTOCASTS,
    "metrics": METRICS,
    "dataset.level": by_user_text.LEVELS,
    "dataset.test": stackoverflow.TESTS,
    "dataset.partitioner": tuple(partitioners.SHORT),
    "rotation": choices.ROTATIONS,
    "adjacency": choices.ADJACENCIES,
    "accountant": choices.ACCOUNTANTS,
    "geometry": choices.GEOMETRIES,
    "schedule": choices.SCHEDULES,
    "families": FAMILIES,
    "format": FORMATS,
    "mechanisms": FAMILIES,
    "reproduce name": NAMES,
    "level": by_user_text.LEVELS,
    "renew": RENEWALS,
}
"""Choices of keys that are texts or lists of texts, by the name of the key, behind that of a command where it has them alone."""

TYPES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    NoneType: "null",
    dict: "mapping",
    Any: "text or list of texts",  # a union with a list is more than structured settings can say
}
_KEY = re.compile(r"^(?P<indent> *)(?P<key>\w+):(?P<value>[^#]*?)(?: # (?P<comment>.*))?$")
_UNSET = re.compile(r"^# (?P<key>\w+)(?:: (?P<comment>.*))?$")  # a key whose default is the library's
_GROUP = re.compile(r"^  - /?(?P<group>\w+): (?P<choice>\w+)(?: # (?P<comment>.*))?$")

Row = dict[str, Any]


def reference() -> dict[str, Any]:
    """Return {command: its groups and keys}, ready for JSON; `ValueError` for a key without sentence."""
    names = sorted(file.stem for file in CONF.glob("*.yaml") if file.stem != "config")
    return {RUN: of_command("config", RUN)} | {name: of_command(name, name) for name in names}


def of_command(conf: str, name: str) -> dict[str, Any]:
    """Return {"groups": {group: what it is and its choices}, "keys": rows} of the command `name` with conf/`conf`.yaml.

    A group whose choices are those of simulate stands there only by its name.
    """
    settings = settings_of(name)
    text = (CONF / f"{conf}.yaml").read_text()
    written, groups, rows = parsed(text), {}, []
    chosen = {found["group"]: found for line in text.splitlines() if (found := _GROUP.match(line))}
    hints = get_type_hints(settings)
    for item in fields(settings):
        group = group_class(hints[item.name])
        if item.name in chosen and conf != "config":
            groups[item.name] = {"of": RUN, "default": chosen[item.name]["choice"]}
        elif item.name in chosen:
            found = chosen[item.name]
            groups[item.name] = described_group(item.name, found["comment"], found["choice"])
            rows += group_rows(item.name, group, settings)
        elif group is not None:
            groups[item.name] = {"about": written[item.name][1], "default": None, "choices": {}}
            rows += rows_of(name, group, f"{item.name}.", written)
        else:
            rows += rows_of(name, settings, "", written, only=item.name)
    for group, found in chosen.items():  # such as `dataset` of a plan, which only says that none is read
        if group not in groups:
            rows.append(row(name, group, found["comment"], "null", "null", ()))
    return {"groups": groups, "keys": rows}


def settings_of(name: str) -> type:
    """Return the frozen dataclass of a command's settings, which its function is given; that of a run for simulate."""
    if name == RUN:
        return import_module("experiments.settings.schema").Settings
    is_package = (ROOT / "experiments" / name).is_dir()
    module = import_module(f"experiments.{name}.__main__" if is_package else f"experiments.{name}")
    return get_type_hints(getattr(module, name))["settings"]


def described_group(group: str, about: str | None, default: str) -> dict[str, Any]:
    """Return what a group of conf/ is: its sentence, and its choices with theirs, the comment behind their name."""
    if about is None:
        raise ValueError(
            f"the group {group} has no sentence; give it one behind its line in conf/config.yaml"
        )
    files = sorted((CONF / group).glob("*.yaml"), key=lambda file: (file.stem != default, file.stem))
    files = [file for file in files if file.stem not in NOT_SIMULATED.get(group, ())]
    about_choices = {file.stem: parsed(file.read_text()).get("name", ("", None))[1] for file in files}
    if list(about_choices) == ["default"]:
        return {"about": about, "default": None, "choices": {}}
    for choice, sentence in about_choices.items():
        if sentence is None:
            raise ValueError(
                f"{group}={choice} has no sentence; give it one behind `name:` in conf/{group}/{choice}.yaml"
            )
    return {"about": about, "default": default, "choices": about_choices}


def group_rows(group: str, base: type | None, settings: type) -> list[Row]:
    """Return the rows of a group of a run; keys that several choices have alike are one row, which names them."""
    assert base is not None
    classes = choices_of(settings).get(group, {})
    found: list[Row] = []
    files = sorted((CONF / group).glob("*.yaml"))
    for file in files:
        written = {f"{group}.{key}": value for key, value in parsed(file.read_text()).items()}
        for new in rows_of(RUN, classes.get(file.stem, base), f"{group}.", written, in_group=file.stem):
            same = next((old for old in found if {**old, "of": new["of"]} == new), None)
            if same is None:
                found.append(new)
            else:
                same["of"] += new["of"]
    everywhere = {file.stem for file in files}
    names = list(dict.fromkeys(item["key"] for item in found))
    for item in found:
        item["of"] = [] if set(item["of"]) == everywhere else item["of"]
    return sorted(found, key=lambda item: (bool(item["of"]), names.index(item["key"])))


def rows_of(
    command: str,
    settings: type,
    prefix: str,
    written: Mapping[str, tuple[str, str | None]],
    *,
    only: str | None = None,
    in_group: str | None = None,
) -> Iterator[Row]:
    """Yield the rows of a dataclass's fields. A choice is made by its file: only code of one's own has a name to give."""
    hints = get_type_hints(settings)
    for item in fields(settings):
        key = f"{prefix}{item.name}"
        if only not in (None, item.name):
            continue
        value, comment = written.get(key, ("", None))
        if in_group not in (None, "custom") and item.name == "name":
            continue
        default = value or as_yaml(item.default)
        names = listed(command, key, hints[item.name])
        yield row(command, key, comment, type_name(hints[item.name], names), default, names, in_group)


def row(
    command: str,
    key: str,
    comment: str | None,
    kind: str,
    default: str,
    names: Collection[str],
    in_group: str | None = None,
) -> Row:
    """Return one row. Raises `ValueError` where the sentence is missing, or the comment lists other choices."""
    where = f"{key} of {command}" + (
        f" ({key.split('.')[0]}={in_group})" if in_group not in (None, "default") else ""
    )
    said, sentence = split_choices(comment or "")
    if not sentence:
        raise ValueError(f"{where} has no sentence; say in its comment in conf/ what it means")
    if said and sorted(said) != sorted(names):
        raise ValueError(
            f"{where} is said to be {' | '.join(said)}, but the choices are {', '.join(names) or 'free'}"
        )
    default = "required" if default == "???" else default
    return {"key": key, "of": [in_group] if in_group else [], "meaning": sentence, "type": kind,
            "choices": list(names), "default": default}  # fmt: skip


def parsed(text: str) -> dict[str, tuple[str, str | None]]:
    """Return {key: (value as written, comment)} of a YAML file, keys of nested mappings joined by dots.

    >>> parsed("a: 1 # one\\ngroup: # of two\\n  b: x\\n# c: unset")
    {'a': ('1', 'one'), 'group': ('', 'of two'), 'group.b': ('x', None), 'c': ('', 'unset')}
    """
    found: dict[str, tuple[str, str | None]] = {}
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        if unset := _UNSET.match(line):
            found[unset["key"]] = ("", unset["comment"])
        elif match := _KEY.match(line):
            while parents and parents[-1][0] >= len(match["indent"]):
                parents.pop()
            parents.append((len(match["indent"]), match["key"]))
            found[".".join(key for _, key in parents)] = (match["value"].strip(), match["comment"])
    return found


def split_choices(comment: str) -> tuple[list[str], str]:
    """Return the choices that a comment begins with, and the sentence behind them.

    >>> split_choices("text | json: what it prints"), split_choices("public: all draws")
    ((['text', 'json'], 'what it prints'), ([], 'public: all draws'))
    """
    found = re.match(r"(\w+(?: \| \w+)+)(?:[:;,] | |$)", comment)
    return (found[1].split(" | "), comment[found.end() :]) if found else ([], comment)


def group_class(hint: Any) -> type | None:
    """Return the dataclass of a group, None for a plain value."""
    return next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)  # type: ignore[arg-type]


def listed(command: str, key: str, hint: Any) -> list[str]:
    """Return the choices of a key; none: free."""
    kinds = [part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, Enum)]
    return (
        [item.name for item in kinds[0]]
        if kinds
        else list(CHOICES.get(f"{command} {key}", CHOICES.get(key, ())))
    )


def type_name(hint: Any, names: Collection[str]) -> str:
    """Return a type in words.

    >>> type_name(tuple[str, ...] | None, ()), type_name(int, ())
    ('list of texts or null', 'whole number')
    """
    parts = get_args(hint) if NoneType in get_args(hint) else (hint,)
    words = []
    for part in parts:
        origin = get_origin(part) or part
        if origin is tuple:
            words.append(
                {str: "list of texts", float: "list of numbers", int: "list of whole numbers"}[
                    get_args(part)[0]
                ]
            )
        else:
            kind = dict if origin is Mapping or get_origin(part) is not None else origin
            words.append("choice" if names and kind is not NoneType else TYPES[kind])
    return " or ".join(words)


def as_yaml(value: object) -> str:
    """Return a default of a dataclass as it would be typed."""
    if value is MISSING:
        return "???"
    return "null" if value is None else yaml.safe_dump(value).splitlines()[0]


def page(document: Mapping[str, Any]) -> str:
    """Return docs/settings.md."""
    parts = [INTRODUCTION]
    for command, found in document.items():
        parts.append(f"## {command}\n")
        groups = {key.rpartition(".")[0] for key in (row["key"] for row in found["keys"])}
        if alone := [item for item in found["keys"] if "." not in item["key"]]:
            parts.append(table(alone, ()))
        for group, about in found["groups"].items():
            if about.get("of"):
                parts.append(
                    f"`{group}` ({about['default']}) and its keys: those of [{about['of']}](#{about['of']}-{group}).\n"
                )
            else:
                parts.append(
                    f"### {command}: {group} {{ #{command}-{group} }}\n\n{capital(about['about'])}.\n"
                )
                if about["choices"]:
                    parts.append("".join(f"- `{group}={name}`{' (default)' if name == about['default'] else ''}: {said}\n"
                                         for name, said in about["choices"].items()))  # fmt: skip
                if group in groups:
                    rows = [item for item in found["keys"] if item["key"].startswith(f"{group}.")]
                    parts.append(table(rows, list(about["choices"])))
    return "\n".join(parts)


def table(rows: Collection[Row], of_group: Collection[str]) -> str:
    """Return rows as a table of Markdown; `of_group` are the choices of their group."""
    heading = ["Key", "Meaning", "Type", "Default", *(["With"] if of_group else [])]
    lines = [heading, ["---"] * len(heading)]
    for item in rows:
        choices = " (" + ", ".join(f"`{name}`" for name in item["choices"]) + ")" if item["choices"] else ""
        with_choices = [", ".join(item["of"]) or "all"] if of_group else []
        lines.append([f"`{item['key']}`", item["meaning"], item["type"] + choices, f"`{item['default']}`",
                      *with_choices])  # fmt: skip
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


INTRODUCTION = """\
# Settings

<!-- Written by `make settings` from the comments in conf/ and the classes of the settings. Do not edit. -->

Every key of every command. A setting is given as `key=value`, a choice of a group as `group=choice`, a list as
`"key=[a,b]"`; `null` is the value of nothing. `fedmf COMMAND --help` prints the same, `fedmf simulate --help model` one group and
`fedmf simulate --help model.hidden` one key. `fedmf simulate -m seed=1,2,3` is a sweep, and `+experiment=NAME` takes the settings of
a published run, a file of `conf/experiment`.
"""


def main() -> None:
    """Write both files."""
    document = reference()
    DATA.write_text(as_json(document))
    PAGE.write_text(page(document))


def as_json(document: Mapping[str, Any]) -> str:
    """Return the text of reference.json: one line a key, so that branches merge."""
    commands = []
    for command, found in document.items():
        keys = ",\n   ".join(json.dumps(item, ensure_ascii=False) for item in found["keys"])
        groups = ",\n   ".join(
            f"{json.dumps(name)}: {json.dumps(about, ensure_ascii=False)}"
            for name, about in found["groups"].items()
        )
        commands.append(
            f' {json.dumps(command)}: {{\n  "groups": {{\n   {groups}\n  }},\n  "keys": [\n   {keys}\n  ]\n }}'
        )
    return "{\n" + ",\n".join(commands) + "\n}\n"


if __name__ == "__main__":
    main()
