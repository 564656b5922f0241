"""The factorization family that a setting names: one of the package, or one of your own by its import path."""

from client.imports import import_path
from fedmf.errors import SettingError
from fedmf.mechanisms import Family


def find_family(name: str, key: str = "mechanism.name") -> Family | str:
    """Return what `design` takes: the name as it is, or the `Family` at an import path, MODULE:FAMILY.

    Raises `SettingError` about the setting `key` if nothing or something else is found there.

    >>> find_family("optimal")
    'optimal'
    """
    if ":" not in name:
        return name
    found = import_path(name, key)
    if not isinstance(found, Family):
        raise SettingError(
            f"{key} is {name!r}, which is of type {type(found).__name__}; it must be a fedmf.mechanisms.Family, such "
            "as strategy_family(NAME, C) or noising_family(NAME, C^-1) makes of a matrix or of a function of "
            "the workload."
        )
    return found
