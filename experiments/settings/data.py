"""Schemas of the groups `dataset` and `model`: one dataclass per choice, with the fields of its YAML file.

They hold values only; `client.data.load` and `client.models.build` say what the values mean and check them.
`register` makes them known to Hydra; each conf/dataset/NAME.yaml names its schema `schema/NAME` in its
defaults list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from fedmf.errors import SettingError


class Output(Enum):
    """What a command prints: a table for people, or one JSON document for programs."""

    text = "text"
    json = "json"


@dataclass
class DatasetConfig:
    """What every data set may be given; a loader refuses what it does not use."""

    name: str = MISSING
    path: str | None = None
    examples_per_client: int | None = None
    vocabulary: str | None = None


@dataclass
class ByUserNpzConfig(DatasetConfig):
    """Arrays of one's own."""

    classes: int | None = None


@dataclass
class SyntheticConfig(DatasetConfig):
    """Made-up points."""

    clients: int = 1000
    features: int = 32
    classes: int = 10
    shift: float = 0.5


@dataclass
class ByUserTextConfig(DatasetConfig):
    """Texts of one's own; length null: 20 words or 80 characters."""

    vocabulary_size: int = 10_000
    level: str = "words"
    length: int | None = None


@dataclass
class PartitionedConfig(DatasetConfig):
    """Arrays of one's own without users."""

    clients: int = 100
    partitioner: str = "iid"
    alpha: float = 0.5
    shards: int = 2
    classes: int | None = None
    partition_seed: int = 0


@dataclass
class HubConfig(DatasetConfig):
    """A data set that the hub holds too; it is downloaded only when asked for."""

    download: bool = False


@dataclass
class StackOverflowConfig(DatasetConfig):
    """TFF's Stack Overflow."""

    length: int = 20
    test_examples: int = 10_000


@dataclass
class CustomDatasetConfig(DatasetConfig):
    """A loader of one's own: `name` is its import path package.module:function, `settings` its arguments."""

    settings: Any = None


@dataclass
class ModelConfig:
    """A model without settings."""

    name: str = MISSING


@dataclass
class CustomModelConfig(ModelConfig):
    """A module of one's own: `name` is its import path package.module:class, `settings` its arguments."""

    settings: Any = None


@dataclass
class MlpConfig(ModelConfig):
    """One hidden layer."""

    hidden: int = 256


@dataclass
class LstmConfig(ModelConfig):
    """A language model; null: the size of the papers."""

    embedding: int | None = None
    hidden: int | None = None


DATASETS: dict[str, type[DatasetConfig]] = {
    "digits": DatasetConfig,
    "synthetic": SyntheticConfig,
    "by_user_npz": ByUserNpzConfig,
    "by_user_text": ByUserTextConfig,
    "partitioned": PartitionedConfig,
    "femnist": HubConfig,
    "shakespeare": HubConfig,
    "stackoverflow": StackOverflowConfig,
    "custom": CustomDatasetConfig,
}
MODELS: dict[str, type[ModelConfig]] = {
    "logistic": ModelConfig,
    "mlp": MlpConfig,
    "cnn": ModelConfig,
    "lstm": LstmConfig,
    "char_lstm": LstmConfig,
    "custom": CustomModelConfig,
}


def register() -> None:
    """Store every schema in Hydra's config store; call it before a configuration is composed."""
    store = ConfigStore.instance()
    for name, schema in DATASETS.items():
        store.store(group="dataset/schema", name=name, node=schema)
    for name, model in MODELS.items():
        store.store(group="model/schema", name=name, node=model)


def refuse_unknown(config: DictConfig, schema: type) -> None:
    """Raise `SettingError` for a key that was added with + and that the dataclass `schema` does not have."""
    for key, names in _unknown(config, schema):
        near = get_close_matches(key.rpartition(".")[2], names, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise SettingError(f"{key} is no setting of this command{meant} --help lists all of them.")


def _unknown(config: DictConfig, schema: type, prefix: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield keys that the schema does not have, each with those that it has in its place."""
    types = get_type_hints(schema)
    for key in config:
        if key not in types:
            yield f"{prefix}{key!s}", list(types)
        elif is_dataclass(types[key]):
            actual = OmegaConf.get_type(config, key) or types[key]
            yield from _unknown(config[key], actual, f"{prefix}{key!s}.")


def arguments(config: DictConfig | DatasetConfig | ModelConfig) -> dict[str, Any]:
    """Return a composed group as keyword arguments of `client.data.load` or `client.models.build`."""
    node = OmegaConf.structured(config) if is_dataclass(config) else config
    plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    if not isinstance(plain, dict):
        raise TypeError(f"a dataset or model group is a mapping, not {type(plain).__name__}")
    return merged({str(key): value for key, value in plain.items()})


def merged(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group with its `settings` merged in: a loader or model of one's own sees plain arguments.

    >>> merged({"name": "mine:load", "path": None, "settings": {"size": 3}})
    {'name': 'mine:load', 'path': None, 'size': 3}
    """
    own = {key: value for key, value in group.items() if key != "settings"}
    return {**own, **(group.get("settings") or {})}
