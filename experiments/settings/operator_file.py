"""An operator's settings as a YAML file, as `fedmf server config=FILE` and `fedmf node config=FILE` read it.

Its keys are those of the command, nested or written with dots:

    superlink: fedmf.example.org:8443
    dataset: {name: by_user_npz, path: /srv/fedmf/people.npz}   # or dataset: by_user_npz
    dataset.classes: 10

A file becomes overrides, which come before those that were typed; what a command lacks, or does not know, its composition
says.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from experiments.settings.compose import given_values
from experiments.settings.overrides import GROUPS, as_overrides, text_of
from experiments.settings.recorded import refuse_odd_values
from fedmf.errors import SettingError

KEY = "config"  # of the commands that read such a file
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")  # a key, with dots
# A NUL, and halves of a character, but for those by which Python names a file that is not in UTF-8.
_IN_NO_PATH = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


def overrides_of(file: Path) -> list[str]:
    """Return what a file says, as overrides of Hydra. Raises `SettingError` for one that cannot be read so."""
    document = _document(file)
    given: dict[str, str] = {}
    for key, value in document.items():
        for override in _overrides(file, key, value):
            name = override.partition("=")[0]
            if odd := _IN_NO_PATH.search(override):
                raise SettingError(
                    f"{file} gives {name} a value with the character {odd[0]!a}, which no path or text may hold; leave it out."
                )
            if name in given:
                raise SettingError(f"{file} gives {name} twice; write it once, nested or with dots.")
            given[name] = override
    return list(given.values())


def with_file(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command with those of the file that `config=FILE` names before them.

    What was typed wins: of a group whose choice was typed, the file's settings are left out, unless it chooses the same.
    """
    file = named_file(arguments)
    if file is None:
        return list(arguments)
    typed = dict(argument.partition("=")[::2] for argument in arguments)
    of_file = overrides_of(file)
    chosen = {key: value for key, _, value in (override.partition("=") for override in of_file)}
    replaced = {
        group
        for group, choice in typed.items()
        if group in GROUPS and group in chosen and chosen[group] != choice
    }
    return [
        *(override for override in of_file if re.split(r"[.=]", override, maxsplit=1)[0] not in replaced),
        *arguments,
    ]


def without(keys: Collection[str], arguments: Sequence[str]) -> list[str]:
    """Return the arguments but for those that give one of `keys`."""
    return [argument for argument in arguments if argument.partition("=")[0].lstrip("+") not in keys]


def named_file(arguments: Sequence[str]) -> Path | None:
    """Return the file that `config=FILE` names among the arguments, None for none."""
    named = [argument for argument in arguments if argument.partition("=")[0] == KEY and "=" in argument]
    if len(named) > 1:
        raise SettingError(f"{KEY} is given {len(named)} times; a command reads one file.")
    value = given_values(named).get(KEY)
    return None if value is None else Path(str(value))


@contextmanager
def naming_file(file: Path | None) -> Iterator[None]:
    """Let a `SettingError` of the block say which file settings were read from."""
    try:
        yield
    except SettingError as error:
        if file is not None:
            error.args = (f"{error} (Settings are those of {file} and of the command line.)",)
        raise


class _Loader(yaml.SafeLoader):
    """YAML in which a key stands once, and a date is a text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. Raises `ConstructorError` for a key that stands twice, where YAML would take the last."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value} stands twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != _TIMESTAMP]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _document(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{KEY} is {file}, which cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise SettingError(f"{KEY} is {file}, which is no text in UTF-8.") from error
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
        raise SettingError(f"{KEY} is {file}, which is not YAML{line}: {error.problem}.") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SettingError(f"{KEY} is {file}, which is not YAML: {error}.") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingError(f"{KEY} is {file}, which holds no settings; it must be lines of KEY: VALUE.")
    try:
        refuse_odd_values(document)
    except ValueError as error:
        raise SettingError(f"{KEY} is {file}, which {error}.") from error
    return document


def _overrides(file: Path, key: str, value: Any) -> Iterator[str]:
    """Yield the overrides of one key of the file."""
    if not _NAME.fullmatch(key):
        raise SettingError(f"{file} holds the key {key!r}; a key is a name, or names with dots between them.")
    if key == KEY:
        raise SettingError(f"{file} holds the key {KEY}; a file names no other.")
    if not isinstance(value, Mapping) or key.endswith("settings"):
        yield f"{key}={text_of(value)}"
        return
    if not value:
        raise SettingError(f"{file} gives {key} no value; {{}} is none.")
    for name in value:
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"{file} holds the key {name!r} below {key}; a key is a name, or names with dots."
            )
    rest = dict(value)
    if key in GROUPS and "name" in rest:
        name = rest.pop("name")
        is_code = ":" in str(name)  # an import path
        yield f"{key}={'custom' if is_code else text_of(name)}"
        if is_code:
            yield f"{key}.name={text_of(name)}"
    yield from as_overrides(rest, f"{key}.")
