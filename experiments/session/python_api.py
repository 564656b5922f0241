"""The Python door: `from experiments import run`.

Settings are those of `python -m experiments.simulate`; progress goes to stderr, nothing is printed at the end, and
mistakes are `FedmfError`s. Nothing global is left behind: Hydra's state is as it was. Runs that several threads ask
for take turns: Hydra, Flower and torch's default generator know one state a process."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

from torch import nn

from client.metrics import ALWAYS
from experiments.run_files.model_files import load_model, recorded_seed
from experiments.run_files.reader import Run, read_config, read_run
from experiments.session.resume import run_settings
from experiments.session.session import simulate
from experiments.settings.jobs import default_directory
from experiments.settings.recorded import named_code, refuse_code
from experiments.settings.schema import Settings
from experiments.settings.values import as_overrides, plain
from fedmf.errors import SettingError


@dataclass(frozen=True)
class Result:
    """A finished run; read from `directory`, which can be given to every command.

    `trust_code`: whether a model that config.yaml names by import path may be imported. A run directory of another person
    can name any code. `given` are import paths that the caller named.
    """

    directory: Path
    trust_code: bool = False
    given: frozenset[str] = frozenset()

    @cached_property
    def run(self) -> Run:
        """Everything that the run recorded. Raises `RunDirectoryError` for a directory without a finished run."""
        return read_run(self.directory)

    @property
    def accuracy(self) -> float:
        """Accuracy of the last model on the test set, in [0, 1]."""
        return self.run.score("accuracy")

    @property
    def loss(self) -> float:
        """Loss of the last model on the test set, in nats."""
        return self.run.score("loss")

    @property
    def scores(self) -> dict[str, float]:
        """Every metric of the last model on the test set by name, accuracy and loss first; nan where one is not defined."""
        return {name: self.run.score(name) for name in (*ALWAYS, *self.run.further_metrics)}

    @property
    def learning(self) -> str:
        """Whether the run learnt, in one sentence with a remedy where it did not; "" for a run of an earlier version."""
        return str(self.run.summary.get("learning") or "")

    @property
    def epsilon(self) -> float:
        """Epsilon spent at `delta`, infinite for a run without noise; `statement` says for whom and what not."""
        spent = self.run.summary.get("epsilon")
        return math.inf if spent is None else float(spent)

    @property
    def delta(self) -> float:
        """The delta at which `epsilon` holds."""
        return self.run.score("delta")

    @property
    def statement(self) -> str:
        """The privacy statement in plain words: unit, adjacency, what is released, what is not covered."""
        return str(self.run.privacy["paragraph"])

    @property
    def metrics(self) -> tuple[dict[str, Any], ...]:
        """The rows of metrics.jsonl, one for each released round."""
        return self.run.rounds

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of summary.json."""
        return self.run.summary

    def model(self) -> nn.Module:
        """Return a torch module with the trained weights, in evaluation mode."""
        if not self.trust_code:
            refuse_code(self.directory, {"model": self.run.config["model"]}, given=self.given)
        return load_model(
            self.directory, self.run.config["model"], self.run.shape, recorded_seed(self.run.config)
        )


_ONE_AT_A_TIME = RLock()


class Runner:
    """Runs simulations in this process; `experiments.run` is one."""

    def __call__(self, *overrides: str, **settings: object) -> Result:
        """Train and return what came of it.

        `overrides` are those of the command line ("population.epochs=2"); `settings` the same as keywords, a group as
        a mapping: `run("model=mlp", seed=3, population={"epochs": 2})`. Without run.directory the run's folder is
        runs/DATE_TIME below the current directory. Raises a `FedmfError` for what cannot run as asked, before
        anything is written.

        >>> list(as_overrides({"seed": 3, "privacy": {"epsilon": None, "noise_multiplier": 0.5}}))
        ['seed=3', 'privacy.epsilon=null', 'privacy.noise_multiplier=0.5']
        """
        for override in overrides:
            if not isinstance(override, str):
                raise SettingError(f"{override!r} is no override; give texts such as 'seed=3', or keywords.")
        with _ONE_AT_A_TIME:
            composed = run_settings([*overrides, *as_overrides(settings)])
            return _simulated(composed, Path(default_directory(composed.run.directory)))

    def resume(
        self,
        directory: str | Path,
        *overrides: str,
        trust_code: bool = False,
        accept_copy: bool = False,
        allow_version_change: bool = False,
    ) -> Result:
        """Continue the run in `directory` after its last released round, with the settings it recorded.

        A finished run is returned as it is. `overrides` may be those that can change between the calls of one run, such
        as "engine.workers=4". `trust_code` as in `load`; `accept_copy`: whether `directory` may be a copy
        or an older state of the directory that the run began in; `allow_version_change`: whether other code of fedmf
        than ran it so far may continue it. Raises `RunDirectoryError` for a directory that holds no run and
        for overrides that are not the run's own, and what `simulate` raises.
        """
        return self._again(
            directory,
            overrides,
            resume=True,
            trust_code=trust_code,
            accept_copy=accept_copy,
            allow_version_change=allow_version_change,
        )

    def extend(
        self,
        directory: str | Path,
        epochs: int,
        *overrides: str,
        max_epsilon: float | None = None,
        trust_code: bool = False,
        allow_version_change: bool = False,
    ) -> Result:
        """Add `epochs` to the finished run in `directory`, whose statement then covers all of them.

        Raises `PrivacyBudgetExhausted`, with the epsilon of the longer run, unless `max_epsilon` allows it, or the limit
        of the run itself does; everything then stays as it was. The rest as in `resume`.
        """
        allowed = () if max_epsilon is None else (f"privacy.max_epsilon={float(max_epsilon)!r}",)
        return self._again(
            directory,
            (*overrides, *allowed),
            extend=epochs,
            trust_code=trust_code,
            allow_version_change=allow_version_change,
        )

    def _again(self, directory: str | Path, overrides: tuple[str, ...], **about: object) -> Result:
        read_config(Path(directory))  # an error for a directory without a run
        given = [*overrides, *as_overrides({"run": {"directory": str(directory), **about}})]
        with _ONE_AT_A_TIME:
            return _simulated(run_settings(given, "trust_code=True"), Path(directory))

    def load(self, directory: str | Path, *, trust_code: bool = False) -> Result:
        """Return the finished run in `directory`; raises `RunDirectoryError` where there is none.

        `trust_code`: whether a loader or model that its config.yaml names by import path may be imported.
        """
        result = Result(Path(directory).resolve(), trust_code)
        _ = result.run  # refuses an unfinished or unreadable run here, not at its first use
        return result


run = Runner()


def _simulated(settings: Settings, directory: Path) -> Result:
    simulate(settings, directory.resolve())
    # This process named that code, and no other: config.yaml may have changed since a run began.
    return Result(directory.resolve(), given=frozenset(named_code(plain(settings)).values()))
