"""config.yaml of a run directory: its settings, written and read back.

A run directory may come from someone else. What it names by an import path is not imported: `check_code_is_named`.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from client.imports import LENT
from experiments.settings.data import DatasetSettings, ModelSettings
from experiments.settings.schema import Settings
from experiments.settings.values import Choice, defaults, is_group, make, plain
from fedmf.errors import SettingError

# A run records fewer than a hundred values, in addition to those of custom code.
DEEPEST, MOST_VALUES = 32, 100_000

# Keys of a group that may be an import path; `metrics` may list others.
CODE = ("name", "loss", "trainer")

# Settings whose code worker processes import.
OF_WORKERS = ("dataset.name", "model.name", "client.loss", "client.trainer")

# Settings as plain values by group, of this or an earlier version: a run directory outlives the code.
Recorded = Mapping[str, Any]


def to_yaml(settings: Settings | Recorded) -> str:
    """Return the text of config.yaml."""
    return yaml.safe_dump(plain(settings), sort_keys=False, allow_unicode=True)


def from_yaml(text: str) -> Recorded:
    """Return the settings that `to_yaml` wrote. Raises `ValueError` for any other text."""
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # nested too deeply; a date of no calendar
        raise ValueError(f"cannot be read as YAML ({error})") from error
    if not isinstance(document, dict) or not {"dataset", "model"} <= set(document):
        raise ValueError("lacks dataset or model")
    check_plain_values(document)
    os.fsencode(json.dumps(document, ensure_ascii=False))  # half a character is neither in a path nor printed
    for group in (name for name, hint in get_type_hints(Settings).items() if is_group(hint)):
        if not isinstance(document.get(group, {}), dict):
            raise ValueError(f"contains {document[group]!r} as {group}, which must be a mapping")
    _check_types("dataset", DatasetSettings, document["dataset"])
    _check_types("model", ModelSettings, document["model"])
    return document


def _check_types(key: str, group: type[Choice], recorded: Recorded) -> None:
    """Raise `ValueError` for a group without a name, and for a value of another type.

    Unknown keys, and null as an earlier default, are left to the loader or model, which raises an error that names them.
    """
    name = recorded.get("name")
    if not isinstance(name, str):
        raise ValueError(f"names its {key} {name!r}, which is no text")
    settings = group.options.get(name, group.options["custom"]).settings
    given = {own: value for own, value in recorded.items() if value is not None}
    make(settings, {own: given.get(own, value) for own, value in defaults(settings).items()}, f"{key}.")


def check_plain_values(document: object, most: int = MOST_VALUES) -> None:
    """Raise `ValueError` unless a document is a tree of no surprising size, of texts, numbers, lists and mappings.

    YAML knows references, by which a small file becomes an endless or a huge document; `most` values are allowed.
    """
    left: list[tuple[object, int]] = [(document, 0)]
    seen = 0
    while left:
        value, depth = left.pop()
        seen += 1
        if depth > DEEPEST or seen > most:
            raise ValueError(f"contains more than {most} values or nests more than {DEEPEST} of them")
        if isinstance(value, dict):
            if odd := [key for key in value if not isinstance(key, str)]:
                raise ValueError(f"contains the key {odd[0]!r}, which is not text")
            left += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            left += [(item, depth + 1) for item in value]
        elif not isinstance(value, str | int | float | None):
            raise ValueError(
                f"contains a {type(value).__name__}; settings are texts, numbers, lists and mappings"
            )


def restored(document: Recorded) -> Settings:
    """Return recorded settings as the frozen object.

    Raises `SettingError` for those of another version, and for a value with `${`: a run records values only, and
    OmegaConf would put something unchecked in such a place.
    """
    for key, value in flattened(document):
        if "${" in str(value):
            raise SettingError(f"{key} of the recorded settings is {value!r}; a run records values only.")
    try:
        return make(Settings, document)
    except SettingError as error:
        raise SettingError(
            f"the recorded settings do not fit this version of fedmf: {error} Finish the run with the version that "
            "provenance.json names."
        ) from error


def named_code(document: Recorded) -> dict[str, str]:
    """Return {key: import path} of everything in recorded settings that would be imported by its name.

    >>> named_code({"dataset": {"name": "mine:load"}, "model": {"name": "mlp"}, "seed": 3})
    {'dataset.name': 'mine:load'}
    >>> named_code({"metrics": ["accuracy", "mine:recall"], "client": {"loss": "mine:hinge"}})
    {'client.loss': 'mine:hinge', 'metrics[1]': 'mine:recall'}
    """
    groups = {key: group for key, group in document.items() if isinstance(group, Mapping)}
    named: dict[str, Any] = {f"{key}.{own}": groups[key].get(own) for key in groups for own in CODE}
    metrics = document.get("metrics")
    if isinstance(metrics, list):
        named |= {f"metrics[{place}]": path for place, path in enumerate(metrics)}
    return {key: str(path) for key, path in named.items() if ":" in str(path)}


def check_code_is_named(
    directory: Path, document: Recorded, *, given: Collection[str] = (), consent: str = "trust_code=True"
) -> None:
    """Raise `SettingError` where settings recorded in `directory` name code that the caller has not.

    `given` are the import paths that the caller named, `consent` is how to allow any other.
    """
    for key, name in named_code(document).items():
        if name not in given:
            why = (
                "an object of the Python program that began the run; none or another was given. Give it again as "
                f"{key.partition('.')[0].partition('[')[0]}=..., or name another as package.module:name."
                if name.startswith(LENT)
                else f"which would be imported, and importing runs code; give {consent} if you trust the author of that directory."
            )
            raise SettingError(f"{key} of {directory} is {name!r}, {why}")


def check_importable(settings: Settings) -> None:
    """Raise `SettingError` for code that worker processes cannot import: of a Python program, or of `__main__`."""
    for key, path in named_code(plain(settings)).items():
        if key in OF_WORKERS and path.startswith((LENT, "__main__:")):
            raise SettingError(
                f"{key} is {path.rpartition(':')[2]}, which is in the process of your program alone, so that worker processes "
                "cannot import it; put it into a module of its own (arrays into a file, dataset=by_user_npz), or set "
                "engine=local engine.workers=1."
            )


def flattened(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of every leaf, keys of nested objects joined by dots."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
