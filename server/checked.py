"""An optimizer of one's own, held to what a run needs of it: `rehearse` before a run, `Checked` in every round."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_below_one, check_choice
from fedmf.choices import SCHEDULES
from fedmf.errors import RunStoppedError, SettingError
from fedmf.updates.vectors import Vector
from server.optimizer import Optimizer, Slots, form, is_finite

LARGEST_SCALE = 1e6  # beyond it and below its inverse float32 updates overflow or vanish
_REHEARSED = 3  # steps: the first one may make what only a later one changes


@dataclass(frozen=True)
class Checked(Optimizer):
    """The optimizer `own`, called `name` in messages. It cannot change what a state holds, nor keep hold of it.

    `make` makes another object of the same settings, as a process that resumes a run does; None: a copy of `own`.
    Raises `SettingError` for a momentum or schedule that no noise can be fitted to. Each call raises
    `RunStoppedError` for an error of its own, and for a result that is no state: nothing is released then.
    """

    own: Optimizer
    name: str
    make: Callable[[], Optimizer] | None = field(default=None, compare=False)
    momentum: float = field(init=False)
    schedule: str = field(init=False)
    precondition: bool = field(init=False)

    def __post_init__(self) -> None:
        for attribute in ("momentum", "schedule", "precondition"):
            try:
                value = getattr(self.own, attribute)
            except (Exception, SystemExit) as error:  # a property is their code
                raise SettingError(
                    f"{attribute} of {self.name} raised {type(error).__name__}: {str(error).removesuffix('.')}."
                ) from error
            object.__setattr__(self, attribute, value)
        if isinstance(self.momentum, bool) or not isinstance(self.momentum, Real):
            raise SettingError(f"{self.name} has momentum {self.momentum!r}; it must be a number in [0, 1).")
        check_below_one(f"the momentum of {self.name}", self.momentum)
        object.__setattr__(self, "momentum", float(self.momentum))
        if not isinstance(self.schedule, str):
            raise SettingError(f"{self.name} has schedule {self.schedule!r}; it must be a text.")
        check_choice(f"the schedule of {self.name}", self.schedule, SCHEDULES)
        if not isinstance(self.precondition, bool):
            raise SettingError(
                f"{self.name} has precondition {self.precondition!r}; it must be True or False."
            )

    def another(self) -> "Checked":
        """Return another object of the same settings, which has done nothing yet if it is made and not copied."""
        if self.make is not None:
            return replace(self, own=self.make())
        with self._theirs("copying"):
            return replace(self, own=deepcopy(self.own))

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
        """Return its scale, checked: (d,) float32 in [1e-6, 1e6]."""
        like = next((array for array in slots.values() if array.ndim), None)
        scale = self._call("scale", {name: _locked(array) for name, array in slots.items()})
        scale = self._vector("scale", scale, scale if like is None else like)
        within = (scale >= np.float32(1 / LARGEST_SCALE)) & (scale <= np.float32(LARGEST_SCALE))
        if not within.all():
            raise RunStoppedError(
                f"scale of {self.name} holds {scale[~within][0]:g}; all of it must lie in [{1 / LARGEST_SCALE:g}, "
                f"{LARGEST_SCALE:g}], or clients' updates would overflow or vanish."
            )
        return scale

    def _call(self, method: str, *given: Any, **more: Any) -> Any:
        with self._theirs(method), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return getattr(self.own, method)(*given, **more)

    @contextmanager
    def _theirs(self, method: str) -> Iterator[None]:
        """Turn whatever their code raises, an exit included, into an error of `method`."""
        try:
            yield
        except (Exception, SystemExit) as error:
            raise RunStoppedError(
                f"{method} of {self.name} raised {type(error).__name__}: {str(error).removesuffix('.')}."
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
        with self._theirs("reading the state"):
            arrays = {name: (value, np.asarray(value)) for name, value in found.items()}
        kept = {}
        for name, (value, array) in arrays.items():
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

    Raises `SettingError` where a step fails or is not finite, where the same steps taken again end elsewhere, and
    where another object that goes on from a state in between ends elsewhere: such an optimizer draws, or keeps a
    state of its own, and a run could not be resumed. The digest is of four digits, so that another machine's
    rounding does not change it.
    """
    name = getattr(optimizer, "name", type(optimizer).__name__)
    updates = _Updates(model)
    try:
        fresh = optimizer.another() if isinstance(optimizer, Checked) else deepcopy(optimizer)
        walked = list(_walk(optimizer, updates))
        again = all(_equal(*pair) for pair in zip(walked, _walk(optimizer, updates), strict=True))
    except RunStoppedError as error:
        raise SettingError(str(error)) from error
    last = walked[-1]
    moved = {"the model": last.model.astype(np.float64) - model, **last.slots}
    if last.scale is not None:
        moved["the scale"] = last.scale
    if not is_finite(moved):
        raise SettingError(
            f"{name} made numbers that are not finite of a small mean update; a run would end at once."
        )
    if not again:
        raise SettingError(
            f"{name} made another model of the same state and update when asked again; it must be a pure function: "
            "no draws, and nothing kept outside the state that it returns."
        )
    _go_on(fresh, walked, updates, name)
    sizes = [f"{key} {float(np.linalg.norm(moved[key].astype(np.float64))):.4g}" for key in sorted(moved)]
    return hashlib.sha256("; ".join(sizes).encode()).hexdigest()[:16]


