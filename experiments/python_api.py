"""The Python API: `from experiments import run`.

Settings are those of `python -m experiments.simulate`; a class, a function or a dataset may stand in the place of an import path.
Progress goes to stderr, nothing is printed at the end, and mistakes are `FedmfError`s. Nothing global is left behind: Hydra's
state is as it was. Runs that several threads ask for take turns: Hydra, Flower and torch's default generator know one state a
process. pandas, where a table is asked for, comes with the extra data.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from torch import nn

from client.imports import lending, need
from experiments.cli.result import rows, statement_lines
from experiments.evaluate import EvaluateSettings, scores
from experiments.export import ExportSettings, written
from experiments.pages.comparison import read_comparison
from experiments.pages.figures import LinePlot
from experiments.pages.run_page import by_round_section
from experiments.pages.wording import SHORT, text_of
from experiments.plan import asked, planned
from experiments.run_files.listing import find
from experiments.run_files.model_files import load_model, recorded_seed
from experiments.run_files.reader import Run, read_config, read_run
from experiments.session.resume import CONSENT, run_settings
from experiments.session.session import Callback, StoppedByCallback, simulate
from experiments.settings.compose import check_no_flags, compose
from experiments.settings.jobs import default_directory
from experiments.settings.objects import named
from experiments.settings.recorded import check_code_is_named, named_code
from experiments.settings.values import plain
from fedmf.errors import SettingError

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run, or one that a callback stopped; read from `directory`, which can be given to every command.

    `trust_code`: whether a model that config.yaml names by import path may be imported. A run directory of another person
    can name any code. `given` are import paths that the caller named, `lent` the objects that it gave, by their paths;
    `stopped` is the summary of a run that a callback stopped.
    """

    directory: Path
    trust_code: bool = False
    given: frozenset[str] = frozenset()
    lent: Mapping[str, Any] = field(default_factory=dict, compare=False)
    stopped: dict[str, Any] | None = field(default=None, compare=False)

    @cached_property
    def run(self) -> Run:
        """Everything that the run recorded. Raises `RunDirectoryError` for a directory without a finished run."""
        return read_run(self.directory, self.stopped)

    def __repr__(self) -> str:
        """Return what matters in one line."""
        name = self.run.headline
        score = f"{SHORT[name]} {text_of(name, self.run.summary.get(name))}"
        return (
            f"<Result {self.directory.name}{self._how_it_stopped}: {score}. {statement_lines(self.run)[0]}>"
        )

    def _repr_html_(self) -> str:
        said = statement_lines(self.run)  # whose last line names the page, which a run has at its end
        first = (f"{self.directory}{self._how_it_stopped}", self.learning)
        lines = (*filter(None, first), *(said if self.stopped is None else said[:-1]))
        cells = "".join(
            f"<tr><td style='text-align:left'>{escape(name)}</td><td>{escape(value)}</td></tr>"
            for name, value in rows(self.run)
        )
        return f"<table>{cells}</table>" + "".join(f"<p>{escape(line)}</p>" for line in lines)

    @property
    def _how_it_stopped(self) -> str:
        return "" if self.stopped is None else f", stopped after round {self.stopped['rounds']}"

    @property
    def accuracy(self) -> float:
        """Accuracy of the last model on the test set, in [0, 1]. Raises `SettingError` where the task has none."""
        if self.run.headline != "accuracy":
            raise SettingError(f"this run has no accuracy; it is judged by scores[{self.run.headline!r}].")
        return self.run.score("accuracy")

    @property
    def loss(self) -> float:
        """Loss of the last model on the test set; cross-entropies are in nats."""
        return self.run.score("loss")

    @property
    def scores(self) -> dict[str, float]:
        """Every metric of the last model on the test set by name, nan where one is not defined.

        The first is what the run is judged by (accuracy, r2 of regression, label_accuracy of multilabel), the second the loss.
        """
        return {name: self.run.score(name) for name in (self.run.headline, "loss", *self.run.further_metrics)}

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
        recorded = self.run.config["model"]
        with _ONE_AT_A_TIME, lending(self.lent):
            if not self.trust_code:
                check_code_is_named(self.directory, {"model": recorded}, given=self.given)
            return load_model(self.directory, recorded, self.run.shape, recorded_seed(self.run.config))

    def frame(self) -> Any:
        """Return the metrics as a table of pandas, one row for each released round."""
        return _frame(self.metrics)

    def plot(self, metric: str | None = None) -> LinePlot:
        """Return the plot of a metric, or of "epsilon", by round on the run's page; its `figure()` is one of matplotlib.

        None: of what the run is judged by.
        """
        section = by_round_section(self.run, metric or self.run.headline)
        if section.plot is None:
            raise SettingError(" ".join(section.paragraphs))
        return section.plot

    def evaluate(self, *overrides: str, **settings: object) -> dict[str, Any]:
        """Return the scores of the model as `fedmf evaluate` prints them; settings are those of that command.

        `result.evaluate(metrics=["f1", own_metric])` scores by other metrics than those of the run.
        """
        with self._asked("evaluate", EvaluateSettings, overrides, settings) as asked:
            return scores(asked)

    def export(self, *overrides: str, **settings: object) -> Path:
        """Write the model to a file as `fedmf export` does, and return the file; settings are those of that command.

        `result.export(format="safetensors", to="model.safetensors")`.
        """
        with self._asked("export", ExportSettings, overrides, settings) as asked:
            files, _ = written(asked, self.stopped)
        return files[0]

    @contextmanager
    def _asked(
        self, command: str, kind: type[T], overrides: Sequence[str], settings: Mapping[str, object]
    ) -> Iterator[T]:
        """Give the settings of a command on this directory, whose code it may import if the caller named all of it.

        Objects, of the run and among `settings`, can be found inside the block.
        """
        given, lent = named(settings)
        is_own = set(named_code(self.run.config).values()) <= self.given
        own, _ = named({"directory": str(self.directory), "trust_code": self.trust_code or is_own})
        with _ONE_AT_A_TIME, lending({**self.lent, **lent}):
            yield compose(command, [*own, *overrides, *given], kind)


