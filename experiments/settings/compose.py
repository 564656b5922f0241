"""Compose a command's settings and overrides with Hydra, as a frozen object; a mistake becomes one sentence."""

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.settings.reference import CONF, RUN, called, reference
from experiments.settings.values import Choice, Option, as_overrides, at_home, defaults, is_group, make
from fedmf.errors import SettingError

T = TypeVar("T")

# Hydra's setting for folders with user-defined files, such as experiment/NAME.yaml.
SEARCHPATH = "hydra.searchpath"
# A key of another choice of its group.
_LACKING = re.compile(r"Could not override '((\w+)\.[\w.]+)'")
# Lines of a message: where Hydra was when it noticed, and advice that would make a typo a setting.
_NOISE = ("To append", "full_key:", "object_type=", "reference_type=", "See https", "Set the env")
# Overrides that leave out the groups that only Hydra's command line uses, which cost time.
_WITHOUT_COMMAND_LINE = [
    f"~hydra/{group}"
    for group in (
        "env",
        "help",
        "hydra_help",
        "hydra_logging",
        "job_logging",
        "launcher",
        "output",
        "sweeper",
    )
]


def compose(
    name: str, overrides: Sequence[str], settings: type[T], recorded: Mapping[str, Any] | None = None
) -> T:
    """Return the defaults of the command `name` with `overrides` applied, as the frozen dataclass `settings`.

    `name` is "config" for those of a run. `recorded` are values in the place of the defaults: those of a run that is resumed.
    Hydra's global state is left as it was. Raises a `FedmfError` for settings that cannot be composed.
    """
    check_keys(name, given_values(overrides), [SEARCHPATH])
    typed = without_choices(overrides, settings, recorded or {})
    return make(settings, composed(name, typed, settings, recorded))


def from_file(file: Path, settings: type, recorded: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the plain values of a run with those of a YAML file, in the place of the defaults or of `recorded` values.

    Groups are mappings, or keys with dots; model: cnn chooses the model as model=cnn does.
    """
    try:
        values = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
        if not isinstance(values, dict):
            raise SettingError("contains no mapping; write settings as KEY: VALUE.")
        overrides = list(_of_file({str(key): value for key, value in values.items()}, settings))
        check_keys("config", given_values(overrides))
        return composed("config", overrides, settings, recorded)
    except (SettingError, yaml.YAMLError, ValueError) as error:
        raise SettingError(f"{file}: {sentence(error)}") from error


def _of_file(values: Mapping[str, Any], settings: type) -> Iterator[str]:
    """Yield nested settings as overrides; `name` of a group makes its choice, an import path the choice custom."""
    for text in as_overrides(values):
        key, _, name = text.partition("=")
        if (group := key.removesuffix(".name")) == key or group not in choices_of(settings):
            yield text
        else:
            yield from [f"{group}=custom", text] if ":" in name else [f"{group}={name}"]


def split(overrides: str) -> list[str]:
    """Return the overrides in a text, split as a shell does. Raises `SettingError` for an open quote."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise SettingError(f"overrides is {overrides!r}, whose quotes are not closed ({error}).") from error


def store_settings(name: str, settings: type, recorded: Mapping[str, Any] | None = None) -> None:
    """Put the settings of a command and all choices of its groups into Hydra's store, as fedmf_NAME and GROUP/CHOICE.

    With `recorded` values in the place of the defaults; those of a group that has choices are its choice "recorded".
    """
    store, values = ConfigStore.instance(), dict(recorded or {})
    chosen = {item.name: item.metadata["chosen"] for item in fields(settings) if "chosen" in item.metadata}
    _store_choices(settings)
    for group in choices_of(settings):
        if group in values:
            store.store(group=group, name="recorded", node=values.pop(group))
            chosen[group] = "recorded"
    node = {
        "defaults": ["_self_", *({group: choice} for group, choice in chosen.items())],
        **defaults(settings),
    }
    store.store(name=f"fedmf_{name}", node=OmegaConf.merge(node, values) if values else node)


@cache  # Hydra's store keeps them as long as the process lives
def _store_choices(settings: type) -> None:
    for group, options in choices_of(settings).items():
        for choice, option in options.items():
            given = {} if choice == "custom" else {"name": choice}
            ConfigStore.instance().store(group=group, name=choice, node=defaults(option.settings, **given))


def choices_of(settings: type) -> dict[str, Mapping[str, Option]]:
    """Return {group: {choice: its settings}} of the groups whose keys depend on the choice."""
    return {
        name: group.options
        for name, group in get_type_hints(settings).items()
        if is_group(group) and issubclass(group, Choice)
    }


def without_choices(overrides: Sequence[str], settings: type, recorded: Mapping[str, Any]) -> list[str]:
    """Return `overrides` without choices that `recorded` values have: they bring no defaults. An import path is custom."""
    names = {group: str(recorded[group]["name"]) for group in choices_of(settings) if group in recorded}
    made = [f"{group}={'custom' if ':' in name else name}" for group, name in names.items()]
    return [text for text in overrides if text not in made]


def composed(
    name: str, overrides: Sequence[str], settings: type, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the plain values from which `compose` makes settings."""
    store_settings(name, settings, recorded)
    of_process = GlobalHydra.instance()
    outer, of_process.hydra = of_process.hydra, None  # of an application that calls us
    try:
        with as_setting_errors(), hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return as_plain(
                hydra.compose(f"fedmf_{name}", overrides=[*_WITHOUT_COMMAND_LINE, *at_home(overrides)])
            )
    finally:
        GlobalHydra.instance().hydra = outer


def as_plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration that Hydra composed as plain values."""
    return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))


