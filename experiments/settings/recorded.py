"""config.yaml of a run directory: what its settings were, written and read back.

A run directory may be somebody else's. What it names by an import path is not imported: `refuse_code`.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from experiments.settings.data import DatasetSettings, ModelSettings
from experiments.settings.values import Choice, defaults, make, plain
from fedmf.errors import SettingError

if TYPE_CHECKING:  # a comparison of many runs has no need of torch
    from experiments.settings.schema import Settings

GROUPS = (
    "engine",
    "run",
    "compression",
    "population",
    "privacy",
    "clipping",
    "client",
    "optimizer",
    "mechanism",
)
# A run records less than a hundred values, besides those of code of one's own.
DEEPEST, MOST_VALUES = 32, 100_000

# Keys that may hold an import path, besides the `name` of every group.
CODE = ("client.loss", "client.trainer")
LISTS_OF_CODE = ("metrics",)

Recorded = Mapping[str, Any]
"""Settings as plain values by group, of this or an earlier version: a run directory outlives the code."""


class Difference(NamedTuple):
    """A setting that is not the run's: `key`, what the run `has`, and what was `given`."""

    key: str
    has: Any
    given: Any


def to_yaml(settings: "Settings | Recorded") -> str:
    """Return the text of config.yaml."""
    return yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)


def from_yaml(text: str) -> Recorded:
    """Return what `to_yaml` wrote. Raises `ValueError` for any other text, whoever wrote it."""
    try:
        document = yaml.safe_load(text)
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
    ) as error:  # nested too deeply; a date that no calendar has
        raise ValueError(f"cannot be read as YAML ({error})") from error
    if not isinstance(document, dict) or not {"dataset", "model"} <= set(document):
        raise ValueError("lacks dataset or model")
    for group in ("dataset", "model"):
        if not isinstance(document[group], dict) or "name" not in document[group]:
            raise ValueError(f"holds no name of its {group}")
    refuse_odd_values(document)
    os.fsencode(json.dumps(document, ensure_ascii=False))  # half a character is neither in a path nor printed
    _check_types("dataset", DatasetSettings, document["dataset"])
    _check_types("model", ModelSettings, document["model"])
    for group in GROUPS:
        if not isinstance(document.get(group, {}), dict):
            raise ValueError(f"holds {document[group]!r} as {group}, which must be a mapping")
    return document


def _check_types(key: str, group: type[Choice], recorded: Recorded) -> None:
    """Raise `ValueError` for a recorded value of a known key of another type.

    Unknown keys are left to the loader or model, which refuses them by name.
    """
    if not isinstance(recorded["name"], str):
        raise ValueError(f"names its {key} {recorded['name']!r}, which is no text")
    settings = group.options.get(recorded["name"], group.options["custom"]).settings
    known = defaults(settings)
    try:
        make(settings, {name: recorded.get(name, value) for name, value in known.items()}, f"{key}.")
    except SettingError as error:
        raise ValueError(f"says that {str(error).rstrip('.')}") from error


def refuse_odd_values(document: object, most: int = MOST_VALUES) -> None:
    """Raise `ValueError` unless a document is a tree of no surprising size, of texts, numbers, lists and mappings.

    YAML knows references, by which a small file becomes an endless or a huge document; `most` values are allowed.
    """
    left: list[tuple[object, int]] = [(document, 0)]
    seen = 0
    while left:
        value, depth = left.pop()
        seen += 1
        if depth > DEEPEST or seen > most:
            raise ValueError(f"holds more than {most} values or nests more than {DEEPEST} of them")
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise ValueError(f"holds the key {key!r}, which is no text")
        elif not isinstance(value, str | int | float | list | None):
            raise ValueError(
                f"holds a {type(value).__name__}; settings are texts, numbers, lists and mappings"
            )
        if isinstance(value, dict | list):
            left += [(item, depth + 1) for item in (value.values() if isinstance(value, dict) else value)]


def restored(document: Recorded) -> "Settings":
    """Return recorded settings as the frozen object.

    Raises `SettingError` for those of another version, and for a value with `${`: a run writes values, and what
    OmegaConf would put in such a place nobody has looked at.
    """
    from experiments.settings.schema import Settings

    for key, value in flattened(document):
        if "${" in str(value):
            raise SettingError(f"{key} of the recorded settings is {value!r}; a run records values only.")
    try:
        return make(Settings, document)
    except SettingError as error:
        raise SettingError(f"{error} These settings are of another version.") from error


def named_code(document: Recorded) -> dict[str, str]:
    """Return {key: import path} of everything in recorded settings that would be imported by its name.

    >>> named_code({"dataset": {"name": "mine:load"}, "model": {"name": "mlp"}, "seed": 3})
    {'dataset.name': 'mine:load'}
    >>> named_code({"metrics": ["accuracy", "mine:recall"], "client": {"loss": "mine:hinge"}})
    {'client.loss': 'mine:hinge', 'metrics[1]': 'mine:recall'}
    """
    named = {
        f"{key}.name": group.get("name") for key, group in document.items() if isinstance(group, Mapping)
    }
    leaves = dict(flattened(document))
    named |= {key: leaves.get(key) for key in CODE}
    for key in LISTS_OF_CODE:
        listed = leaves.get(key)
        named |= {
            f"{key}[{place}]": path for place, path in enumerate(listed if isinstance(listed, list) else ())
        }
    return {key: str(path) for key, path in named.items() if ":" in str(path)}


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
