"""The server optimizer: what turns the released mean updates into models, and its plain form, SGD.

It is post-processing of what was released and costs no privacy. `server.adaptive` has Adam, Yogi and Adagrad,
docs/optimizers.md the equations of all of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedmf.checks import check_below_one, check_choice, check_non_negative, check_positive
from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms.schedules import share
from fedmf.mechanisms.streams.protocol import blocks
from fedmf.setting import REQUIRED, setting
from fedmf.updates.vectors import Vector

Slots = Mapping[str, npt.NDArray[Any]]
"""What an optimizer keeps from round to round: arrays by name, (d,) or scalar."""


class Optimizer(ABC):
    """A server optimizer: frozen settings, and pure functions of the state that goes in and comes out.

    `momentum` and `schedule` are what the noise is fitted to (`workload=run`): how a mean update reaches later models
    if the rest of the optimizer is left aside. With `precondition` the clients of the second epoch and later scale
    their updates by `scale` before clipping (`server.preconditioning`).

    A class of one's own inherits from this one. It keeps nothing in itself, changes no array in place, and draws
    nothing: a released round is replayed from the record, and must give the model that was shown.
    """

    momentum: float = 0.0
    schedule: str = "constant"
    precondition: bool = False

    @abstractmethod
    def first(self, model: Vector) -> Slots:
        """Return the state before the first round of a run that begins with `model` (d,) float32."""

    @abstractmethod
    def step(
        self, model: Vector, slots: Slots, mean: Vector, *, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        """Return the new model (d,) float32 and state, after a mean update (d,) that points downhill.

        `progress` in [0, 1) is rounds done over all rounds of the run.
        """

    def scale(self, slots: Slots) -> Vector:
        """Return what the clients of the next epoch scale by, (d,) float32 above 0; asked for with `precondition` only."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Gradient descent with momentum; its state is `velocity` (d,) float32.

        velocity <- momentum velocity + mean
        model <- model + rate (velocity - weight_decay model)                            rate = learning_rate share
        model <- model + rate (mean + momentum velocity - weight_decay model)            with `nesterov`

    `schedule` names the share of the rate at each point of the run; see `fedmf.mechanisms.schedules`. Nesterov's
    form is that of Sutskever, Martens, Dahl, Hinton (ICML 2013) as torch writes it. `weight_decay` is decoupled
    (Loshchilov and Hutter, ICLR 2019): it acts on the model and never enters the velocity.
    """

    learning_rate: float = setting(REQUIRED, "what the mean update is multiplied by")
    momentum: float = setting(0.0, "share of the velocity that stays in a round, in [0, 1)")
    schedule: str = setting("constant", "of the learning rate, over all rounds of the run", SCHEDULES)
    nesterov: bool = setting(False, "true: look one step of the momentum ahead")
    weight_decay: float = setting(
        0.0, "decoupled: learning_rate * weight_decay of the model is taken away each round"
    )

    def __post_init__(self) -> None:
        check_descent(self.learning_rate, self.momentum, self.schedule, self.weight_decay)
        if self.nesterov and not self.momentum:
            raise SettingError(
                "nesterov is True, but momentum is 0, without which it is plain SGD; set both."
            )

    def first(self, model: Vector) -> Slots:
        """Return a velocity of zeros."""
        return {"velocity": np.zeros_like(model)}

    def step(
        self, model: Vector, slots: Slots, mean: Vector, *, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        """Return the new model and velocity; see `Optimizer.step`."""
        rate = self.learning_rate * share(self.schedule, progress)
        decay = rate * self.weight_decay
        velocity, moved = np.empty_like(model), np.empty_like(model)
        # Divergence is reported by the check on the model, not by a warning of numpy.
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks(len(model), 4):  # each stays in the cache through all of the step
                np.add(self.momentum * slots["velocity"][block], mean[block], out=velocity[block])
                direction = velocity[block]
                if self.nesterov:
                    direction = mean[block] + self.momentum * direction
                np.add(decayed(model[block], decay), rate * direction, out=moved[block])
        return moved, {"velocity": velocity}


def as_vector(values: npt.NDArray[Any]) -> Vector:
    """Return values as float32, which they are already where all that they came from was."""
    return np.asarray(values, np.float32)


def form(slots: Slots) -> dict[str, str]:
    """Return type and shape of each array of a state, by its name in order.

    >>> form({"v": np.zeros(3, "f4"), "count": np.array(2)})
    {'count': 'int64 []', 'v': 'float32 [3]'}
    """
    return {name: f"{slots[name].dtype} {list(slots[name].shape)}" for name in sorted(slots)}


def is_finite(slots: Slots) -> bool:
    """Say whether a state holds finite numbers only."""
    return all(bool(np.isfinite(array).all()) for array in slots.values())


def check_descent(learning_rate: float, momentum: float, schedule: str, weight_decay: float) -> None:
    """Raise `SettingError` for what no rule descends with, and a decay that would turn the model's sign in one round."""
    check_positive("learning_rate", learning_rate)
    check_below_one("momentum", momentum)
    check_choice("schedule", schedule, SCHEDULES)
    check_non_negative("weight_decay", weight_decay)
    if weight_decay * learning_rate >= 1:
        raise SettingError(
            f"weight_decay is {weight_decay}; with learning_rate={learning_rate} it must be below "
            f"{1 / learning_rate:g}, so that a round does not take the whole model away."
        )


def decayed(model: Vector, decay: float) -> Vector:
    """Return (1 - `decay`) `model`; the model itself where nothing decays."""
    return model - decay * model if decay else model
