"""What a sweeper is told is checked before its first run trains."""

import math
from enum import Enum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from experiments.settings.sweep import check_sweeper, check_value
from fedmf.errors import SettingError


class Direction(Enum):
    """As the plugin has it."""

    minimize = 1
    maximize = 2


def optuna(direction: object) -> object:
    """Return the settings of hydra/sweeper=optuna, as far as they matter."""
    target = "hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper"
    return OmegaConf.create({"_target_": target, "direction": direction})


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("accuracy", "maximize"),
        ("top5", "maximize"),
        ("f1", "maximize"),
        ("loss", "minimize"),
        ("perplexity", "minimize"),
    ],
)
def test_a_sweep_towards_the_worst_settings_is_refused(metric: str, direction: str) -> None:
    (wrong,) = {"maximize", "minimize"} - {direction}
    for form in (str, Direction.__getitem__):
        check_sweeper(optuna(form(direction)), metric)  # type: ignore[arg-type]
        with pytest.raises(
            SettingError, match=f"direction is {wrong}.*set hydra.sweeper.direction={direction}"
        ):
            check_sweeper(optuna(form(wrong)), metric)  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_which_way_a_metric_of_ones_own_is_better_is_the_users_word(direction: str) -> None:
    check_sweeper(optuna(direction), "recall")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["optuna", "nevergrad", "ax"])
def test_a_sweeper_that_learns_needs_to_know_from_what(name: str) -> None:
    sweeper = OmegaConf.create({"_target_": f"hydra_plugins.hydra_{name}_sweeper.X", "direction": "maximize"})
    with pytest.raises(SettingError, match=rf"hydra/sweeper is {name}, .* run\.optimized_metric is null"):
        check_sweeper(sweeper, None)
    check_sweeper(sweeper, "accuracy")


def test_hydras_own_sweeper_needs_nothing() -> None:
    check_sweeper(
        OmegaConf.create({"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}), None
    )


def test_several_directions_are_refused() -> None:
    with pytest.raises(SettingError, match="a run gives one value"):
        check_sweeper(optuna(["maximize", "minimize"]), "accuracy")  # type: ignore[arg-type]


def test_a_value_that_is_not_defined_fails_its_job_with_a_sentence() -> None:
    check_value(0.5, "recall", Path("r"))
    check_value(None, None, Path("r"))
    with pytest.raises(SettingError, match=r"recall, which the run in r recorded as null"):
        check_value(math.nan, "recall", Path("r"))
