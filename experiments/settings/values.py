"""Settings as plain values, plain values as settings, and as overrides in Hydra's grammar.

Settings are frozen dataclasses. Hydra composes plain values; pydantic turns each into the type that its field asks for,
or explains why it cannot. Each class checks its values in `__post_init__`.

fedmf, server and client name the argument that is wrong ("cohort_size is 0"), because their users have no keys. `keyed`
replaces it by the key that was typed ("population.cohort_size is 0").
"""

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedmf.errors import FedmfError, RunStoppedError, SettingError

T = TypeVar("T")
# Stands for a value that must be given, as Hydra writes it.
GIVEN = "???"
_BARE = re.compile(r"[A-Za-z_][\w./:-]*", re.ASCII)  # text that needs no quotes in an override
_WORDS = ("null", "true", "false", "nan", "inf")  # words with another meaning without quotes
_BEFORE_A_QUOTE = re.compile(r"(\\*)('|$)")
_MOST_SHOWN = 80  # characters of a list in an error
_IN_YAML = {"True": "true", "False": "false", "None": "null"}
Output = Literal["text", "json"]
PRINTED = "output format, a table or one JSON document"
# What a field may state of its values, in its metadata, in pydantic's words.
RANGES = {"at_least": "ge", "above": "gt", "at_most": "le"}


class Option(NamedTuple):
    """A choice of a group: the class of its settings, and a noun phrase that describes it."""

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
    return json.loads(json.dumps(settings, default=asdict))


