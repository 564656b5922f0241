"""The group `optimizer`: one frozen dataclass for each choice, which is the library's own and the name of the choice."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from client.imports import check_takes, import_maker
from experiments.settings.data import arguments
from experiments.settings.keys import keyed
from experiments.settings.values import Choice, Option
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting
from server.adaptive import Adagrad, Adam, Yogi
from server.checked import Checked
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


@dataclass(frozen=True)
class AdamSettings(Adam, OptimizerSettings):
    """Adam."""

    learning_rate: float = setting(0.2, _STEP)
    momentum: float = setting(0.9, "beta1 of the paper")


@dataclass(frozen=True)
class YogiSettings(Yogi, OptimizerSettings):
    """Yogi."""

    learning_rate: float = setting(0.2, _STEP)
    momentum: float = setting(0.9, "beta1 of the paper")


@dataclass(frozen=True)
class AdagradSettings(Adagrad, OptimizerSettings):
    """Adagrad."""

    learning_rate: float = setting(0.6, _STEP)


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
    given: dict[str, Any] = arguments(settings)
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
