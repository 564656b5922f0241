"""The experiments that train, as `studies.yaml` describes them: tasks by mechanism, keep probability and epsilon."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from fedmf.checks import check_choice

FILE = Path(__file__).with_name("studies.yaml")
NO_NOISE = "no noise"


@dataclass(frozen=True)
class Cell:
    """One entry of a table: its row and column, and the settings of its runs as overrides."""

    task: str
    mechanism: str
    keep: float
    epsilon: float
    overrides: tuple[str, ...]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the overrides, so that results of other settings under the same names are not taken."""
        return hashlib.sha256("\n".join(self.overrides).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Trial:
    """One run of a cell; with `held_out` above 0 that share of the training clients scores it and does not train."""

    cell: Cell
    rate: float
    seed: int
    held_out: float = 0.0

    @cached_property
    def key(self) -> str:
        """The trial as JSON: everything that its result depends on but the data and the code."""
        cell = self.cell
        names = {"task": cell.task, "mechanism": cell.mechanism, "keep": cell.keep, "epsilon": cell.epsilon}
        drawn = {"rate": self.rate, "seed": self.seed, "held_out": self.held_out}
        return json.dumps({**names, "settings": cell.fingerprint, **drawn})


@dataclass(frozen=True)
class Chain:
    """Cells of which each starts its search for a learning rate at the best rate of the one before, the first at `start`."""

    cells: tuple[Cell, ...]
    start: float
    tuning: int


@dataclass(frozen=True)
class Task:
    """A task of a study at one size: its columns, and the pair of columns that its table compares."""

    name: str
    mechanisms: tuple[str, ...]
    compared: tuple[str, str]
    cells: Mapping[tuple[str, float, float], Cell]
    no_noise: Cell | None

    def row(self, keep: float, epsilon: float) -> dict[str, Cell]:
        """Return the cells of all mechanisms at a point, by mechanism."""
        return {name: self.cells[name, keep, epsilon] for name in self.mechanisms}


class Study:
    """A study at one of its sizes; `name` and `size` are those of the command."""

    def __init__(self, name: str, size: str | None) -> None:
        self._whole: Mapping[str, Any] = studies()[name]
        sizes = self._whole["sizes"]
        check_choice("size", size or next(iter(sizes)), sizes)
        self.name, self.size = name, size or next(iter(sizes))
        self._size: Mapping[str, Any] = sizes[self.size]
        self.stem = name if self.size == next(iter(sizes)) else f"{name}_{self.size}"
        self.values: Mapping[str, Any] = self._size.get("values", {})
        self.keeps: tuple[float, ...] = tuple(self._size["keep"])
        self.epsilons: tuple[float, ...] = tuple(sorted(self._size["epsilon"]))
        self.seeds: int = self._size["seeds"]
        self.more: int = self._size.get("more", 0)
        self.tasks = tuple(self._task(task) for task in self._size["tasks"])

    def __getitem__(self, key: str) -> Any:
        """Return what the study says under a key, None where it says nothing."""
        return self._whole.get(key)

    @property
    def points(self) -> list[tuple[float, float]]:
        """The rows of a table: (keep probability, epsilon)."""
        return [(keep, epsilon) for keep in self.keeps for epsilon in self.epsilons]

    @property
    def rows(self) -> list[dict[str, Cell]]:
        """The cells that are compared with each other, of all tasks."""
        return [task.row(*point) for task in self.tasks for point in self.points]

    @property
    def cells(self) -> list[Cell]:
        """All cells."""
        return [cell for chain in self.chains() for cell in chain.cells]

    def needs_data(self, task: str) -> bool:
        """Return whether the runs of a task read the file of real data."""
        return bool(self._size["tasks"][task].get("data", True))

    def chains(self) -> Iterator[Chain]:
        """Yield the order of work: through keep probabilities and epsilons by turns, from the largest epsilon on."""
        for task in self.tasks:
            given = self._size["tasks"][task.name]
            start, tuning = given["start"], given.get("tuning", 1)
            if task.no_noise is not None:
                yield Chain((task.no_noise,), start, tuning)
            falling = self.epsilons[::-1]
            for name in task.mechanisms:
                turns = [
                    tuple(task.cells[name, keep, epsilon] for epsilon in falling[:: -1 if odd else 1])
                    for odd, keep in self._turns()
                ]
                parts = turns if self["chain"] == "keep" else [tuple(cell for turn in turns for cell in turn)]
                for part in parts:
                    yield Chain(part, start, tuning)

    def _turns(self) -> list[tuple[bool, float]]:
        """Return the keep probabilities, and whether epsilon rises there; it never does where each has a chain of its own."""
        restarts = self["chain"] == "keep"
        return [(index % 2 == 1 and not restarts, keep) for index, keep in enumerate(self.keeps)]

    def _task(self, name: str) -> Task:
        given = self._size["tasks"][name]
        known = self._whole["mechanisms"]
        mechanisms = tuple(one for one in known if known[one].get("tasks", "") in name)
        values = {**self.values, **given.get("values", {})}
        cells = {
            (one, keep, epsilon): Cell(
                name,
                one,
                keep,
                epsilon,
                self._overrides(given["settings"], known[one], values, keep, epsilon),
            )
            for one in mechanisms
            for keep, epsilon in self.points
        }
        bare = given.get("no_noise")
        no_noise = None if bare is None else Cell(name, NO_NOISE, 1.0, 0.0, tuple(_filled(bare, values)))
        return Task(name, mechanisms, tuple(given.get("compared") or self["compared"]), cells, no_noise)

    def _overrides(
        self, task: Sequence[Any], mechanism: Mapping[str, Any], values: Mapping[str, Any], keep: float, epsilon: float
    ) -> tuple[str, ...]:  # fmt: skip
        values = {**values, "keep": keep, "epsilon": epsilon}
        if mechanism.get("no_epochs"):  # every round is an epoch, whose cohort is drawn from all clients
            values |= {"rounds": 1, "epochs": values["rounds"] * values["epochs"]}
        return tuple(_filled([task, self["settings"], mechanism["settings"]], values))


def studies() -> dict[str, Any]:
    """Return the studies of `studies.yaml` by name."""
    known: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {name: study for name, study in known.items() if name != "shared"}


def _filled(settings: str | Sequence[Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of nested lists, with the values in place of their names."""
    if isinstance(settings, str):
        yield settings.format_map(values)
    else:
        for one in settings:
            yield from _filled(one, values)