class _Reached(NamedTuple):
    """What a rehearsed step leaves; `scale` is asked for after the last one only."""

    model: Vector
    slots: Slots
    scale: Vector | None = None


class _Updates:
    """The start of a rehearsal and its made-up mean updates."""

    def __init__(self, start: Vector) -> None:
        self.start = start
        self._update = (0.01 * np.cos(np.arange(len(start)))).astype(np.float32)

    def step(self, optimizer: Optimizer, before: _Reached, done: int) -> _Reached:
        """Return what a step leaves, `done` of them being done."""
        mean = (done + 1) * self._update
        model, slots = optimizer.step(before.model, before.slots, mean, progress=done / _REHEARSED)
        is_last = done + 1 == _REHEARSED
        return _Reached(model, slots, optimizer.scale(slots) if optimizer.precondition and is_last else None)


def _walk(optimizer: Optimizer, updates: _Updates) -> Iterator[_Reached]:
    """Yield the first state and those after each step."""
    reached = _Reached(updates.start, optimizer.first(updates.start))
    yield reached
    for done in range(_REHEARSED):
        reached = updates.step(optimizer, reached, done)
        yield reached


def _go_on(fresh: Optimizer, walked: list[_Reached], updates: _Updates, name: str) -> None:
    """Raise `SettingError` unless `fresh`, whose `first` was not called, takes each step of `walked` as it was taken.

    The last step comes first: a count or a generator in the object then stands elsewhere than in a run without a stop.
    """
    advice = (
        "Keep what a step needs of the steps before it, such as their number, in the state that `first` and `step` "
        "return, where scalar arrays are allowed, and nothing in the object."
    )
    for done in reversed(range(_REHEARSED)):
        try:
            same = _equal(updates.step(fresh, walked[done], done), walked[done + 1])
        except RunStoppedError as error:
            raise SettingError(
                f"{name} cannot go on from a state of its own as a resumed run does: {error} {advice}"
            ) from error
        if not same:
            raise SettingError(
                f"{name} made another model of a state of its own when it went on from there as a resumed run does. "
                f"{advice}"
            )


def _equal(one: _Reached, other: _Reached) -> bool:
    """Say whether two steps left the same, bit for bit."""
    pairs = [(one.model, other.model), *((one.slots[key], other.slots[key]) for key in one.slots)]
    if one.scale is not None and other.scale is not None:
        pairs.append((one.scale, other.scale))
    return one.slots.keys() == other.slots.keys() and all(a.tobytes() == b.tobytes() for a, b in pairs)


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
