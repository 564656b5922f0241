"""The group `optimizer`: one frozen dataclass for each choice, the library's own with the defaults of a run."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, make_dataclass
from functools import partial
from typing import Any

from client.imports import check_takes, import_maker
from experiments.settings.data import arguments
from experiments.settings.keys import keyed
from experiments.settings.values import Choice, Option
from fedmf.errors import SettingError
from fedmf.setting import REQUIRED, setting
from server.checked import Checked
from server.optimizer import Adagrad, Adam, Optimizer, Sgd, Yogi

_OWN = "package.module:function, which returns a server.Optimizer (docs/extend.md)"


@dataclass(frozen=True)
class OptimizerSettings(Choice):
    """What every choice has: its name, or an import path."""

    name: str = setting(REQUIRED, _OWN)


def _settings_of(name: str, own: type[Optimizer], **defaults: float) -> type[OptimizerSettings]:
    """Return the settings of the library's optimizer `own`, which are its fields with these defaults."""
    fields_ = {item.name: item for item in fields(own)}  # type: ignore[arg-type]
    changed = [
        (key, fields_[key].type, setting(value, **fields_[key].metadata)) for key, value in defaults.items()
    ]
    place = {"__module__": __name__}
    return make_dataclass(
        f"{name}_settings", changed, bases=(own, OptimizerSettings), namespace=place, frozen=True
    )


@dataclass(frozen=True)
class CustomOptimizerSettings(OptimizerSettings):
    """A custom optimizer: `name` is its import path package.module:function, `settings` its arguments."""

    settings: Mapping[str, object] | None = setting(
        None, "its arguments, such as {learning_rate: 0.1}; null: none"
    )


OptimizerSettings.options = {
    "sgd": Option(
        _settings_of("sgd", Sgd, learning_rate=0.3, momentum=0.9), "gradient descent with momentum"
    ),
    "adam": Option(_settings_of("adam", Adam, learning_rate=0.2, momentum=0.9), "Adam"),
    "yogi": Option(_settings_of("yogi", Yogi, learning_rate=0.2, momentum=0.9), "Yogi"),
    "adagrad": Option(_settings_of("adagrad", Adagrad, learning_rate=0.6), "Adagrad"),
    "custom": Option(CustomOptimizerSettings, _OWN),
}
globals().update(
    {option.settings.__name__: option.settings for option in OptimizerSettings.options.values()}
)  # for pickle


def build_optimizer(settings: OptimizerSettings) -> Optimizer:
    """Return the server optimizer of a run; a custom one is imported, called and wrapped in `Checked`.

    Raises `SettingError` for a function that makes no optimizer, that does not take its settings or that raises.
    """
    if isinstance(settings, Optimizer):
        return settings
    given: dict[str, Any] = arguments(settings)
    name = given.pop("name")
    maker = import_maker(name, "optimizer.name", Optimizer)
    with keyed("optimizer.settings", given.keys()):
        check_takes(maker, given, who=name)
    return Checked(partial(_make, maker, given, name), name)


def _make(maker: Callable[..., Any], given: Mapping[str, Any], name: str) -> Optimizer:
    """Return a custom optimizer, made of a copy of its settings."""
    try:
        own = maker(**deepcopy(dict(given)))
    except (Exception, SystemExit) as error:
        raise SettingError(
            f"optimizer.name is {name!r}, which raised {type(error).__name__} when it was made ({error})."
        ) from error
    if not isinstance(own, Optimizer):
        raise SettingError(f"optimizer.name is {name!r}, which made a {type(own).__name__}, no Optimizer.")
    return own
