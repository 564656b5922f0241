"""Compose a command's settings and overrides with Hydra, and return them as a frozen object."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast, get_type_hints

import hydra
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from experiments.settings.mistakes import as_setting_errors
from experiments.settings.overrides import at_home
from experiments.settings.reference import CONF
from experiments.settings.values import Choice, Option, defaults, group_of, make
from fedmf.errors import SettingError

T = TypeVar("T")


def compose(
    name: str, overrides: Sequence[str], settings: type[T], recorded: Mapping[str, Any] | None = None
) -> T:
    """Return the defaults of the command `name` with `overrides` applied, as the frozen dataclass `settings`.

    `name` is "config" for those of a run. `recorded` are values in the place of the defaults: those of a run that is resumed.
    Hydra's global state is left as it was. Raises a `FedmfError` for what cannot be composed.
    """
    choices = [f"{group}={choice}" for group, choice in _choices_made(settings, recorded or {}).items()]
    with as_setting_errors(name, overrides):
        typed = [text for text in overrides if text not in choices]
        return make(settings, composed(name, typed, settings, recorded))


def split(overrides: str) -> list[str]:
    """Return the overrides in a text, parted as a shell does. Raises `SettingError` for an open quote."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise SettingError(f"overrides is {overrides!r}, whose quotes are not closed ({error}).") from error


def store_settings(name: str, settings: type, recorded: Mapping[str, Any] | None = None) -> None:
    """Put the settings of a command and all choices of its groups into Hydra's store, as fedmf_NAME and GROUP/CHOICE.

    With `recorded` values in the place of the defaults; those of a group that has choices are its choice "recorded".
    """
    store, values = ConfigStore.instance(), dict(recorded or {})
    store.store(name=f"fedmf_{name}_defaults", node=defaults(settings))
    chosen = {item.name: item.metadata["chosen"] for item in fields(settings) if "chosen" in item.metadata}
    for group, options in choices_of(settings).items():
        for choice, option in options.items():
            given = {} if choice == "custom" else {"name": choice}
            store.store(group=group, name=choice, node=defaults(option.settings, **given))
        if group in values:
            store.store(group=group, name="recorded", node=values.pop(group))
            chosen[group] = "recorded"
    order = [f"fedmf_{name}_defaults", *({group: choice} for group, choice in chosen.items()), "_self_"]
    store.store(name=f"fedmf_{name}", node={"defaults": order, **values})


def choices_of(settings: type) -> dict[str, Mapping[str, Option]]:
    """Return {group: {choice: its settings}} of the groups whose keys depend on the choice."""
    groups = {name: group_of(hint) for name, hint in get_type_hints(settings).items()}
    return {name: group.options for name, group in groups.items() if group and issubclass(group, Choice)}


def _choices_made(settings: type, recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return {group: choice} of recorded values; an import path is of the choice custom."""
    names = {group: str(recorded[group]["name"]) for group in choices_of(settings) if group in recorded}
    return {group: "custom" if ":" in name else name for group, name in names.items()}


def composed(
    name: str, overrides: Sequence[str], settings: type, recorded: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what `compose` makes settings of, as plain values."""
    store_settings(name, settings, recorded)
    of_process = GlobalHydra.instance()
    outer, of_process.hydra = of_process.hydra, None  # of an application that calls us
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return as_plain(hydra.compose(f"fedmf_{name}", overrides=at_home(overrides)))
    finally:
        GlobalHydra.instance().hydra = outer


def as_plain(config: DictConfig) -> dict[str, Any]:
    """Return what Hydra composed as plain values."""
    return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))


def given_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Return what `overrides` give by key; a deletion and a sweep give None. Raises `SettingError` for one that is not understood.

    >>> given_values(["+run.extend=2", "model=cnn"])
    {'run.extend': 2, 'model': 'cnn'}
    """
    with as_setting_errors():
        return {
            one.key_or_group: None if one.is_delete() or one.is_sweep_override() else one.value()
            for one in OverridesParser.create().parse_overrides(at_home(overrides))
        }


def is_true(value: object) -> bool:
    """Return whether a value given for a setting that is true or false is true.

    >>> is_true(True), is_true("yes"), is_true("On"), is_true(1), is_true("no"), is_true(None), is_true(0)
    (True, True, True, True, False, False, False)
    """
    return str(value).lower() in ("true", "yes", "on", "y", "1")
