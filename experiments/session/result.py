"""What a run left in its directory, for Python: figures, statement, rounds, plan and the trained model."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from client.metric_names import ALWAYS
from experiments.run_files.directory import PRIVACY, SUMMARY
from experiments.run_files.model import load_model, recorded_seed
from experiments.run_files.reader import Run, read_run
from experiments.settings.data import load_dataset, merged
from experiments.settings.experiment import build
from experiments.settings.recorded import refuse_code, restored
from fedmf.errors import RunDirectoryError
from fedmf.plan import Plan


@dataclass(frozen=True)
class Result:
    """A finished run; read from `directory`, which can be given to every command.

    `trust_code`: whether loaders and models that config.yaml names by import path may be imported. A run
    directory of somebody else's can name any code. `given` are import paths that the caller named.
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
        return float(self._figure("accuracy"))

    @property
    def loss(self) -> float:
        """Loss of the last model on the test set, in nats."""
        return float(self._figure("loss"))

    @property
    def scores(self) -> dict[str, float]:
        """Every metric of the last model on the test set by name, accuracy and loss first; nan where one is not defined."""
        return {name: self.run.score(name) for name in (*ALWAYS, *self.run.further_metrics)}

    @property
    def epsilon(self) -> float:
        """Epsilon spent at `delta`, infinite for a run without noise; `statement` says for whom and what not."""
        spent = self._figure("epsilon")
        return math.inf if spent is None else float(spent)

    @property
    def delta(self) -> float:
        """The delta at which `epsilon` holds."""
        return float(self._figure("delta"))

    @property
    def statement(self) -> str:
        """The privacy statement in plain words: unit, adjacency, what is released, what is not covered."""
        return str(self._figure("paragraph", PRIVACY))

    @property
    def metrics(self) -> tuple[dict[str, Any], ...]:
        """The rows of metrics.jsonl, one for each released round."""
        return self.run.rounds

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of summary.json."""
        return self.run.summary

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run, made again from its settings; reads the data set."""
        self._refuse_code()
        settings = restored(self.run.config)  # the plan is the same whatever the weights were
        return build(replace(settings, model=replace(settings.model, start=None))).plan

    def model(self) -> nn.Module:
        """Return a torch module with the trained weights, in evaluation mode; reads the data set for its shape."""
        self._refuse_code()
        dataset = load_dataset(merged(self.run.config["dataset"]), self.run.config["model"]["name"])
        return load_model(self.directory, self.run.config["model"], dataset, recorded_seed(self.run.config))

    def _figure(self, name: str, file: str = SUMMARY) -> Any:
        """Return a value of summary.json or privacy.json. Raises `RunDirectoryError` where it is not there."""
        document = self.run.summary if file == SUMMARY else self.run.privacy
        if name not in document or (document[name] is None and name != "epsilon"):  # null: there is no bound
            raise RunDirectoryError(
                f"{self.directory / file} lacks {name}; the run has not finished as it should."
            )
        return document[name]

    def _refuse_code(self) -> None:
        if not self.trust_code:
            refuse_code(self.directory, self.run.config, given=self.given)
