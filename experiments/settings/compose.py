"""Compose conf/NAME.yaml and overrides with Hydra, and return them as a frozen object."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import hydra
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobRuntime
from hydra.version import VersionBase
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

    The YAML file names the schema of `settings` as NAME_schema in its defaults list. Raises a `FedmfError` for what
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


class _Store(ConfigStore):
    """A store that nobody changes once it is filled: Hydra copies the whole at each composition, and each node it reads."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Store":
        return self


def store_schemas(name: str, settings: type) -> None:
    """Put the schemas of conf/NAME.yaml and of all choices into Hydra's global store."""
    _add(_schemas(name, settings).repo, ConfigStore.instance().repo)


@cache
def _schemas(name: str, settings: type) -> _Store:
    """Return a store of the schemas of conf/NAME.yaml and of all choices: to make them takes as long as to compose."""
    store = _made_store({})
    store.store(name=f"{name}_schema", node=derive_schema(settings))
    for group, choices in choices_of(settings).items():
        for choice, of_choice in choices.items():
            store.store(group=f"{group}/schema", name=choice, node=derive_schema(of_choice))
    return store


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
    with _prepared(name, settings):
        return hydra.compose(name, overrides=at_home(overrides))


@contextmanager
def _prepared(name: str, settings: type) -> Iterator[None]:
    """Give the block a Hydra that knows conf/ and the schemas of conf/NAME.yaml."""
    with _own_state():
        store_schemas(name, settings)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            yield


@contextmanager
def _own_state() -> Iterator[None]:
    """Give the block a Hydra of its own, also inside another Hydra application, and put the old one back."""
    Plugins.instance()  # what plugins store at their import belongs to every Hydra
    store = ConfigStore.instance()
    before = dict(Singleton._instances)
    own = _made_store(_copied(store.repo))
    try:
        for kind in (GlobalHydra, HydraConfig, JobRuntime, VersionBase):
            Singleton._instances.pop(kind, None)
        Singleton._instances[ConfigStore] = own  # type: ignore[assignment]
        yield
    finally:
        Singleton._instances.clear()
        Singleton._instances.update(before)


def _made_store(repo: dict[str, Any]) -> _Store:
    """Return a new store: a call of the class would return the singleton."""
    store = object.__new__(_Store)
    store.repo = repo
    return store


def _add(added: Mapping[str, Any], repo: dict[str, Any]) -> None:
    """Put a tree of groups into another, with the nodes that both then share."""
    for name, item in added.items():
        if isinstance(item, dict):
            _add(item, repo.setdefault(name, {}))
        else:
            repo[name] = item


def _copied(repo: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the store's tree of groups that shares the nodes."""
    return {name: _copied(item) if isinstance(item, dict) else item for name, item in repo.items()}
