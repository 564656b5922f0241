"""Server optimizers: two pure functions that turn the released mean updates into models.

All of it is post-processing of what was released and costs no privacy. `Sgd`, `Adagrad`, `Adam` and `Yogi` are the library's;
docs/extend.md has the equations of all four.

Adaptive steps are Algorithm 2 of Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated
Optimization" (ICLR 2021). With the mean update x of a round, all products by coordinate:

    m <- momentum m + (1 - momentum) x
    v <- from v and x^2, by the rule of the optimizer
    model <- model + rate m / (sqrt(v) + tau)                 rate = learning_rate share

There is no bias correction, as in the paper: m begins at 0 and v at tau^2, the least that Algorithm 2 allows
(v_{-1} >= tau^2). `momentum` is its beta_1. Departures: a `schedule` of the rate, and a decoupled `weight_decay`, which takes
rate weight_decay model away each round and enters neither m nor v. Both are float32: an x above 1e19 overflows v, and the run
then ends as diverged. The paper has no noise; docs/extend.md explains what noise does to v.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedmf.checks import check_below_one, check_non_negative, check_positive, number_check
from fedmf.errors import SettingError
from fedmf.mechanisms.schedules import share
from fedmf.mechanisms.streams.protocol import blocks
from fedmf.setting import REQUIRED, SCHEDULES, check_fields, setting
from fedmf.updates.vectors import Vector

LEAST_TAU, LARGEST_TAU = 1.1e-19, 1.8e19  # their squares are just inside the normal float32 numbers
LARGEST = 10.0  # factor of a client's scale, and its inverse the smallest

# The state of an optimizer from round to round: arrays by name, (d,) or scalar.
Slots = Mapping[str, np.ndarray]


class Optimizer:
    """`init` and `update`, two pure functions, and what the noise is fitted to.

    init(parameters) -> state: the state before the first round of a run that begins with `parameters` (d,) float32.
    update(release, state, parameters, progress) -> (parameters, state): after a released mean update (d,) float32, which points
    downhill; `progress` in [0, 1) is rounds done over all rounds of the run.

    `momentum` and `schedule` are what the noise is fitted to (`workload=run`): how a mean update reaches later models if the rest
    of the optimizer is left aside. With scale(state) -> (d,) float32 above 0, clients of the second epoch and later multiply their
    updates by it before they clip, and the server divides by it.
    """

    precondition: bool = False

    def __init__(
        self,
        init: Callable[[Vector], Slots],
        update: Callable[[Vector, Slots, Vector, float], tuple[Vector, Slots]],
        *,
        momentum: float = 0.0,
        schedule: str = "constant",
        scale: Callable[[Slots], Vector] | None = None,
    ) -> None:
        self.init, self.update, self.scale = init, update, scale
        self.momentum, self.schedule, self.precondition = momentum, schedule, scale is not None


@dataclass(frozen=True)
class _Descent(Optimizer):
    """The settings that the library's optimizers share."""

    learning_rate: float = setting(
        REQUIRED, "factor of the mean update, or of an adaptive direction", check=check_positive
    )
    momentum: float = setting(
        0.0, "momentum, the weight of earlier updates, in [0, 1)", check=check_below_one
    )
    schedule: str = setting("constant", "schedule of the learning rate over all rounds of the run", SCHEDULES)
    weight_decay: float = setting(
        0.0,
        "decoupled weight decay: each round subtracts learning_rate * weight_decay times the model",
        check=check_non_negative,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.weight_decay * self.learning_rate >= 1:
            raise SettingError(
                f"weight_decay is {self.weight_decay}; with learning_rate={self.learning_rate} it must be below "
                f"{1 / self.learning_rate:g}, so that a round does not take the whole model away."
            )

    def _decayed(self, parameters: Vector, rate: float) -> Vector:
        """Return what the decay leaves of `parameters`: they themselves where nothing decays."""
        return parameters - rate * self.weight_decay * parameters if self.weight_decay else parameters


@dataclass(frozen=True)
class Sgd(_Descent):
    """Gradient descent with momentum; its state is `velocity` (d,) float32.

        velocity <- momentum velocity + x
        model <- model + rate (velocity - weight_decay model)                            rate = learning_rate share
        model <- model + rate (x + momentum velocity - weight_decay model)               with `nesterov`

    `schedule` names the share of the rate at each point of the run; see `fedmf.mechanisms.schedules`. Nesterov's
    form is that of Sutskever, Martens, Dahl, Hinton (ICML 2013) as torch writes it. `weight_decay` is decoupled
    (Loshchilov and Hutter, ICLR 2019): it acts on the model and never enters the velocity.
    """

    nesterov: bool = setting(False, "true: Nesterov momentum")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise SettingError(
                "nesterov is True, but momentum is 0, without which it is plain SGD; set both."
            )

    def init(self, parameters: Vector) -> Slots:
        return {"velocity": np.zeros_like(parameters)}

    def update(
        self, release: Vector, state: Slots, parameters: Vector, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        rate = self.learning_rate * share(self.schedule, progress)
        velocity, moved = np.empty_like(parameters), np.empty_like(parameters)
        # Divergence is reported by the check on the model, not by a warning of numpy.
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks(len(parameters), 4):  # each stays in the cache through all of the step
                np.add(self.momentum * state["velocity"][block], release[block], out=velocity[block])
                direction = velocity[block]
                if self.nesterov:
                    direction = release[block] + self.momentum * direction
                np.add(self._decayed(parameters[block], rate), rate * direction, out=moved[block])
        return moved, {"velocity": velocity}


_check_tau = number_check(
    f"lie in [{LEAST_TAU}, {LARGEST_TAU}], as v, which is float32, begins at its square",
    lambda tau: LEAST_TAU <= tau <= LARGEST_TAU,
)


@dataclass(frozen=True)
class Adagrad(_Descent):
    """Adaptive steps by the sum of all squares so far, which only become smaller; v <- v + x^2.

    The state of an adaptive optimizer is `m` and `v`, (d,) float32 each.
    """

    tau: float = setting(
        1e-3,
        "constant added to the root of the average of squares v, which begins at tau^2",
        check=_check_tau,
    )
    precondition: bool = setting(
        False,
        "true: clients scale their updates by 1 / (sqrt(v) + tau) before they clip, from the second epoch on",
    )

    def init(self, parameters: Vector) -> Slots:
        return {"m": np.zeros_like(parameters), "v": np.full_like(parameters, self.tau**2)}

    def update(
        self, release: Vector, state: Slots, parameters: Vector, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        rate = self.learning_rate * share(self.schedule, progress)
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported by the check on the state
            m: Vector = self.momentum * state["m"] + (1 - self.momentum) * release
            v = self._second_moment(state["v"], release * release)
            moved = self._decayed(parameters, rate) + rate * np.asarray(
                m / (np.sqrt(v) + self.tau), np.float32
            )
        return moved, {"m": m, "v": v}

    def scale(self, state: Slots) -> Vector:
        """Return the clients' scale of the next epoch, from v as the rounds before it left it."""
        return preconditioner(state["v"], self.tau)

    def _second_moment(self, v: Vector, square: Vector) -> Vector:
        return v + square


@dataclass(frozen=True)
class Adam(Adagrad):
    """Adaptive steps by an exponential average of squares: v <- beta2 v + (1 - beta2) x^2."""

    beta2: float = setting(0.99, "decay rate of the average of squares, in [0, 1)", check=check_below_one)

    def _second_moment(self, v: Vector, square: Vector) -> Vector:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adam):
    """Adam that forgets a large square slowly: v <- v - (1 - beta2) x^2 sign(v - x^2).

    The rule is that of Zaheer, Reddi, Sachan, Kale, Kumar (NeurIPS 2018).
    """

    def _second_moment(self, v: Vector, square: Vector) -> Vector:
        return np.asarray(v - (1 - self.beta2) * square * np.sign(v - square), np.float32)


def preconditioner(v: Vector, tau: float) -> Vector:
    """Return s = c / (sqrt(v) + tau), held to [1 / 10, 10], (d,) float32; v (d,) are second moments of updates.

    Clients multiply by s before they clip, and the server divides the released mean by s: the noise is then shaped like the
    updates, and the adaptive step makes it even again. Source: Ganesh, McMahan, Thakurta, "On Design Principles for Private
    Adaptive Optimizers" (arXiv 2507.01129), where the scale follows every step. Here it is constant in an epoch, as Li, Zaheer,
    Liu, Reddi, McMahan, Smith (ICLR 2023, arXiv 2212.00309) delay theirs, so that noise that cancels between rounds still does.
    Privacy: s follows from what was released before the epoch and is the same for all of its clients, and clipping comes after
    it (docs/privacy.md).

    c is such that sum s^2 v = sum v: an update g with g^2 = v keeps its norm, so that a clip norm keeps its
    meaning. All 1 where v has no size.

    >>> preconditioner(np.array([4.0, 4.0], "f4"), 1e-3).tolist()
    [1.0, 1.0]
    """
    moments = v.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        inverse = 1 / (np.sqrt(moments) + tau)
        size = np.sqrt(moments.sum() / (inverse * inverse * moments).sum())
    if not np.isfinite(size):
        return np.ones_like(v)
    return np.asarray(np.clip(size * inverse, 1 / LARGEST, LARGEST), np.float32)


def form(slots: Slots) -> dict[str, str]:
    """Return type and shape of each array of a state, by its name in order.

    >>> form({"v": np.zeros(3, "f4"), "count": np.array(2)})
    {'count': 'int64 []', 'v': 'float32 [3]'}
    """
    return {name: f"{slots[name].dtype} {list(slots[name].shape)}" for name in sorted(slots)}


def is_finite(slots: Slots) -> bool:
    """Return whether a state holds finite numbers only."""
    return all(bool(np.isfinite(array).all()) for array in slots.values())
