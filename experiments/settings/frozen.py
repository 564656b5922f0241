"""Frozen settings, and the mutable schema that Hydra needs of them.

Settings are declared once, as frozen dataclasses. Hydra can override a mutable structured configuration only, so
`derive_schema` derives one with the same names, types and defaults; `freeze` turns what was composed with it back into
the frozen class. Lists become tuples on the way. Checks stand in each class's `__post_init__`.
"""

import types
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import MISSING as NO_DEFAULT, Field, field, fields, is_dataclass, make_dataclass
from difflib import get_close_matches
from enum import Enum
from inspect import get_annotations
from typing import Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from experiments.settings.keys import keyed
from fedmf.errors import SettingError

T = TypeVar("T")
_SCHEMAS: dict[type, type] = {}  # one for each class: Hydra compares them by identity


class Option(NamedTuple):
    """A choice of a group: the class of its settings, and a noun phrase that says what it is."""

    settings: type
    means: str


class Choice:
    """Base of settings whose keys depend on the choice made as GROUP=NAME; `name` is the choice, or an import path.

    `options` are the choices by name. In a schema such a group is open; the choice brings the schema that holds.
    """

    options: ClassVar[Mapping[str, Option]]


def derive_schema(settings: type) -> type:
    """Return the mutable dataclass with the fields and defaults of the frozen dataclass `settings`.

    A field without a default is mandatory: `???` until an override gives it.
    """
    if settings not in _SCHEMAS:
        _SCHEMAS[settings] = _derived(settings)
    return _SCHEMAS[settings]


def _derived(settings: type) -> type:
    hints = get_type_hints(settings)
    bases = [
        base for base in settings.__bases__ if is_dataclass(base)
    ]  # a choice may take a general one's place
    own = get_annotations(settings)
    inherited = {item.name for base in bases for item in fields(base)} - set(own)
    entries = [
        (item.name, _schema_type(hints[item.name]), _schema_field(item))
        for item in fields(settings)
        if item.name not in inherited
    ]
    schemas = tuple(derive_schema(base) for base in bases)
    return make_dataclass(settings.__name__, entries, bases=schemas, namespace={"__frozen__": settings})


def freeze(config: DictConfig, settings: type[T]) -> T:
    """Return `config`, composed with the schema of `settings`, as the frozen object.

    Raises `SettingError` for a key that is no setting and for whatever the settings refuse, and
    `MissingMandatoryValue` for a setting that nothing gave.
    """
    refuse_unknown(config, settings)
    return _frozen(config, settings)


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


def refuse_unknown(config: DictConfig, settings: type) -> None:
    """Raise `SettingError` for a key that was added with + and that `settings` does not have."""
    for key, names in _unknown(config, settings):
        near = get_close_matches(key.rpartition(".")[2], names, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise SettingError(f"{key} is no setting of this command{meant} --help lists all of them.")


def _unknown(config: DictConfig, settings: type, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield keys that the settings do not have, each with those that they have in its place."""
    hints = get_type_hints(settings)
    for key in config:
        if key not in hints:
            yield f"{prefix}{key!s}", list(hints)
        elif (group := group_of(hints[key])) and isinstance(config._get_node(key), DictConfig):
            yield from _unknown(config[key], _chosen(config[key], group), f"{prefix}{key!s}.")


def _frozen(config: DictConfig, settings: type[T]) -> T:
    """Return the frozen object; what its checks refuse is said with the keys of its group."""
    hints = get_type_hints(settings)
    values = {item.name: _value(config, item.name, hints[item.name]) for item in fields(settings)}  # type: ignore[arg-type]
    group = config._get_full_key(None)
    if issubclass(settings, Choice):
        _refuse_other_choice(group, settings, values["name"])
    with keyed(group, settings) if group else nullcontext():
        return settings(**values)


def _refuse_other_choice(group: str, settings: type[Choice], name: str) -> None:
    """Raise `SettingError` for a name whose settings are not these: a choice is made as GROUP=NAME."""
    if not name:  # those of a run, in `evaluate`
        return
    option = settings.options.get("custom" if ":" in name else name)
    if option is None or option.settings is not settings or name == "custom":
        raise SettingError(
            f"{group}.name is {name!r}; it is chosen as {group}=NAME, one of {', '.join(settings.options)}."
        )


def _value(config: DictConfig, name: str, hint: Any) -> Any:
    """Return the value at `name` as the type that `hint` asks for."""
    if OmegaConf.is_missing(config, name):
        key = config._get_full_key(name)
        raise MissingMandatoryValue(f"{key} is missing; give it as {key}=VALUE.")
    value = config[name]
    group = group_of(hint)
    if group and isinstance(value, DictConfig):
        return _frozen(value, _chosen(value, group))
    if isinstance(value, ListConfig):
        return tuple(value)  # of plain values
    return OmegaConf.to_container(value, resolve=True) if isinstance(value, DictConfig) else value


def _chosen(config: DictConfig, group: type) -> type:
    """Return the frozen class of a composed group: of an open one that of the choice which was made."""
    return getattr(OmegaConf.get_type(config), "__frozen__", group) if issubclass(group, Choice) else group


def group_of(hint: Any) -> type | None:
    """Return the frozen class that a field of this type holds, or None for a plain value."""
    for part in (hint, *get_args(hint)):
        if isinstance(part, type) and is_dataclass(part):
            return part
    return None


def _schema_type(hint: Any) -> Any:
    """Return the type of a field in the schema: groups mutable, tuples as lists, open groups as anything."""
    if (group := group_of(hint)) is not None:
        return Any if issubclass(group, Choice) else derive_schema(group)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return list[arguments[0]]  # type: ignore[valid-type]
    if any(get_origin(part) is Mapping for part in (hint, *arguments)):
        return Any  # a mapping of one's own: Hydra cannot override one that is null otherwise
    if origin in (Union, types.UnionType):
        return Union[tuple(_schema_type(part) for part in arguments)]  # noqa: UP007  made at run time
    return hint


def _thawed(settings: Any) -> Any:
    """Return frozen settings of plain values as an object of their schema."""
    return derive_schema(type(settings))(**vars(settings))


def _schema_field(item: Field[Any]) -> Any:
    """Return the schema's own field of one of the settings, with the same default."""
    default = item.default
    if default is NO_DEFAULT:
        return field(default=MISSING)
    if is_dataclass(default) and not isinstance(default, type):
        return field(default_factory=lambda: _thawed(default))
    return (
        field(default_factory=lambda: list(default)) if isinstance(default, tuple) else field(default=default)
    )
