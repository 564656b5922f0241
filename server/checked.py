"""Checks of a custom optimizer: `rehearse` before a run, `Checked` in every round."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from fedmf.checks import check_below_one, check_choice
from fedmf.errors import RunStoppedError, SettingError, one_line
from fedmf.setting import SCHEDULES
from fedmf.updates.vectors import Vector
from server.optimizer import Optimizer, Slots, form, is_finite

LARGEST_SCALE = 1e6  # beyond it and below its inverse float32 updates overflow or vanish
_REHEARSED = 3  # steps: the first one may make what only a later one changes
_MODEL, _SCALE = "the model", "the scale"  # next to the names in a state, which are words


class Checked(Optimizer):
    """The optimizer that `make` returns, called `name` in messages. It is given copies, and what it returns is copied.

    Raises `SettingError` for a momentum or schedule that no noise can be fitted to. Each function raises
    `RunStoppedError` for an error of its own, and for a result that is no state: nothing is released then.
    """

    def __init__(self, make: Callable[[], Optimizer], name: str) -> None:
        self.own, self.name, self.make = make(), name, make
        check_below_one(f"the momentum of {name}", self.own.momentum)
        check_choice(f"the schedule of {name}", str(self.own.schedule), SCHEDULES)
        self.momentum, self.schedule = float(self.own.momentum), self.own.schedule
        self.precondition = self.own.precondition

    def init(self, parameters: Vector) -> Slots:
        """Return its first state, checked: numbers by name, each (d,) or a scalar."""
        with self._theirs("init"):
            state = _copied(self.own.init(parameters.copy()))
        for name, array in state.items():
            is_word = isinstance(name, str) and name.isidentifier()
            if not is_word or array.dtype.kind not in "biuf" or array.shape not in ((), parameters.shape):
                raise RunStoppedError(
                    f"the state of {self.name} holds {name!r}, {array.dtype} {list(array.shape)}; a state has numbers of shape [] "
                    f"or {list(parameters.shape)} under words."
                )
        return state

    def update(
        self, release: Vector, state: Slots, parameters: Vector, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        """Return its step, checked: model and state keep names, shapes and types."""
        with self._theirs("update"):
            model, after = self.own.update(release.copy(), _copied(state), parameters.copy(), progress)
            moved, kept = np.array(model), _copied(after)
        given, found = form({_MODEL: parameters, **state}), form({_MODEL: moved, **kept})
        if found != given:
            raise RunStoppedError(
                f"update of {self.name} returned {found}; it must keep names, shapes and types: {given}."
            )
        return moved, kept

    def scale(self, state: Slots) -> Vector:
        """Return its scale, checked: (d,) float32 in [1e-6, 1e6]."""
        assert self.own.scale is not None
        with self._theirs("scale"):
            scale = np.array(self.own.scale(_copied(state)))
            least, largest = scale.min(), scale.max()  # nan where any is
        shapes = {array.shape for array in state.values() if array.ndim} or {scale.shape}
        is_within = np.float32(1 / LARGEST_SCALE) <= least and largest <= np.float32(LARGEST_SCALE)
        if scale.dtype != np.float32 or scale.shape not in shapes or not is_within:
            raise RunStoppedError(
                f"scale of {self.name} is {scale.dtype} {list(scale.shape)} from {least:g} to {largest:g}; it must be float32 of "
                f"the model's shape in [{1 / LARGEST_SCALE:g}, {LARGEST_SCALE:g}], or clients' updates would overflow or vanish."
            )
        return scale

    @contextmanager
    def _theirs(self, function: str) -> Iterator[None]:
        """Turn whatever their code raises, an exit included, into an error of `function`."""
        try:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                yield
        except (Exception, SystemExit) as error:
            raise RunStoppedError(f"{function} of {self.name} raised {one_line(error)}.") from error


def rehearse(optimizer: Checked, model: Vector) -> str:
    """Return a digest of a few steps from `model` (d,) on made-up updates, of which nothing is kept.

    Raises `SettingError` where a step fails or is not finite, and where another optimizer of the same settings makes another
    step of the same state: such an optimizer draws, or keeps a state of its own, and a run could not be resumed. The digest
    is of four digits, so that another machine's rounding does not change it.
    """
    try:
        walked: list[Slots] = [{_MODEL: model, **optimizer.init(model)}]
        for done in range(_REHEARSED):
            walked.append(_step(optimizer, walked[-1], done))
    except RunStoppedError as error:
        raise SettingError(str(error)) from error
    moved = {**walked[-1], _MODEL: walked[-1][_MODEL].astype(np.float64) - model}
    if not is_finite(moved):
        raise SettingError(
            f"{optimizer.name} made numbers that are not finite of a small mean update; a run would end at once."
        )
    # Another one, which has done nothing yet, takes each step as it was taken. The last step comes first: a count or a generator
    # outside the state then stands elsewhere than in a run without a stop.
    fresh = Checked(optimizer.make, optimizer.name)
    for done in reversed(range(_REHEARSED)):
        why = "it made another model of the same state"
        try:
            again, before = _step(fresh, walked[done], done), walked[done + 1]
            is_same = all(again[name].tobytes() == before[name].tobytes() for name in before)
        except RunStoppedError as error:
            why, is_same = str(error).removesuffix("."), False
        if not is_same:
            raise SettingError(
                f"{fresh.name} cannot continue from its own state as a resumed run does: {why}. It must be a pure function: no "
                "draws, and what a step needs of the steps before it, such as their number, in the state that `init` and "
                "`update` return, where scalar arrays are allowed."
            )
    sizes = [f"{key} {float(np.linalg.norm(moved[key].astype(np.float64))):.4g}" for key in sorted(moved)]
    return hashlib.sha256("; ".join(sizes).encode()).hexdigest()[:16]


def _step(optimizer: Checked, before: Slots, done: int) -> Slots:
    """Return model, state and scale after a step from those in `before`, by name; `done` steps were taken."""
    state: Slots = {name: array for name, array in before.items() if name not in (_MODEL, _SCALE)}
    release = (0.01 * (done + 1) * np.cos(np.arange(len(before[_MODEL])))).astype(np.float32)
    model, state = optimizer.update(release, state, before[_MODEL], done / _REHEARSED)
    scale = {_SCALE: optimizer.scale(state)} if optimizer.precondition else {}
    return {_MODEL: model, **state, **scale}


def _copied(state: object) -> dict[str, np.ndarray]:
    """Return a copy of a state. Raises `TypeError` for something else."""
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is a {type(state).__name__}; it must be a mapping")
    return {name: np.array(value) for name, value in state.items()}
