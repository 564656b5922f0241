"""Settings as plain values, and plain values as settings.

Settings are frozen dataclasses. Hydra composes plain values; pydantic turns each into the type that its field asks for,
or says why it cannot. What a value may be stands in each class's `__post_init__`.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from experiments.settings.keys import keyed
from fedmf.errors import SettingError

T = TypeVar("T")
GIVEN = "???"
"""Stands for a value that must be given, as Hydra writes it."""


class Option(NamedTuple):
    """A choice of a group: the class of its settings, and a noun phrase that says what it is."""

    settings: type
    means: str


class Choice:
    """Base of settings whose keys depend on the choice made as GROUP=NAME; `name` is the choice, or an import path.

    `options` are the choices by name.
    """

    options: ClassVar[Mapping[str, Option]]


def plain(settings: object) -> Any:
    """Return settings as plain dicts, lists, texts and numbers, in the order of their fields.

    >>> plain((1, None, {"a": ("b",)}))
    [1, None, {'a': ['b']}]
    """
    if is_dataclass(settings) and not isinstance(settings, type):
        return {item.name: plain(getattr(settings, item.name)) for item in fields(settings)}
    if isinstance(settings, Mapping):
        return {key: plain(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [plain(value) for value in settings]
    return settings.name if isinstance(settings, Enum) else settings


def defaults(settings: type, **given: object) -> dict[str, Any]:
    """Return the defaults of `settings` as plain values, with those `given`; what a choice brings is left out."""
    values = {
        item.name: GIVEN if item.default is MISSING else plain(item.default)
        for item in fields(settings)
        if item.default is not MISSING or "chosen" not in item.metadata
    }
    return {**values, **given}


def make(settings: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Return plain `values` as the frozen dataclass `settings`, whose keys begin with `prefix`.

    Raises `SettingError` for a key that there is not or that is missing, a value of another type, and what the settings refuse.
    """
    hints = get_type_hints(settings)
    names = [item.name for item in fields(settings)]  # type: ignore[arg-type]
    if unknown := next((key for key in values if key not in names), None):
        raise SettingError(f"{prefix}{unknown} is no setting of this command; --help lists all of them.")
    made = {name: _made(hints[name], values.get(name, GIVEN), f"{prefix}{name}") for name in names}
    with keyed(prefix.removesuffix("."), settings) if prefix else nullcontext():
        return settings(**made)


def _made(hint: Any, value: Any, key: str) -> Any:
    """Return a plain value of the setting or group `key` as the type `hint`."""
    group = group_of(hint)
    if value == GIVEN:
        raise SettingError(f"{key} is missing; give it as {key}=VALUE.")
    if group is None:
        return value_of(hint, value, key)
    if not isinstance(value, Mapping):
        raise SettingError(f"{key} is a group of settings; give its keys, such as {key}.KEY=VALUE.")
    if value.get("name") == GIVEN:
        raise SettingError(f"{key}.name is missing; give it as {key}.name=VALUE.")
    if issubclass(group, Choice) and value.get("name"):  # "": those of a run, in `evaluate`
        group = _chosen(group, value, key)
    return make(group, value, f"{key}.")


def _chosen(group: type[Choice], values: Mapping[str, Any], key: str) -> type:
    """Return the class of the choice that `values` name. Raises `SettingError` where they are another's, or nobody's."""
    name = str(values.get("name"))
    option = group.options.get("custom" if ":" in name else name)
    if option is None or name == "custom" or {item.name for item in fields(option.settings)} != set(values):
        raise SettingError(
            f"{key}.name is {name!r}; it is chosen as {key}=NAME, one of {', '.join(group.options)}."
        )
    return option.settings


def value_of(hint: Any, value: object, key: str) -> Any:
    """Return a plain value of the setting `key` as the type `hint`. Raises `SettingError` where it is of none."""
    kinds = (hint, *get_args(hint))
    try:
        if isinstance(value, bool) and bool not in kinds:  # of which pydantic would make a number
            raise SettingError(f"{key} is {json.dumps(value)}; it takes neither true nor false.")
        return _adapter(hint).validate_json(json.dumps(value))
    except ValidationError as error:
        why = error.errors()[0]["msg"].replace("Input should", "it should").replace("an object", "a mapping")
        lists = "; lists are given as key=[a,b]" if why.endswith("array") else ""
        shown = "null" if value is None else repr(value)
        raise SettingError(f"{key} is {shown}; {why}{lists}.") from error


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(coerce_numbers_to_str=True))


def group_of(hint: Any) -> Any:
    """Return the frozen dataclass that a field of this type holds, or None for a plain value."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and is_dataclass(part):
            return part
    return None
