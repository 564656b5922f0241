"""Weights to begin with, from a file: a public backbone, or the model of another run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import nn

from client.parameters import set_arrays
from fedmf.errors import SettingError
from fedmf.npz import read_npz


def start_from(model: nn.Module, start: str | Path) -> None:
    """Copy the arrays of the .npz file `start` into the model's parameters and buffers of the same names.

    What the model lacks is left out, and what trains and the file lacks stays as it is. Raises `SettingError`, and
    leaves the model as it was, where no name is in both, where the file lacks a frozen parameter (it would stay
    random for good), where shapes differ, and for a file that is no .npz of numbers. Nothing in the file is run.
    """
    path = Path(start)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known = {**parameters, **dict(model.named_buffers(remove_duplicate=False))}
    arrays = read_arrays(path, {name: tuple(tensor.shape) for name, tensor in known.items()})
    taken = {name: array for name, array in arrays.items() if name in known}
    if not taken:
        raise SettingError(
            f"start is {str(path)!r}, which holds {_some(arrays)}, and nothing of the model's {_some(known)}; "
            "names must be the same."
        )
    wrong = [name for name in taken if name in parameters and not _are_finite(taken[name])]
    if wrong:
        raise SettingError(
            f"start is {str(path)!r}, whose {wrong[0]} holds values that are not finite numbers."
        )
    given = {id(parameters[name]) for name in taken if name in parameters}
    lacking = [
        name
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad and id(parameter) not in given
    ]
    if lacking:
        raise SettingError(
            f"start is {str(path)!r}, which lacks {_some(lacking)}: frozen, it would stay random; the file holds "
            f"{_some(arrays)}. Names must be the same; or let it train."
        )
    try:
        set_arrays(model, taken)
    except SettingError as error:
        raise SettingError(f"start is {str(path)!r}, which does not fit the model: {error}") from error


def read_arrays(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file by name. Raises `SettingError` about `start` for any other file or other `shapes`."""
    if not path.is_file():
        raise SettingError(f"start is {str(path)!r}, which is no file; it must name an .npz file.")
    try:
        return read_npz(path, shapes)
    except ValueError as error:
        raise SettingError(
            f"start is {str(path)!r}, which cannot be read ({error}); it must be an .npz file of numbers."
        ) from error


def _are_finite(array: np.ndarray) -> bool:
    return array.dtype.kind in "biufc" and bool(np.isfinite(array).all())


def _some(names: object) -> str:
    listed = sorted(names)  # type: ignore[call-overload]
    return ", ".join(listed[:5]) + (" and others" if len(listed) > 5 else "") if listed else "no array"
