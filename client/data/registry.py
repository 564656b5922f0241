"""Every data set by name: who loads it, under which licence, and from where."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from client.data import (
    by_user_csv,
    by_user_hub,
    by_user_images,
    by_user_npz,
    by_user_parquet,
    by_user_text,
    digits,
    femnist,
    partitioned,
    shakespeare,
    stackoverflow,
    synthetic,
)
from client.data.dataset import Dataset
from client.data.places import found
from client.imports import check_takes, import_maker
from fedmf.errors import DataError, SettingError


@dataclass(frozen=True)
class Entry:
    """One line of the listing: how to load a data set, and what to know before doing so."""

    load: Callable[..., Dataset]
    summary: str
    licence: str
    source: str


def _entry(module: ModuleType) -> Entry:
    """Return the entry of a loader module: its `load`, its first docstring line, LICENCE and SOURCE."""
    return Entry(module.load, (module.__doc__ or "").strip().splitlines()[0], module.LICENCE, module.SOURCE)


DATASETS: dict[str, Entry] = {
    "digits": _entry(digits),
    "synthetic": _entry(synthetic),
    "by_user_npz": _entry(by_user_npz),
    "by_user_text": _entry(by_user_text),
    "by_user_csv": _entry(by_user_csv),
    "by_user_parquet": _entry(by_user_parquet),
    "by_user_images": _entry(by_user_images),
    "by_user_hub": _entry(by_user_hub),
    "partitioned": _entry(partitioned),
    "femnist": _entry(femnist),
    "shakespeare": _entry(shakespeare),
    "stackoverflow": _entry(stackoverflow),
}


def load(
    name: str,
    *,
    path: str | None = None,
    examples_per_client: int | None = None,
    vocabulary: str | None = None,
    **settings: Any,
) -> Dataset:
    """Return the data set called `name`, a name of the listing or an import path `package.module:function`.

    The function must be annotated with `-> Dataset`. Settings that are None are left to the loader. Raises `SettingError` for an unknown name or a setting that
    the loader does not take, `DataError` for data that are missing or malformed.
    """
    loader = _loader(name)
    given = {"path": path, "examples_per_client": examples_per_client, "vocabulary": vocabulary, **settings}
    given = {key: value for key, value in given.items() if value is not None}
    check_takes(loader, given, who=f"dataset {name}")
    for key, parameter in inspect.signature(loader).parameters.items():
        if (
            parameter.default is parameter.empty
            and parameter.kind is not parameter.VAR_KEYWORD
            and key not in given
        ):
            raise SettingError(f"{key} is missing; dataset {name} needs it.")
    with found(name, given) as located:
        dataset = loader(**located)
    if not isinstance(dataset, Dataset):
        raise DataError(f"{name} returned {type(dataset).__name__}; it must return a client.data.Dataset.")
    return dataset


def _loader(name: str) -> Callable[..., Dataset]:
    """Return the function that loads the data set called `name`."""
    if ":" in name:
        return import_maker(name, "name", Dataset)
    if name not in DATASETS:
        raise SettingError(
            f"name is {name!r}; it must be one of {', '.join(DATASETS)}, "
            "or an import path package.module:function."
        )
    return DATASETS[name].load
