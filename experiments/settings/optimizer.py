"""The group `optimizer`: one frozen dataclass for each choice, which is the library's own and the name of the choice."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from client.imports import check_takes, import_maker
from experiments.settings.data import merged
from experiments.settings.frozen import Choice, plain
from experiments.settings.keys import keyed
from fedmf.errors import SettingError
from fedmf.updates.vectors import Vector
from server.adaptive import Adagrad, Adam, Yogi
from server.checked import Checked, rehearse
from server.optimizer import Optimizer, Sgd


@dataclass(frozen=True)
class OptimizerSettings(Choice):
    """What every choice has: the name of its file in conf/optimizer, or an import path."""

    name: str


@dataclass(frozen=True)
class SgdSettings(Sgd, OptimizerSettings):
    """Gradient descent with momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_other_choice(self)


@dataclass(frozen=True)
class AdamSettings(Adam, OptimizerSettings):
    """Adam."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_other_choice(self)


@dataclass(frozen=True)
class YogiSettings(Yogi, OptimizerSettings):
    """Yogi."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_other_choice(self)


@dataclass(frozen=True)
class AdagradSettings(Adagrad, OptimizerSettings):
    """Adagrad."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_other_choice(self)


@dataclass(frozen=True)
class CustomOptimizerSettings(OptimizerSettings):
    """An optimizer of one's own: `name` is its import path package.module:Class, `settings` its arguments."""

    settings: Mapping[str, object] | None

    def __post_init__(self) -> None:
        _refuse_other_choice(self)


OPTIMIZERS: dict[str, type[OptimizerSettings]] = {
    "sgd": SgdSettings,
    "adam": AdamSettings,
    "yogi": YogiSettings,
    "adagrad": AdagradSettings,
    "custom": CustomOptimizerSettings,
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


def _refuse_other_choice(settings: OptimizerSettings) -> None:
    """Raise `SettingError` for a name whose settings are not these."""
    choice = "custom" if ":" in settings.name else settings.name
    if choice == "custom" and ":" not in settings.name:
        raise SettingError(
            f"optimizer.name is {settings.name!r}; it must be package.module:Class with optimizer=custom."
        )
    if OPTIMIZERS.get(choice) is not type(settings):
        raise SettingError(
            f"optimizer.name is {settings.name!r}; choose an optimizer as optimizer=NAME, one of {', '.join(OPTIMIZERS)}."
        )
