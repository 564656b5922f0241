"""What of a model trains and what stays: only parameters that require a gradient are sent, bounded, noised and counted.

Frozen parameters and buffers are the fixed part of a model. Nothing covers a change of it, so that it must not change:
a layer that would is an error here where it is known, and found by rehearsal where it is not.
A parameter that a model has under several names (tied weights) is one parameter, under the first of them.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from client.imports import need
from fedmf.errors import SettingError, one_line
from fedmf.npz import read_npz
from fedmf.updates.vectors import Layout, Vector

_LONGEST = 500  # letters of names in a message


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that train, by name, in the model's order."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def fixed_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters and all buffers, by name, in the model's order."""
    frozen = {name: tensor for name, tensor in model.named_parameters() if not tensor.requires_grad}
    return {**frozen, **dict(model.named_buffers())}


def layout_of(model: nn.Module) -> Layout:
    """Return names and shapes of the parameters that train."""
    trained = trained_parameters(model)
    return Layout(tuple(trained), tuple(tuple(parameter.shape) for parameter in trained.values()))


def flat_parameters(model: nn.Module) -> Vector:
    """Return a copy of the parameters that train as one vector (d,), float32; there must be one."""
    trained = trained_parameters(model).values()
    return np.concatenate([parameter.detach().cpu().numpy().ravel() for parameter in trained], dtype="f4")


def set_parameters(model: nn.Module, vector: Vector) -> None:
    """Copy `vector` (d,) into the parameters that train, in the order of `flat_parameters`."""
    set_arrays(model, layout_of(model).split(vector))


def model_arrays(model: nn.Module, vector: Vector) -> dict[str, np.ndarray]:
    """Return all that a file of the model has, by name: `vector` (d,) as its trained parameters, and the fixed part.

    Of the buffers, those that torch counts to a model's state. bfloat16, which numpy lacks, becomes float32.
    """
    trained: Mapping[str, np.ndarray] = layout_of(model).split(vector)
    stored = _stored_tensors(model).items()
    return {name: trained[name] if name in trained else _as_array(tensor) for name, tensor in stored}


def stored_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of `model_arrays`, by name."""
    return {name: tuple(tensor.shape) for name, tensor in _stored_tensors(model).items()}


def set_arrays(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy `arrays`, of the model's shapes, into its parameters and buffers of the same names.

    Raises `SettingError` for what is no number of the model's kind, and for two values of one tied parameter; the model is
    then as it was.
    """
    known = _tensors_by_any_name(model)
    new: dict[int, tuple[str, Tensor]] = {}
    for name, array in arrays.items():
        assert tuple(known[name].shape) == array.shape  # as `read_npz` was told
        values = as_tensor(name, array)
        kinds = {(tensor.is_complex(), tensor.is_floating_point()) for tensor in (values, known[name])}
        if len(kinds) > 1:
            raise SettingError(
                f"{name} holds numbers of {values.dtype}; those of the model are of {known[name].dtype}."
            )
        other, first = new.setdefault(id(known[name]), (name, values))
        if not torch.equal(first, values) and other != name:
            raise SettingError(f"{name} and {other} differ, but are one parameter of the model.")
    with torch.no_grad():
        for name, values in new.values():
            known[name].copy_(values)


def start_from(model: nn.Module, start: str | Path) -> None:
    """Copy the arrays of the file `start` into the model's parameters and buffers of the same names.

    The file is a public backbone, or the model of another run: .npz, .safetensors, or a state dict of torch (.pt, .pth). What the
    model lacks is left out, and what trains and the file lacks stays as it is. Raises `SettingError`, and leaves the model as it
    was, where no name is in both, where the file lacks a frozen parameter (it would stay random for good), where shapes or
    kinds of numbers differ, and for a file of anything but numbers by name. Nothing in the file is run.
    """
    known = _tensors_by_any_name(model)
    try:
        arrays = _read_arrays(Path(start), {name: tuple(tensor.shape) for name, tensor in known.items()})
        taken = {name: array for name, array in arrays.items() if name in known}
        if not taken:
            raise ValueError(
                f"it holds {_listed(arrays)}, and nothing of the model's {_listed(known)}; names must be the same"
            )
        given = {id(known[name]) for name in taken}
        frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
        if lacking := [name for name in frozen if id(known[name]) not in given]:
            raise ValueError(
                f"it lacks {_listed(lacking)}: frozen, it would stay random; the file holds {_listed(arrays)}. Names must be "
                "the same; or let it train"
            )
        for name, array in taken.items():
            is_finite = array.dtype.kind not in "fc" or np.isfinite(array).all()
            if isinstance(known[name], nn.Parameter) and not is_finite:
                raise ValueError(f"{name} holds values that are not finite numbers")
        set_arrays(model, taken)
    except ValueError as error:
        raise SettingError(
            f"start is {str(start)!r}, which cannot be used: {str(error).rstrip('.')}. It must be an .npz, .pt or "
            ".safetensors file of numbers for this model."
        ) from error


