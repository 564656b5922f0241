"""An optimizer of one's own, held to what a run needs of it: `rehearse` before a run, `Checked` in every round."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_below_one, check_choice
from fedmf.choices import SCHEDULES
from fedmf.errors import RunStoppedError, SettingError
from fedmf.updates.vectors import Vector
from server.optimizer import Optimizer, Slots, form, is_finite

_REHEARSED = 3  # steps: the first one may make what only a later one changes


@dataclass(frozen=True)
class Checked(Optimizer):
    """The optimizer `own`, called `name` in messages. It cannot change what a state holds, nor keep hold of it.

    Raises `SettingError` for a momentum or schedule that no noise can be fitted to. Each call raises
    `RunStoppedError` for an error of its own, and for a result that is no state: nothing is released then.
    """

    own: Optimizer
    name: str
    momentum: float = field(init=False)
    schedule: str = field(init=False)
    precondition: bool = field(init=False)

    def __post_init__(self) -> None:
        for attribute in ("momentum", "schedule", "precondition"):
            object.__setattr__(self, attribute, getattr(self.own, attribute))
        if isinstance(self.momentum, bool) or not isinstance(self.momentum, int | float):
            raise SettingError(f"{self.name} has momentum {self.momentum!r}; it must be a number in [0, 1).")
        check_below_one(f"the momentum of {self.name}", self.momentum)
        check_choice(f"the schedule of {self.name}", self.schedule, SCHEDULES)
        if not isinstance(self.precondition, bool):
            raise SettingError(
                f"{self.name} has precondition {self.precondition!r}; it must be True or False."
            )

    def first(self, model: Vector) -> Slots:
        """Return its first state, checked."""
        return self._slots(self._call("first", _locked(model)), model)

    def step(
        self, model: Vector, slots: Slots, mean: Vector, *, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        """Return its step, checked: a model of the same shape, and a state of the same names, shapes and types."""
        given = {name: _locked(array) for name, array in slots.items()}
        result = self._call("step", _locked(model), given, _locked(mean), progress=progress)
        if not isinstance(result, tuple) or len(result) != 2:
            raise RunStoppedError(
                f"step of {self.name} returned a {type(result).__name__}; it must return (model, slots)."
            )
        moved = self._vector("step", result[0], model)
        kept = self._slots(result[1], model)
        if (before := form(slots)) != (after := form(kept)):
            raise RunStoppedError(
                f"step of {self.name} returned the state {after}; it must keep names, shapes and types: {before}."
            )
        return moved, kept

    def scale(self, slots: Slots) -> Vector:
        """Return its scale, checked: (d,) float32, finite and above 0."""
        like = next((array for array in slots.values() if array.ndim), None)
        scale = self._call("scale", {name: _locked(array) for name, array in slots.items()})
        scale = self._vector("scale", scale, scale if like is None else like)
        if not (np.isfinite(scale) & (scale > 0)).all():
            raise RunStoppedError(f"scale of {self.name} holds a value that is not finite and above 0.")
        return scale

    def _call(self, method: str, *given: Any, **more: Any) -> Any:
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                return getattr(self.own, method)(*given, **more)
        except Exception as error:  # whatever their code raises
            raise RunStoppedError(
                f"{method} of {self.name} raised {type(error).__name__}: {error}."
            ) from error

    def _vector(self, method: str, found: object, like: npt.NDArray[Any]) -> Vector:
        """Return a copy of what must be a vector (d,) float32."""
        if not isinstance(found, np.ndarray) or found.shape != like.shape or found.dtype != np.float32:
            raise RunStoppedError(
                f"{method} of {self.name} returned {_described(found)}; it must be an array of shape "
                f"{list(like.shape)} and type float32."
            )
        return found.copy()

    def _slots(self, found: object, model: Vector) -> Slots:
        """Return a copy of what must be arrays by name, each (d,) or a scalar."""
        if not isinstance(found, Mapping):
            raise RunStoppedError(
                f"the state of {self.name} is a {type(found).__name__}; it must be a mapping."
            )
        kept = {}
        for name, value in found.items():
            array = np.asarray(value)
            if not isinstance(name, str) or not name.isidentifier():
                raise RunStoppedError(f"the state of {self.name} names an array {name!r}; it must be a word.")
            if array.dtype.kind not in "biuf" or array.shape not in ((), model.shape):
                raise RunStoppedError(
                    f"{name} in the state of {self.name} is {_described(value)}; it must be numbers of shape [] or "
                    f"{list(model.shape)}."
                )
            kept[name] = array.copy()
        return kept


def rehearse(optimizer: Optimizer, model: Vector) -> str:
    """Return a digest of a few steps from `model` (d,) on made-up updates, of which nothing is kept.

    Raises `SettingError` where a step fails or is not finite, and where the same steps taken again end elsewhere: such
    an optimizer draws, or keeps a state of its own, and a run could not be resumed. The digest is of four digits, so
    that another machine's rounding does not change it.
    """
    try:
        first, again = _steps(optimizer, model), _steps(optimizer, model)
    except RunStoppedError as error:
        raise SettingError(str(error)) from error
    name = getattr(optimizer, "name", type(optimizer).__name__)
    if not is_finite(first):
        raise SettingError(
            f"{name} made numbers that are not finite of a small mean update; a run would end at once."
        )
    if any(first[key].tobytes() != again[key].tobytes() for key in first):
        raise SettingError(
            f"{name} made another model of the same state and update when asked again; it must be a pure function: "
            "no draws, and nothing kept outside the state that it returns."
        )
    sizes = [f"{key} {float(np.linalg.norm(first[key].astype(np.float64))):.4g}" for key in sorted(first)]
    return hashlib.sha256("; ".join(sizes).encode()).hexdigest()[:16]


def _steps(optimizer: Optimizer, model: Vector) -> dict[str, npt.NDArray[Any]]:
    """Return how far the model is moved by some steps, and what the state and the scale are then."""
    start, slots = model, optimizer.first(model)
    update = (0.01 * np.cos(np.arange(len(model)))).astype(np.float32)
    for done in range(_REHEARSED):
        model, slots = optimizer.step(model, slots, (done + 1) * update, progress=done / _REHEARSED)
    scale = {"the scale": optimizer.scale(slots)} if optimizer.precondition else {}
    return {"the model": model.astype(np.float64) - start, **slots, **scale}


def _locked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array in a form that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _described(found: object) -> str:
    """Return what something is, for a message."""
    if isinstance(found, np.ndarray):
        return f"an array of shape {list(found.shape)} and type {found.dtype}"
    return f"a {type(found).__name__}"
