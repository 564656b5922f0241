"""Compose conf/NAME.yaml and overrides with Hydra, and return them as a frozen object."""

import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import hydra
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from experiments.settings.data import DATASETS, MODELS
from experiments.settings.engine import ENGINES
from experiments.settings.frozen import derive_schema, freeze
from experiments.settings.home import at_home
from experiments.settings.mistakes import as_setting_errors, pointing_to_help, refuse_added
from fedmf.errors import SettingError

CONF = Path(__file__).resolve().parents[2] / "conf"
T = TypeVar("T")


def compose(name: str, overrides: Sequence[str], settings: type[T], recorded: Sequence[str] = ()) -> T:
    """Return conf/NAME.yaml with `overrides` applied, as the frozen dataclass `settings`.

    The YAML file names the schema of `settings` as fedmf_NAME_schema in its defaults list. Raises a `FedmfError` for what
    cannot be composed. Hydra's global state is left as it was. `recorded` are overrides that come first and that nobody
    typed: what is refused is found among the others.
    """
    with pointing_to_help(name), as_setting_errors(name, overrides, recorded):
        refuse_added(name, overrides, recorded)
        return freeze(_composed(name, [*recorded, *overrides], settings), settings)


def typed(document: Mapping[str, Any], settings: type[T]) -> T:
    """Return plain values by key as the frozen dataclass `settings`, without conf/ and overrides.

    Raises `SettingError` for keys or values that these settings do not have.
    """
    schema = OmegaConf.structured(derive_schema(settings))
    for group, choices in choices_of(settings).items():
        name = (document.get(group) or {}).get("name")
        chosen = choices.get(str(name)) or choices.get("custom")
        if chosen is not None:
            schema[group] = OmegaConf.structured(derive_schema(chosen))
    try:
        with as_setting_errors():
            merged = OmegaConf.merge(schema, document)
            assert isinstance(merged, DictConfig)
            return freeze(merged, settings)
    except SettingError as error:
        raise SettingError(f"{error} These settings are of another version.") from error


def split(overrides: str) -> list[str]:
    """Return the overrides in a text, parted as a shell does. Raises `SettingError` for an open quote."""
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise SettingError(f"overrides is {overrides!r}, whose quotes are not closed ({error}).") from error


@cache
def store_schemas(name: str, settings: type) -> None:
    """Put the schemas of conf/NAME.yaml and of all choices into Hydra's store."""
    store = ConfigStore.instance()
    store.store(name=f"fedmf_{name}_schema", node=derive_schema(settings))
    for group, choices in choices_of(settings).items():
        for choice, of_choice in choices.items():
            store.store(group=f"{group}/schema", name=choice, node=derive_schema(of_choice))


def choices_of(settings: type) -> dict[str, Mapping[str, type]]:
    """Return {group: {choice: its settings}} of the groups whose keys depend on the choice."""
    choices: dict[str, Mapping[str, type]] = {"dataset": DATASETS, "model": MODELS, "engine": ENGINES}
    if "optimizer" in get_type_hints(
        settings
    ):  # those of a run; they need the mechanisms, and these need scipy
        from experiments.settings.optimizer import OPTIMIZERS

        choices["optimizer"] = OPTIMIZERS
    return choices


def _composed(name: str, overrides: Sequence[str], settings: type) -> DictConfig:
    store_schemas(name, settings)
    of_process = GlobalHydra.instance()
    outer, of_process.hydra = of_process.hydra, None  # of an application that calls us
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra.compose(name, overrides=at_home(overrides))
    finally:
        GlobalHydra.instance().hydra = outer
