"""Adaptive server optimizers: Adagrad, Adam and Yogi on released means.

Source: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive Federated Optimization" (ICLR 2021),
Algorithm 2. With the mean update x of a round, all products by coordinate:

    m <- momentum m + (1 - momentum) x
    v <- v + x^2                                              Adagrad
    v <- beta2 v + (1 - beta2) x^2                            Adam
    v <- v - (1 - beta2) x^2 sign(v - x^2)                    Yogi
    model <- model + rate m / (sqrt(v) + tau)                 rate = learning_rate share

There is no bias correction, as in the paper: m begins at 0 and v at tau^2, the least that Algorithm 2 allows
(v_{-1} >= tau^2). `momentum` is its beta_1. Departures: a `schedule` of the rate, and a decoupled `weight_decay`,
which takes rate weight_decay model away each round and enters neither m nor v.

All of it is float32, v too: it resolves squares down to 1e-38 and beyond that they count as 0, which tau covers.
An x above 1e19 overflows v; the run then ends as diverged.

What is released is noisy, and so is v: in a coordinate where the noise is larger than the mean, v is the variance of
the noise. The paper above has no noise. docs/optimizers.md says what that does.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fedmf.checks import check_below_one, check_positive
from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms.schedules import share
from fedmf.setting import REQUIRED, setting
from fedmf.updates.vectors import Vector
from server.optimizer import Optimizer, Slots, as_vector, check_descent, decayed
from server.preconditioning import preconditioner

LEAST_TAU, LARGEST_TAU = 1.1e-19, 1.8e19  # their squares are just inside the normal float32 numbers


@dataclass(frozen=True)
class Adaptive(Optimizer):
    """What the three have in common; the state is `m` and `v`, (d,) float32 each."""

    learning_rate: float = setting(REQUIRED, "what a coordinate moves in a round where its updates agree")
    momentum: float = setting(0.0, "beta1 of the paper")
    schedule: str = setting("constant", "of the learning rate, over all rounds of the run", SCHEDULES)
    tau: float = setting(1e-3, "added to the root of that average; v begins at tau^2")
    weight_decay: float = setting(
        0.0, "decoupled: learning_rate * weight_decay of the model is taken away each round"
    )
    precondition: bool = setting(
        False, "true: from the second epoch on, clients scale by 1 / (sqrt(v) + tau) before they clip"
    )

    def __post_init__(self) -> None:
        check_descent(self.learning_rate, self.momentum, self.schedule, self.weight_decay)
        check_positive("tau", self.tau)
        _check_tau(self.tau)

    @abstractmethod
    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return the new v from the old one and the squares of a mean update, (d,) float32."""

    def first(self, model: Vector) -> Slots:
        """Return m = 0 and v = tau^2."""
        return {"m": np.zeros_like(model), "v": np.full_like(model, self.tau**2)}

    def step(
        self, model: Vector, slots: Slots, mean: Vector, *, progress: float = 0.0
    ) -> tuple[Vector, Slots]:
        """Return the new model, m and v; see `Optimizer.step`."""
        rate = self.learning_rate * share(self.schedule, progress)
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is reported by the check on the state
            m = as_vector(self.momentum * slots["m"] + (1 - self.momentum) * mean)
            v = self.second_moment(slots["v"], mean * mean)
            direction = as_vector(m / (np.sqrt(v) + self.tau))
            moved = decayed(model, rate * self.weight_decay) + rate * direction
        return moved, {"m": m, "v": v}

    def scale(self, slots: Slots) -> Vector:
        """Return the clients' scale of the next epoch, from v as the rounds before it left it."""
        return preconditioner(slots["v"], self.tau)


def _check_tau(tau: float) -> None:
    """Raise `SettingError` for a tau whose square, at which v begins, is no normal float32 number."""
    if not LEAST_TAU <= tau <= LARGEST_TAU:
        raise SettingError(
            f"tau is {tau}; v is float32 and begins at its square, so that it must lie in [{LEAST_TAU}, {LARGEST_TAU}]."
        )


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """Adaptive steps by the sum of all squares so far: they only become smaller."""

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return v + x^2."""
        return v + square


@dataclass(frozen=True)
class Adam(Adaptive):
    """Adaptive steps by an exponential average of squares."""

    beta2: float = setting(0.99, "how slowly the average of squares forgets")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one("beta2", self.beta2)

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return beta2 v + (1 - beta2) x^2."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """Adam whose v moves by no more than (1 - beta2) x^2 a round: it forgets a large square slowly.

    The rule of v is that of Zaheer, Reddi, Sachan, Kale, Kumar (NeurIPS 2018).
    """

    beta2: float = setting(0.99, "how slowly the average of squares forgets")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_below_one("beta2", self.beta2)

    def second_moment(self, v: Vector, square: Vector) -> Vector:
        """Return v - (1 - beta2) x^2 sign(v - x^2)."""
        return as_vector(v - (1 - self.beta2) * square * np.sign(v - square))
