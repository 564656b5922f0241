"""What an object holds, as a value that equals another only if the same is held: to see what a turn has changed.

A model's attributes can hold more than modules and tensors: a running mean in a plain tensor or array, a list that
grows, a counter in an object. All of it is reached from the attributes by way of containers and of objects' own
attributes. Modules, parameters and buffers are looked at elsewhere (`client.training`). Not looked at is what code and
classes hold, what only C code can reach, and what Python's own library keeps in objects that are no containers, such as
loggers, whose insides change by themselves.
"""

import random
import sys
from collections import deque
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)
_CONTAINERS = (Mapping, list, tuple, set, frozenset, deque, SimpleNamespace)
_BUILTIN = (dict, list, tuple, set, frozenset, deque)  # which have no attributes of their own
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_TABLES = ("_parameters", "_buffers", "_modules")  # whose values are compared elsewhere, and may change


def attributes(model: nn.Module) -> dict[tuple[object, ...], tuple[object, object]]:
    """Return which objects the attributes of all modules are and what they hold, by module and attribute.

    The items of a dictionary, such as a module's tables of parameters, modules and hooks, are there one by one.

    >>> [".".join(map(str, key)) for key in attributes(nn.Flatten()) if "_dim" in key[-1]]
    ['.start_dim', '.end_dim']
    """
    found: dict[tuple[object, ...], tuple[object, object]] = {}
    for module, own in model.named_modules():
        for name, value in vars(own).items():  # after every client's turn: as few objects as can be
            if isinstance(value, dict):
                looks_inside = name not in _TABLES
                for key, item in value.items():
                    found[module, name, key] = Same(item), contents(item) if looks_inside else None
            else:
                found[module, name] = Same(value), contents(value)
    return found


def contents(held: object) -> object:
    """Return the contents of an attribute, copied, as far as they can be reached; None for what cannot change itself.

    >>> attribute = {"seen": [1, 2.0]}
    >>> before = contents(attribute)
    >>> before == contents(attribute)
    True
    >>> attribute["seen"].append(3)
    >>> before == contents(attribute)
    False
    """
    kind = type(held)
    if kind in _PLAIN:
        return None
    return kind if kind in _BUILTIN and not held else _contents(held, set())  # each module has an empty set


def _contents(held: object, above: set[int]) -> object:
    """Return the contents of `held`; `above` are the objects that hold it, by which it may hold itself."""
    if isinstance(held, _PLAIN):
        return type(held), repr(held)  # in which NaN equals itself, and -0.0 is not 0.0
    if isinstance(held, (nn.Parameter, nn.Module, *_CODE)) or id(held) in above:
        return Same(held)
    if isinstance(held, Tensor):
        return _Bits(held)
    if isinstance(held, np.ndarray):
        is_plain = held.dtype.kind in "biufcSUmM"
        return (
            held.dtype.str,
            held.shape,
            held.tobytes() if is_plain else _items(held.tolist(), above | {id(held)}),
        )
    if isinstance(held, np.random.Generator):
        return repr(held.bit_generator.state)
    if isinstance(held, torch.Generator):
        return _Bits(held.get_state())
    if isinstance(held, random.Random):
        return held.getstate()
    if (
        not isinstance(held, _CONTAINERS)
        and type(held).__module__.partition(".")[0] in sys.stdlib_module_names
    ):
        return Same(held)
    return type(held), _inside(held, above | {id(held)})


def _inside(held: object, above: set[int]) -> object:
    """Return the contents of a container's items and of an object's own attributes."""
    found: list[object] = []
    if isinstance(held, Mapping):
        found.append([(_contents(key, above), _contents(value, above)) for key, value in held.items()])
    elif isinstance(held, list | tuple | deque):
        found.append(_items(held, above))
    elif isinstance(held, set | frozenset):  # of what can be hashed, and so does not change
        found.append(set(held))
    if type(held) in _BUILTIN:
        return found
    own = getattr(held, "__dict__", None)
    slots = [name for kind in type(held).__mro__ for name in _slots(kind) if hasattr(held, name)]
    found.append([(name, _contents(getattr(held, name), above)) for name in slots])
    if isinstance(own, dict):
        found.append([(name, _contents(value, above)) for name, value in own.items()])
    return found


def _items(held: object, above: set[int]) -> list[object]:
    return [_contents(item, above) for item in held]  # type: ignore[attr-defined]


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def are_same_bits(held: Tensor, now: Tensor | None) -> bool:
    """Say whether two tensors hold the same bits, NaN and the sign of zero included."""
    if now is None or (now.shape, now.dtype, now.device) != (held.shape, held.dtype, held.device):
        return False
    bits = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in (held, now.detach())]
    return torch.equal(*(tensor.view(_BITS[tensor.itemsize]) for tensor in bits))


class _Bits:
    """The bits of a tensor, copied."""

    def __init__(self, tensor: Tensor) -> None:
        self._copy = tensor.detach().clone()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Bits) and are_same_bits(self._copy, other._copy)

    __hash__ = None  # type: ignore[assignment]  # compared only


class Same:
    """An object that equals itself alone, held so that its place in memory is not given to another."""

    __slots__ = ("_held",)

    def __init__(self, held: object) -> None:
        self._held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._held is other._held

    __hash__ = None  # type: ignore[assignment]  # compared only
