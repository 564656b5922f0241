"""Compose a command's settings and overrides with Hydra, and return them as a frozen object."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, get_type_hints

import hydra
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from experiments.settings.home import at_home
from experiments.settings.mistakes import as_setting_errors, pointing_to_help, refuse_added
from experiments.settings.reference import CONF
from experiments.settings.values import Choice, Option, defaults, group_of, make
from fedmf.errors import SettingError

T = TypeVar("T")


def compose(name: str, overrides: Sequence[str], settings: type[T], recorded: Sequence[str] = ()) -> T:
    """Return the defaults of the command `name` with `overrides` applied, as the frozen dataclass `settings`.

    `name` is "config" for those of a run. `recorded` are overrides that come first and that nobody typed: what is refused
    is found among the others. Hydra's global state is left as it was. Raises a `FedmfError` for what cannot be composed.
    """
    with pointing_to_help(name), as_setting_errors(name, overrides, recorded):
        refuse_added(name, overrides, recorded)
        return make(settings, composed(name, [*recorded, *overrides], settings))


def typed(document: Mapping[str, Any], settings: type[T]) -> T:
    """Return plain values by key as the frozen dataclass `settings`, without overrides.

    Raises `SettingError` for keys or values that these settings do not have.
    """
    try:
        return make(settings, document)
    except SettingError as error:
        raise SettingError(f"{error} These settings are of another version.") from error


def split(overrides: str) -> list[str]:
    """Return the overrides in a text, parted as a shell does. Raises `SettingError` for an open quote."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise SettingError(f"overrides is {overrides!r}, whose quotes are not closed ({error}).") from error


@cache
def store_settings(name: str, settings: type) -> None:
    """Put the settings of a command and all choices of its groups into Hydra's store, as fedmf_NAME and GROUP/CHOICE."""
    store = ConfigStore.instance()
    store.store(name=f"fedmf_{name}_defaults", node=defaults(settings))
    for group, options in choices_of(settings).items():
        for choice, option in options.items():
            given = {} if choice == "custom" else {"name": choice}
            store.store(group=group, name=choice, node=defaults(option.settings, **given))
    chosen = [{item.name: item.metadata["chosen"]} for item in fields(settings) if "chosen" in item.metadata]
    store.store(name=f"fedmf_{name}", node={"defaults": [f"fedmf_{name}_defaults", *chosen, "_self_"]})


def choices_of(settings: type) -> dict[str, Mapping[str, Option]]:
    """Return {group: {choice: its settings}} of the groups whose keys depend on the choice."""
    groups = {name: group_of(hint) for name, hint in get_type_hints(settings).items()}
    return {name: group.options for name, group in groups.items() if group and issubclass(group, Choice)}


def composed(name: str, overrides: Sequence[str], settings: type) -> dict[str, Any]:
    """Return the defaults of the command `name` with `overrides` applied, as plain values."""
    store_settings(name, settings)
    of_process = GlobalHydra.instance()
    outer, of_process.hydra = of_process.hydra, None  # of an application that calls us
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return as_plain(hydra.compose(f"fedmf_{name}", overrides=at_home(overrides)))
    finally:
        GlobalHydra.instance().hydra = outer


def as_plain(config: DictConfig) -> dict[str, Any]:
    """Return what Hydra composed as plain values."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}
