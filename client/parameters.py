"""What of a model trains and what stays: only parameters that require a gradient are sent, bounded, noised and counted.

Frozen parameters and buffers are the fixed part of a model. Nothing covers a change of it, so that it must not change:
a layer that would is an error here where it is known, and found by rehearsal where it is not.
A parameter that a model holds under several names (tied weights) is one parameter, under the first of them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from fedmf.errors import SettingError
from fedmf.updates.vectors import Layout, Vector

_MOST_NAMES = 20  # of a model's parameters in a message


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
    """Return a copy of the parameters that train as one vector (d,), float32.

    Raises `SettingError` where none does.
    """
    _refuse_nothing_to_train(model)
    return np.concatenate(
        [parameter.detach().cpu().numpy().ravel() for parameter in trained_parameters(model).values()],
        dtype="f4",
    )


def set_parameters(model: nn.Module, vector: Vector) -> None:
    """Copy `vector` (d,) into the parameters that train, in the order of `flat_parameters`."""
    with torch.no_grad():
        for name, values in layout_of(model).split(vector).items():
            model.get_parameter(name).copy_(torch.from_numpy(np.array(values)))


def model_arrays(model: nn.Module, vector: Vector) -> dict[str, np.ndarray]:
    """Return all that a file of the model holds, by name: `vector` (d,) as its trained parameters, and the fixed part.

    Of the buffers, those that torch counts to a model's state. bfloat16, which numpy lacks, becomes float32.
    """
    trained: Mapping[str, np.ndarray] = layout_of(model).split(vector)
    stored = _stored_tensors(model).items()
    return {name: trained[name] if name in trained else _as_array(tensor) for name, tensor in stored}


def set_arrays(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy `arrays` into the model's parameters and buffers of the same names.

    Raises `SettingError` for other shapes, for what is no number, and for two values of one tied parameter; the model
    is then as it was.
    """
    held = _tensors_by_any_name(model)
    new: dict[int, tuple[str, np.ndarray, Tensor]] = {}
    for name, array in arrays.items():
        if tuple(held[name].shape) != array.shape:
            raise SettingError(
                f"{name} has the shape {array.shape}, but the model has {tuple(held[name].shape)}; "
                "they must be the same."
            )
        other, values, _ = new.setdefault(
            id(held[name]),
            (name, array, as_tensor(name, array, "biufc" if held[name].is_complex() else "biuf")),
        )
        if values is not array and not np.array_equal(values, array):
            raise SettingError(f"{name} and {other} differ, but are one parameter of the model.")
    with torch.no_grad():
        for name, _, tensor in new.values():
            held[name].copy_(tensor)


def stored_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of `model_arrays`, by name."""
    return {name: tuple(tensor.shape) for name, tensor in _stored_tensors(model).items()}


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
                f"trainable is {list(patterns)}, but {pattern!r} matches no parameter of the model; they are "
                f"{_listed(every)}."
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

    One without parameters that train, or with one whose type is not float32; one whose layers would change their
    buffers, such as the running statistics of batch normalisation, which no clipping or noise covers.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise SettingError(f"{name} of the model has no shape yet; build a model without lazy layers.")
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise SettingError(
                f"{name} of the model is {parameter.dtype}; what trains must be float32. Freeze it or convert it."
            )
    _refuse_nothing_to_train(model)
    for name, tensor in fixed_tensors(model).items():
        if tensor.layout != torch.strided:
            raise SettingError(f"{name} of the model is a {tensor.layout} tensor; it must be a dense one.")
    _refuse_shared_memory(model)
    modes = {module: module.training for module in model.modules()}
    try:
        set_training_mode(model)
    finally:
        for module, mode in modes.items():
            module.training = mode


def set_training_mode(model: nn.Module) -> None:
    """Put the model into training mode, but for the layers whose running statistics must stay as they are.

    Those are the ones built in evaluation mode, and those whose parameters are all frozen. Raises `SettingError` for
    a layer whose running statistics would change.
    """
    resting = [module for module in model.modules() if _holds_statistics(module) and _is_at_rest(module)]
    model.train()
    for module in resting:
        module.eval()
    changing = [
        name for name, module in model.named_modules() if _holds_statistics(module) and module.training
    ]
    if changing:
        raise SettingError(
            f"the model would change its buffers: the running statistics of {_listed(changing)} follow the clients' "
            "data, and no clipping or noise covers them. Freeze the parameters of these layers (set trainable to the "
            "names of the others), build them in evaluation mode, or use GroupNorm."
        )


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


def _refuse_nothing_to_train(model: nn.Module) -> None:
    if trained_parameters(model):
        return
    if next(model.parameters(), None) is None:
        raise SettingError("the model has no parameters; one that trains must have at least one.")
    raise SettingError(
        "no parameter of the model trains: all are frozen; leave one that is not, or set trainable to its name."
    )


def _refuse_shared_memory(model: nn.Module) -> None:
    """Raise `SettingError` for two tensors in one place of memory: training would part them."""
    seen: dict[int, str] = {}
    trained = trained_parameters(model)
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        other = seen.setdefault(tensor.data_ptr(), name) if tensor.numel() else name
        if other != name and {other, name} & set(trained):
            raise SettingError(
                f"{name} and {other} of the model are two tensors in one memory; to tie them, use one parameter."
            )


def _holds_statistics(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None


def _is_at_rest(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    is_frozen = bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
    return is_frozen or not module.training


def _stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and the buffers that count to the model's state, each once."""
    stored: dict[str, Tensor] = dict(model.named_parameters())
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                stored[name] = buffer
    return stored


def _tensors_by_any_name(model: nn.Module) -> dict[str, Tensor]:
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(model.named_buffers(remove_duplicate=False))}


def _as_array(tensor: Tensor) -> np.ndarray:
    """Return a copy of a tensor as an array."""
    values = tensor.detach().cpu()
    return np.array((values.float() if values.dtype == torch.bfloat16 else values).numpy())


def as_tensor(name: str, array: np.ndarray, kinds: str = "biufc") -> Tensor:
    """Return an array as a tensor. Raises `SettingError` for what is no number, of NumPy's `kinds`."""
    if array.dtype.kind not in kinds:
        raise SettingError(f"{name} is of type {array.dtype}; it must hold numbers.")
    try:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise SettingError(f"{name} is of type {array.dtype}, which torch does not have.") from error


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    rest = len(every) - _MOST_NAMES
    return ", ".join(every[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