def finite(document: Any) -> Any:
    """Return `document` with every non-finite float replaced by None.

    >>> finite({"epsilon": float("inf"), "rounds": [1, float("nan")]})
    {'epsilon': None, 'rounds': [1, None]}
    """
    if isinstance(document, dict):
        return {key: finite(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [finite(value) for value in document]
    return None if isinstance(document, float) and not math.isfinite(document) else document


def defaults(settings: type, **given: object) -> dict[str, Any]:
    """Return the defaults of `settings` as plain values, with those `given`, without the defaults of choices."""
    values = {
        item.name: GIVEN if item.default is MISSING else plain(item.default)
        for item in fields(settings)
        if item.default is not MISSING or "chosen" not in item.metadata
    }
    return {**values, **given}


def make(settings: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Return plain `values` as the frozen dataclass `settings`, whose keys begin with `prefix`.

    Raises `SettingError` for an unknown or missing key, a value of another type, or a value out of range.
    """
    hints = get_type_hints(settings)
    names = [item.name for item in fields(settings)]  # type: ignore[arg-type]
    if unknown := next((key for key in values if key not in names), None):
        raise SettingError(f"{prefix}{unknown} is no setting of this command; --help lists all of them.")
    made = {
        item.name: _made(
            _in_range(hints[item.name], item.metadata), values.get(item.name, GIVEN), f"{prefix}{item.name}"
        )
        for item in fields(settings)  # type: ignore[arg-type]
    }
    with keyed(prefix.removesuffix("."), settings) if prefix else nullcontext():
        return settings(**made)


def _made(hint: Any, value: Any, key: str) -> Any:
    if value == GIVEN:
        raise SettingError(f"{key} is missing; give it as {key}=VALUE.")
    if not is_dataclass(hint):
        return value_of(hint, value, key)
    if not isinstance(value, Mapping):
        raise SettingError(f"{key} is a group of settings; give its keys, such as {key}.KEY=VALUE.")
    return make(_chosen(hint, value, key), value, f"{key}.")


def _in_range(hint: Any, metadata: Mapping[str, Any]) -> Any:
    """Return the type `hint` with the range that a field's metadata state, as pydantic checks it."""
    marks = {RANGES[mark]: value for mark, value in metadata.items() if mark in RANGES}
    if marks and float in (hint, *get_args(hint)):
        marks["allow_inf_nan"] = False
    return Annotated[hint, Field(**marks)] if marks else hint


def _chosen(group: Any, values: Mapping[str, Any], key: str) -> Any:
    """Return the class of the choice that `values` name, of a group that has choices."""
    name = str(values.get("name") or "")
    if not issubclass(group, Choice) or not name:  # "": the choice of a run, in `evaluate`
        return group
    option = group.options.get("custom" if ":" in name or name == GIVEN else name)
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
        if isinstance(value, list | dict) and len(shown) > _MOST_SHOWN:  # somebody's data, probably
            shown = f"of type {type(value).__name__}"
        raise SettingError(f"{key} is {shown}; {why}{lists}.") from error


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(coerce_numbers_to_str=True))


def is_group(hint: Any) -> bool:
    """Return whether a field of this type is a group of settings, and no plain value."""
    return is_dataclass(hint)


def at_home(overrides: Sequence[str]) -> list[str]:
    """Return overrides with a value's leading ~ replaced by the home folder; Hydra's grammar has no ~ in a value.

    >>> at_home(["seed=3", "~run.reproducible"])
    ['seed=3', '~run.reproducible']
    """
    return [
        f"{key}{equals}{os.path.expanduser(value)}"
        for key, equals, value in (override.partition("=") for override in overrides)
    ]


def as_overrides(
    settings: Mapping[str, object], prefix: str = "", path_of: Callable[[object], str] = str
) -> Iterator[str]:
    """Yield settings given in Python as overrides; `path_of` names a value that is not text, number, list or mapping.

    >>> list(as_overrides({"seed": 3, "model": {"name": "cnn"}}))
    ['seed=3', 'model.name=cnn']
    """
    for key, value in settings.items():
        if isinstance(value, Mapping) and not key.endswith("settings"):
            yield from as_overrides(value, f"{prefix}{key}.", path_of)
        else:
            yield f"{prefix}{key}={text_of(value, path_of)}"


def text_of(value: object, path_of: Callable[[object], str] = str) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{text_of(item, path_of)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(text_of(item, path_of) for item in value) + "]"
    if isinstance(value, Integral | Real):  # numpy's too
        return repr(int(value) if isinstance(value, Integral) else float(value))
    text = path_of(value)
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # Between quotes a backslash stands for itself, but before a quote and at the end.
    return "'" + _BEFORE_A_QUOTE.sub(lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text) + "'"


@contextmanager
def keyed(group: str, names: Any) -> Iterator[None]:
    """Let every `FedmfError` raised inside name keys of `group`, as `with_key` does.

    The error stays the same object. Also a decorator.
    """
    try:
        yield
    except FedmfError as error:
        error.args = (with_key(str(error), group, names),)
        raise


def with_key(text: str, group: str, names: Any) -> str:
    """Return `text` with the arguments `names`, or the fields of this dataclass, as keys of `group`.

    An argument is one at the beginning, where a value is set, and where the remedy names it.

    >>> with_key("copy is None; set accept=True.", "run", ("copy", "accept"))
    'run.copy is null; set run.accept=true.'
    >>> with_key("a.csv has no user; set user to a column.", "dataset", ("user",))
    'a.csv has no user; set dataset.user to a column.'
    """
    arguments: Collection[str] = getattr(names, "__dataclass_fields__", names)
    name = f"(?:{'|'.join(map(re.escape, arguments)) or '(?!)'})"
    places = rf"^(?={name} )|(?<= )(?={name}=)|(?<=[Ss]et )(?={name} to )|(?<=; )(?={name} must )"
    keyed_text = re.sub(places, f"{group}.", text)
    return re.sub(
        r"(=| is | to )(True|False|None)\b", lambda found: found[1] + _IN_YAML[found[2]], keyed_text
    )


@contextmanager
def advising_to_resume() -> Iterator[None]:
    """Add the way to resume the run to a `RunStoppedError` raised inside. Also a decorator."""
    try:
        yield
    except RunStoppedError as error:
        if "run.resume" not in str(error):
            error.args = (f"{error} Resume with run.resume=true.",)
        raise
