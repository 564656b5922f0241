"""The group `optimizer`: one frozen dataclass for each choice, which is the library's own and the name of the choice."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from client.imports import check_takes, import_maker
from experiments.settings.data import merged
from experiments.settings.keys import keyed
from experiments.settings.values import Choice, Option, plain
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting
from fedmf.updates.vectors import Vector
from server.adaptive import Adagrad, Adam, Yogi
from server.checked import Checked, rehearse
from server.optimizer import Optimizer, Sgd

_OWN = "package.module:Class, a server.Optimizer of your own (docs/optimizers.md)"


@dataclass(frozen=True)
class OptimizerSettings(Choice):
    """What every choice has: its name, or an import path."""

    name: str = setting(REQUIRED, _OWN)


@dataclass(frozen=True)
class SgdSettings(Sgd, OptimizerSettings):
    """Gradient descent with momentum."""

    learning_rate: float = setting(0.3, "what the mean update is multiplied by")
    momentum: float = setting(0.9, "share of the velocity that stays in a round, in [0, 1)")


_STEP = "what a coordinate moves in a round where its updates agree"
_BETA1 = "beta1 of the paper"


@dataclass(frozen=True)
class AdamSettings(Adam, OptimizerSettings):
    """Adam."""

    learning_rate: float = setting(0.2, _STEP)
    momentum: float = setting(0.9, _BETA1)


@dataclass(frozen=True)
class YogiSettings(Yogi, OptimizerSettings):
    """Yogi."""

    learning_rate: float = setting(0.2, _STEP)
    momentum: float = setting(0.9, _BETA1)


@dataclass(frozen=True)
class AdagradSettings(Adagrad, OptimizerSettings):
    """Adagrad."""

    learning_rate: float = setting(0.6, f"{_STEP}; the steps shrink over the run")
    tau: float = setting(1e-3, "added to the root of the sum of squares; v begins at tau^2")


@dataclass(frozen=True)
class CustomOptimizerSettings(OptimizerSettings):
    """An optimizer of one's own: `name` is its import path package.module:Class, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(
        None, "its arguments, such as {learning_rate: 0.1}; null: none"
    )


OptimizerSettings.options = {
    "sgd": Option(SgdSettings, "gradient descent with momentum"),
    "adam": Option(AdamSettings, "Adam"),
    "yogi": Option(YogiSettings, "Yogi"),
    "adagrad": Option(AdagradSettings, "Adagrad"),
    "custom": Option(
        CustomOptimizerSettings,
        _OWN,
    ),
}


def build_optimizer(settings: OptimizerSettings) -> Optimizer:
    """Return the server optimizer of a run; one of one's own is imported, called and wrapped in `Checked`.

    Raises `SettingError` for a class that is no optimizer, that does not take its settings or that raises.
    """
    if isinstance(settings, Optimizer):
        return settings
    given: dict[str, Any] = merged(plain(settings))
    name = given.pop("name")
    maker = import_maker(name, "optimizer.name", Optimizer)
    with keyed("optimizer.settings", given.keys()):
        check_takes(maker, given, who=name)
    make = partial(_make, maker, given, name)
    return Checked(make(), name, make)


def _make(maker: Callable[..., Any], given: Mapping[str, Any], name: str) -> Optimizer:
    """Return an optimizer of one's own, made anew of its settings."""
    try:
        own = maker(**deepcopy(dict(given)))
    except (Exception, SystemExit) as error:  # whatever their code raises
        raise SettingError(
            f"optimizer.name is {name!r}, which raised {type(error).__name__} when it was made ({error})."
        ) from error
    if not isinstance(own, Optimizer):
        raise SettingError(f"optimizer.name is {name!r}, which made a {type(own).__name__}, no Optimizer.")
    return own


def steps_of_own(optimizer: Optimizer, model: Vector) -> dict[str, str]:
    """Return a digest of what an optimizer of one's own does to the first `model`, by what it is called; else nothing.

    The code behind an import path can change between two calls: released rounds that are replayed would then give
    another model than was shown. Raises `SettingError` as `rehearse` does.
    """
    if not isinstance(optimizer, Checked):
        return {}
    return {"what optimizer.name does": rehearse(optimizer, model)}