def _read_arrays(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Return the arrays of a file by name, which have the `shapes` of those names; of tensors with other names none is read.

    Raises `ValueError` as `read_npz` does, which reads what is neither .safetensors nor torch's. torch unpickles tensors alone.
    """
    load: Callable[[Path], object] = partial(torch.load, map_location="cpu", weights_only=True)
    if file.suffix == ".safetensors":
        load = need("safetensors.torch", "A .safetensors file", "safetensors").load_file
    elif file.suffix not in (".pt", ".pth"):
        return read_npz(file, shapes)
    try:
        held = load(file)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise ValueError(error.strerror or str(error)) from error
    except Exception as error:  # of both libraries; torch's own words advise to run what is in the file
        raise ValueError("it is damaged, or holds more than a state dict; nothing in it was run") from error
    found: dict[Any, Any] = held if isinstance(held, dict) else {"": held}
    if odd := [
        f"{name} ({type(value).__name__})"
        for name, value in found.items()
        if not (isinstance(name, str) and isinstance(value, Tensor))
    ]:
        raise ValueError(f"it holds {_listed(odd)}; save the state dict alone, which is tensors by name")
    arrays = dict.fromkeys(found, np.empty(0))
    for name in shapes.keys() & found.keys():
        if (shape := tuple(found[name].shape)) != shapes[name]:
            raise ValueError(f"{name} has the shape {shape}; it must be {shapes[name]}")
        try:
            arrays[name] = _as_array(found[name])
        except (TypeError, RuntimeError) as error:  # sparse, quantized, or without values
            raise ValueError(f"{name} is no dense array of numbers: {one_line(error)}") from error
    return arrays


def choose_trained(model: nn.Module, patterns: Iterable[str]) -> None:
    """Let the parameters train whose names match a pattern of `patterns` (as of file names), and freeze all others.

    Raises `SettingError` for a pattern that matches no name, and for a parameter that cannot have a gradient.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    >>> choose_trained(model, ["1.*"])
    >>> layout_of(model).names
    ('1.weight', '1.bias')
    """
    every, patterns = dict(model.named_parameters(remove_duplicate=False)), list(patterns)
    chosen: set[int] = set()
    for pattern in patterns:
        matching = [tensor for name, tensor in every.items() if fnmatchcase(name, pattern)]
        if not matching:
            raise SettingError(
                f"trainable is {patterns}, but {pattern!r} matches no parameter of the model; they are {_listed(every)}."
            )
        chosen |= {id(tensor) for tensor in matching}
    for name, tensor in every.items():
        if id(tensor) in chosen and not tensor.is_floating_point():
            raise SettingError(
                f"trainable is {patterns}, which matches {name} of type {tensor.dtype}; only float32 can train."
            )
        tensor.requires_grad_(id(tensor) in chosen)


def check_trainable(model: nn.Module) -> None:
    """Raise `SettingError` for a model that cannot be trained with only what trains being sent.

    One without parameters that train, or with one whose type is not float32; one in which what trains shares its memory
    with another tensor, from which training would part it; one with a gradient hook on what trains, since torch copies a
    parameter without it; one whose layers would change their buffers, such as the running statistics of batch
    normalisation, which no clipping or noise covers.
    """
    if not trained_parameters(model):
        raise SettingError(
            "no parameter of the model trains; it must have one that is not frozen (set trainable to its name)."
        )
    trained_at: dict[int, str] = {}  # names by address
    for name, tensor in {**trained_parameters(model), **fixed_tensors(model)}.items():
        if isinstance(tensor, UninitializedParameter):
            raise SettingError(f"{name} of the model has no shape yet; build a model without lazy layers.")
        if tensor.layout != torch.strided or (tensor.requires_grad and tensor.dtype != torch.float32):
            raise SettingError(
                f"{name} of the model is a {tensor.layout} tensor of {tensor.dtype}; all tensors must be dense "
                "(torch.strided), and what trains must be float32. Convert it, or freeze what is of another type."
            )
        if tensor.numel() and tensor.data_ptr() in trained_at:
            raise SettingError(
                f"{trained_at[tensor.data_ptr()]} and {name} of the model are two tensors in one memory; to tie them, use one "
                "parameter."
            )
        if tensor.requires_grad:
            trained_at[tensor.data_ptr()] = name
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                raise SettingError(
                    f"{name} of the model has a gradient hook, which a copy of the model would lose. To keep a parameter as it is, "
                    "freeze it (requires_grad=False, or trainable set to the names of the others); to change gradients, use a "
                    "hook of a module."
                )
    if changing := [name for name, module in model.named_modules() if _follows_data(module)]:
        raise SettingError(
            f"the model would change its buffers: the running statistics of {_listed(changing)} follow the clients' "
            "data, and no clipping or noise covers them. Freeze the parameters of these layers (set trainable to the "
            "names of the others), build them in evaluation mode, or use GroupNorm."
        )


def set_training_mode(model: nn.Module) -> None:
    """Put the model into training mode, but for the layers whose running statistics must stay as they are.

    Those are the ones built in evaluation mode, and those whose parameters are all frozen.
    """
    resting = [module for module in model.modules() if _has_statistics(module) and not _follows_data(module)]
    model.train()
    for module in resting:
        module.eval()


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of named tensors, names, shapes and values; "" where there is none."""
    return digest_arrays({name: _as_array(tensor) for name, tensor in tensors.items()}) if tensors else ""


def digest_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return a digest of named arrays, values and all."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def as_tensor(name: str, array: np.ndarray) -> Tensor:
    """Return a copy of an array as a tensor. Raises `SettingError` for what is no number that torch has."""
    try:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise SettingError(f"{name} is no array of numbers: {error}") from error


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None


def _follows_data(module: nn.Module) -> bool:
    """Return whether a layer has running statistics that training would change: not in evaluation mode, not frozen."""
    parameters = list(module.parameters())
    is_frozen = bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
    return _has_statistics(module) and module.training and not is_frozen


def _stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and the buffers that count to the model's state, each once, under the first of its names."""
    state = {
        name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)
    }
    first = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: state[name] for name in state if first[id(state[name])] == name}


def _tensors_by_any_name(model: nn.Module) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(model.named_buffers(remove_duplicate=False))}


def _as_array(tensor: Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    values = tensor.detach().cpu()
    return np.array((values.float() if values.dtype == torch.bfloat16 else values).numpy())


def _listed(names: Iterable[str]) -> str:
    return shorten(", ".join(names) or "no array", _LONGEST, placeholder=" ...")