def _frame(rows_: Iterable[Mapping[str, Any]]) -> Any:
    return need("pandas", "A table").DataFrame([*rows_])


_ONE_AT_A_TIME = RLock()


class Runner:
    """Runs simulations in this process; `experiments.run` is one."""

    def __call__(self, *overrides: str, callbacks: Sequence[Callback] = (), **settings: object) -> Result:
        """Train and return what came of it.

        `overrides` are those of the command line ("population.epochs=2"); `settings` the same as keywords, a group as
        a mapping: `run("model=mlp", seed=3, population={"epochs": 2})`. Without run.directory the run's folder is
        runs/DATE_TIME below the current directory. Raises a `FedmfError` for what cannot run as asked, before
        anything is written.

        Code may be given itself in the place of an import path: `run(model=Net, dataset=client.from_arrays(x, y, user),
        metrics=[recall], client={"loss": hinge})`. Worker processes (engine.workers above 1, Ray) can import what is in a
        module; anything else is an error there.

        Each of `callbacks` is given the row of metrics.jsonl of each round that this call releases, once it is on disk; it stops
        the run by returning True. A stopped run has its model and the statement of the epochs that began, and
        `run.resume` continues it.

        >>> named({"seed": 3, "privacy": {"epsilon": None, "noise_multiplier": 0.5}})[0]
        ['seed=3', 'privacy.epsilon=null', 'privacy.noise_multiplier=0.5']
        """
        return self._simulated(overrides, settings, callbacks)

    def resume(
        self,
        directory: str | Path,
        *overrides: str,
        trust_code: bool = False,
        accept_copy: bool = False,
        allow_version_change: bool = False,
        callbacks: Sequence[Callback] = (),
        **settings: object,
    ) -> Result:
        """Continue the run in `directory` after its last released round, with the settings it recorded.

        A finished run is returned as it is. `overrides` and `settings` may be those that can change between the calls of one
        run, such as "engine.workers=4", and must be the objects that the run was given, if any: `run.resume("runs/a", model=Net)`;
        others are noticed by their digest. `trust_code` as in `load`; `accept_copy`: whether `directory` may be a copy
        or an older state of the directory that the run began in; `allow_version_change`: whether other code of fedmf
        than ran it so far may continue it. Raises `RunDirectoryError` for a directory that holds no run and
        for overrides that are not the run's own, and what `simulate` raises.
        """
        about = {
            "resume": True,
            "trust_code": trust_code,
            "accept_copy": accept_copy,
            "allow_version_change": allow_version_change,
        }
        return self._simulated(overrides, settings, callbacks, directory, about)

    def extend(
        self,
        directory: str | Path,
        epochs: int,
        *overrides: str,
        max_epsilon: float | None = None,
        trust_code: bool = False,
        allow_version_change: bool = False,
        callbacks: Sequence[Callback] = (),
        **settings: object,
    ) -> Result:
        """Add `epochs` to the finished run in `directory`, whose statement then covers all of them.

        Raises `PrivacyBudgetExhausted`, with the epsilon of the longer run, unless `max_epsilon` allows it, or the limit
        of the run itself does; everything then stays as it was. The rest as in `resume`.
        """
        allowed = () if max_epsilon is None else (f"privacy.max_epsilon={float(max_epsilon)!r}",)
        about = {"extend": epochs, "trust_code": trust_code, "allow_version_change": allow_version_change}
        return self._simulated((*overrides, *allowed), settings, callbacks, directory, about)

    def _simulated(
        self,
        overrides: Sequence[str],
        settings: Mapping[str, object],
        callbacks: Sequence[Callback],
        again: str | Path | None = None,
        about: Mapping[str, object] = {},
    ) -> Result:
        """Simulate; `again` is the directory of a run that continues, and `about` says how."""
        check_no_flags(overrides)
        if not isinstance(callbacks, list | tuple):
            raise SettingError(
                f"callbacks is of type {type(callbacks).__name__}; it must be a list of functions."
            )
        if odd := [callback for callback in callbacks if not callable(callback)]:
            raise SettingError(
                f"callbacks holds an object of type {type(odd[0]).__name__}; it must hold functions that are given a row of "
                "metrics."
            )
        if again is not None:
            read_config(Path(again))  # an error for a directory without a run
            own = settings.get("run")
            more = own if isinstance(own, Mapping) else {}
            settings = {**settings, "run": {**more, "directory": str(again), **about}}
        given, lent = named(settings)
        with _ONE_AT_A_TIME, lending(lent):
            composed = run_settings([*overrides, *given], CONSENT if again is None else "trust_code=True")
            directory, stopped = Path(default_directory(composed.run.directory)).resolve(), None
            try:
                simulate(composed, directory, callbacks=callbacks)
            except StoppedByCallback as stop:
                stopped = stop.summary
            # This process named that code, and no other: config.yaml may have changed since a run began.
            return Result(
                directory, given=frozenset(named_code(plain(composed)).values()), lent=lent, stopped=stopped
            )

    def load(self, directory: str | Path, *, trust_code: bool = False, **objects: object) -> Result:
        """Return the finished run in `directory`; raises `RunDirectoryError` where there is none, as where a callback stopped it.

        `trust_code`: whether a loader or model that its config.yaml names by import path may be imported. `objects` are those
        that the run was given, such as model=Net.
        """
        lent = named(objects)[1]
        result = Result(Path(directory).resolve(), trust_code, frozenset(lent), lent)
        _ = result.run  # refuses an unfinished or unreadable run here, not at its first use
        return result

    def load_all(self, directory: str | Path, *, trust_code: bool = False) -> list[Result]:
        """Return the finished runs below `directory`, by path."""
        return [
            self.load(path, trust_code=trust_code)
            for path, run in find(directory).items()
            if run["state"] == "finished"
        ]

    def plan(self, *overrides: str, **settings: object) -> dict[str, Any]:
        """Return what `fedmf plan output=json` prints: `run.plan(clients=50000, dimension=2000000, epsilon=4)["table"]`.

        Or of the settings of a run, objects too: `run.plan(model=Net, dataset=data, privacy={"epsilon": 2})`.
        """
        given, lent = named(settings)
        with _ONE_AT_A_TIME, lending(lent):
            return planned(asked([*overrides, *given]))

    def compare(self, directory: str | Path) -> Any:
        """Return the groups that `fedmf compare` finds below `directory` as a table of pandas, without writing a page."""
        return _frame(group.row for group in read_comparison(directory).groups)


run = Runner()
