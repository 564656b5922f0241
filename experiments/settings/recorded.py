"""config.yaml of a run directory: what its settings were, written and read back.

A run directory may be somebody else's. What it names by an import path is not imported: `refuse_code`.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from experiments.settings.frozen import plain
from fedmf.errors import SettingError

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
    """Return recorded settings as the frozen object.

    Raises `SettingError` for those of another version, and for a value with `${`: a run writes values, and what
    OmegaConf would put in such a place nobody has looked at.
    """
    from experiments.settings.compose import typed
    from experiments.settings.schema import Settings

    for key, value in flattened(document):
        if "${" in str(value):
            raise SettingError(f"{key} of the recorded settings is {value!r}; a run records values only.")
    return typed(document, Settings)


def named_code(document: Recorded) -> dict[str, str]:
    """Return {key: import path} of everything in recorded settings that would be imported by its name.

    >>> named_code({"dataset": {"name": "mine:load"}, "model": {"name": "mlp"}, "seed": 3})
    {'dataset.name': 'mine:load'}
    """
    names = {
        f"{key}.name": str(group.get("name")) for key, group in document.items() if isinstance(group, Mapping)
    }
    return {key: name for key, name in names.items() if ":" in name}


def refuse_code(
    directory: Path, document: Recorded, *, given: Collection[str] = (), consent: str = "trust_code=True"
) -> None:
    """Raise `SettingError` where settings recorded in `directory` name code that the caller has not.

    `given` are the import paths that the caller named, `consent` is how to allow any other.
    """
    for key, name in named_code(document).items():
        if name not in given:
            raise SettingError(
                f"{key} of {directory} is {name!r}, which would be imported, and importing runs code; give {consent} if "
                "you trust whoever wrote that directory."
            )


def flattened(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of every leaf, keys of nested objects joined by dots."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
