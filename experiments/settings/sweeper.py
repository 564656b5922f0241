"""What a sweeper that learns from its jobs, such as Optuna, must be told before the first of them trains."""

import math
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from client.metric_names import BETTER_IF_LARGER
from fedmf.errors import SettingError

_LEARN = ("optuna", "nevergrad", "ax")  # sweepers that need a value of every job


def check_sweeper(sweeper: DictConfig, optimized_metric: str | None) -> None:
    """Raise `SettingError` where `sweeper`, Hydra's settings of it, would learn nothing, or the opposite of what is meant."""
    package = str(sweeper.get("_target_", ""))
    name = next((name for name in _LEARN if f"hydra_{name}_sweeper" in package), None)
    if name is None:
        return
    if optimized_metric is None:
        raise SettingError(
            f"hydra/sweeper is {name}, which chooses by a value of every run, but run.optimized_metric is null; set it to "
            "one of metrics, such as accuracy or loss."
        )
    if name != "optuna":
        return
    direction = sweeper.direction
    said = getattr(direction, "name", direction)
    if said not in ("minimize", "maximize"):
        raise SettingError(
            f"hydra.sweeper.direction is {said}; a run gives one value, so that it must be minimize or maximize."
        )
    wanted = {True: "maximize", False: "minimize", None: said}[BETTER_IF_LARGER.get(optimized_metric)]
    if said != wanted:
        better = "larger" if wanted == "maximize" else "smaller"
        raise SettingError(
            f"hydra.sweeper.direction is {said}, but a {better} {optimized_metric} is better; "
            f"set hydra.sweeper.direction={wanted}."
        )


def check_value(value: Any, optimized_metric: str | None, directory: Path) -> None:
    """Raise `SettingError` for a value by which no sweeper can choose: its job counts as failed."""
    if value is not None and math.isnan(value):
        raise SettingError(
            f"run.optimized_metric is {optimized_metric}, which the run in {directory} recorded as null: it is not defined "
            "for the last model, or could not be computed."
        )
