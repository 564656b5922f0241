"""config.yaml of a run directory: what its settings were, written and read back."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from experiments.settings.frozen import plain

if TYPE_CHECKING:  # a comparison of many runs has no need of torch
    from experiments.settings.schema import Settings

Recorded = Mapping[str, Any]
"""Settings as plain values by group, of this or an earlier version: a run directory outlives the code."""


def to_yaml(settings: "Settings | Recorded") -> str:
    """Return the text of config.yaml."""
    return yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)


def from_yaml(text: str) -> Recorded:
    """Return what `to_yaml` wrote. Raises `ValueError` for text that is not a YAML mapping."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is not YAML ({error})") from error
    if not isinstance(document, dict) or not {"dataset", "model"} <= set(document):
        raise ValueError("lacks dataset or model")
    for group in ("dataset", "model"):
        if not isinstance(document[group], dict) or "name" not in document[group]:
            raise ValueError(f"holds no name of its {group}")
    return document


def restored(document: Recorded) -> "Settings":
    """Return recorded settings as the frozen object. Raises `SettingError` for those of another version."""
    from experiments.settings.compose import typed
    from experiments.settings.schema import Settings

    return typed(document, Settings)


def flattened(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of every leaf, keys of nested objects joined by dots."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
