"""Which job of a sweep is under way, of how many, and by what it differs from the others."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig

from client.metric_names import BETTER_IF_LARGER
from fedmf.errors import SettingError


@dataclass(frozen=True)
class SweepJob:
    """Job `number`, 1-based, of `total`, None where the sweeper alone knows; `words` are its own settings.

    `root` is the directory of the sweep.
    """

    number: int
    total: int | None
    words: str
    root: Path

    @property
    def label(self) -> str:
        """The job as progress and results name it.

        >>> SweepJob(3, 12, "", Path()).label, SweepJob(3, None, "", Path()).label
        ('job 3/12', 'job 3')
        """
        return f"job {self.number}" + ("" if self.total is None else f"/{self.total}")


def sweep_job(hydra: Any, arguments: Sequence[str]) -> SweepJob:
    """Return the job that Hydra's settings `hydra` are of; `arguments` are those of the sweep's command line."""
    params = [f"{key}={value}" for key, value in (hydra.sweeper.get("params") or {}).items()]
    parsed = OverridesParser.create().parse_overrides([*params, *overrides_among(arguments)])
    swept = [one for one in parsed if one.is_sweep_override()]
    task = dict(text.lstrip("+").partition("=")[::2] for text in hydra.overrides.task)
    keys = [key for key in dict.fromkeys(str(one.key_or_group) for one in swept) if key in task]
    last = [key.rpartition(".")[2] for key in keys]
    words = (  # keys as short as they can be told apart
        f"{short if last.count(short) == 1 else key}={task[key]}"
        for key, short in zip(keys, last, strict=True)
    )
    root = Path(hydra.sweep.dir).resolve()
    return SweepJob(int(hydra.job.num) + 1, _total(hydra.sweeper, swept), " ".join(words), root)


def _total(sweeper: Any, swept: Sequence[Override]) -> int | None:
    """Return how many jobs a sweep has, None where that is not known beforehand."""
    target = str(sweeper.get("_target_", ""))
    if "OptunaSweeper" in target:
        is_grid = "GridSampler" in str((sweeper.get("sampler") or {}).get("_target_", ""))
        return None if is_grid else int(sweeper.n_trials)
    if not target.endswith(".BasicSweeper"):
        return None
    try:
        return math.prod(len(list(one.sweep_string_iterator())) for one in swept)
    except (HydraException, AssertionError, ValueError):
        return None  # such as glob(*), which needs the choices of a group


def overrides_among(arguments: Iterable[str]) -> list[str]:
    """Return those of the arguments that give a setting."""
    return [text for text in arguments if "=" in text and not text.startswith("-")]


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