def given_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the values of `overrides` by key, for a sweep its text. Raises `SettingError` for one that cannot be parsed, or an option.

    >>> given_values(["+run.extend=2", "model=cnn", "seed=1,2"])
    {'run.extend': 2, 'model': 'cnn', 'seed': '1,2'}
    """
    check_no_flags(overrides)
    with as_setting_errors():
        return {
            one.key_or_group: str(one.input_line).partition("=")[2]
            if one.is_sweep_override()
            else one.value()
            for one in OverridesParser.create().parse_overrides(at_home(overrides))
        }


def is_true(value: object) -> bool:
    """Return whether a value given for a setting that is true or false is true.

    >>> is_true(True), is_true("yes"), is_true("On"), is_true(1), is_true("no"), is_true(None), is_true(0)
    (True, True, True, True, False, False, False)
    """
    return str(value).lower() in ("true", "yes", "on", "y", "1")


def check_keys(name: str, given: Mapping[str, Any], hydras: Iterable[str] = ()) -> None:
    """Raise `SettingError` for a key that the command composed as `name` lacks, and for a choice that is no text.

    `hydras` are the names of Hydra's groups, of which all keys pass.
    """
    command = RUN if name == "config" else name
    known = reference(command)
    passing = (*known.groups, *known.keys, *hydras, "experiment")
    for key, value in given.items():
        is_below = key.startswith(tuple(f"{own}{mark}" for own in (*hydras, *known.keys) for mark in "./"))
        if key.removesuffix(".name") not in passing and not is_below:
            raise SettingError(unknown(command, key))
        if key in known.groups and known.groups[key].choices and not isinstance(value, str | None):
            said = repr(value) if isinstance(value, int | float) else f"of type {type(value).__name__}"
            raise SettingError(
                f"{key} is {said}; it is chosen as {key}=NAME, one of {', '.join(known.groups[key].choices)}."
            )


def unknown(command: str, key: str) -> str:
    """Return that there is no such setting, the nearest one, and where help is.

    >>> unknown("simulate", "epsilon")
    'epsilon is no setting of simulate; did you mean privacy.epsilon? `fedmf simulate --help` lists all of them.'
    """
    known = reference(command)
    names = [*known.groups, *known.keys]
    near = [name for name in names if name.endswith(f".{key}")] or get_close_matches(key, names, cutoff=0.72)
    asked = f"did you mean {near[0]}? " if near else ""
    return f"{key} is no setting of {command}; {asked}`{called(command)} --help` lists all of them."


def check_no_flags(arguments: Sequence[str], allowed: Collection[str] = ()) -> None:
    """Raise `SettingError` for an option such as --seed that is not in `allowed`, and for an argument that is not text."""
    for argument in arguments:
        if not isinstance(argument, str):
            raise SettingError(
                f"An object of type {type(argument).__name__} is no override; give texts such as 'seed=3', or keywords."
            )
        if argument.startswith("-") and argument.partition("=")[0] not in allowed:
            raise SettingError(f"{argument} is no option; settings are given as key=value, without dashes.")


@contextmanager
def as_setting_errors() -> Iterator[None]:
    """Turn an error of Hydra or OmegaConf inside into a `SettingError` of one sentence."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise SettingError(sentence(error)) from error


def sentence(error: BaseException) -> str:
    """Return the message of `error`, and of the error that Hydra caught before it, on one line."""
    if isinstance(error, OverrideParseException):  # its message is that of a parser
        return f"{error.override} is not understood; settings are given as key=value, lists as key=[a,b]."
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(_NOISE)) or type(error).__name__
    if lacking := _LACKING.match(text):
        key, group = lacking.groups()
        having = [choice for item in reference(RUN).settings if item.key == key for choice in item.of]
        if having:
            return f"{key} is no setting of the {group} that is chosen; it is one of {group}={', '.join(having)}."
    if isinstance(error, HydraException) and error.__cause__ is not None:
        return f"{text.rstrip('.')}: {sentence(error.__cause__)}"
    return text
