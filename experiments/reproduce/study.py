"""The experiments that train, as `studies.yaml` describes them: tasks by mechanism, keep probability and epsilon.

Each cell has a learning rate of its own: the search for it begins at the best rate of the cell before it in its chain.
"""

import hashlib
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from fedmf.checks import check_choice

if TYPE_CHECKING:
    from experiments.reproduce.results import Outcome

NO_NOISE = "no noise"
FACTOR = 1.5  # between neighbouring rates of the grid
FIRST_TUNING_SEED = 100  # no draw of a reported run has been seen by its tuning


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
    """One run of a cell; with `held_out` above 0 that share of the clients scores it and does not train."""

    cell: Cell
    rate: float
    seed: int
    held_out: float = 0.0

    @cached_property
    def key(self) -> str:
        """The trial as JSON: everything that its result depends on but the data and the code."""
        return json.dumps({
            "task": self.cell.task, "mechanism": self.cell.mechanism, "keep": self.cell.keep, "epsilon": self.cell.epsilon,
            "settings": self.cell.fingerprint, "rate": self.rate, "seed": self.seed, "held_out": self.held_out,
        })  # fmt: skip


@dataclass(frozen=True)
class Chain:
    """Cells of which each starts its search for a learning rate at the best rate of the one before, the first at `start`.

    The mean accuracy of `tuning` seeds scores a rate.
    """

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
        first = next(iter(sizes))
        self.name, self.size = name, size or first
        check_choice("size", self.size, sizes)
        self._size: Mapping[str, Any] = sizes[self.size]
        self.stem = name if self.size == first else f"{name}_{self.size}"
        self.values: Mapping[str, Any] = self._size.get("values", {})
        self.keeps: tuple[float, ...] = tuple(self._size["keep"])
        self.epsilons: tuple[float, ...] = tuple(sorted(self._size["epsilon"]))
        self.seeds: int = self._size["seeds"]
        self.more: int = self._size.get("more", 0)
        self.points = [(keep, epsilon) for keep in self.keeps for epsilon in self.epsilons]  # rows of a table
        self.tasks = tuple(self._task(task) for task in self._size["tasks"])
        self.rows = [
            task.row(*point) for task in self.tasks for point in self.points
        ]  # cells that are compared
        self.cells = [cell for chain in self.chains() for cell in chain.cells]

    def __getitem__(self, key: str) -> Any:
        """Return what the study has under a key, None where it has nothing."""
        return self._whole.get(key)

    def needs_data(self, task: str) -> bool:
        """Return whether the runs of a task read the file of real data."""
        return bool(self._size["tasks"][task].get("data", True))

    def chains(self) -> Iterator[Chain]:
        """Yield the order of work: through keep probabilities, and epsilons from the largest on.

        Where one chain goes through all of them, epsilon falls and rises by turns.
        """
        for task in self.tasks:
            given = self._size["tasks"][task.name]
            parts = [[task.no_noise]] if task.no_noise is not None else []
            for name in task.mechanisms:
                turns = [
                    [task.cells[name, keep, epsilon] for epsilon in reversed(self.epsilons)]
                    for keep in self.keeps
                ]
                if self["chain"] == "keep":
                    parts += turns
                else:
                    parts.append([
                        cell for i, turn in enumerate(turns) for cell in (turn[::-1] if i % 2 else turn)
                    ])  # fmt: skip
            for part in parts:
                yield Chain(tuple(part), given["start"], given.get("tuning", 1))

    def _task(self, name: str) -> Task:
        given, known = self._size["tasks"][name], self._whole["mechanisms"]
        mechanisms = tuple(one for one in known if known[one].get("tasks", "") in name)
        values = {**self.values, **given.get("values", {})}
        cells = {
            (one, *point): Cell(
                name, one, *point, self._overrides(given["settings"], known[one], values, *point)
            )
            for one in mechanisms
            for point in self.points
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
    known: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("studies.yaml").read_text())
    return {name: study for name, study in known.items() if name != "shared"}


def _filled(settings: str | Sequence[Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings of nested lists, with the values in place of their names."""
    if isinstance(settings, str):
        yield settings.format_map(values)
    else:
        for one in settings:
            yield from _filled(one, values)


# Returns the outcomes of trials, None where they are not there and nothing is computed.
RunTrials = Callable[[Sequence[Trial]], "list[Outcome] | None"]


def rate_at(start: float, place: int) -> float:
    """Return the rate of the grid `place` steps above `start`, in four digits.

    >>> rate_at(0.3, 0), rate_at(0.3, 1), rate_at(0.3, -2)
    (0.3, 0.45, 0.1333)
    """
    return float(f"{start * FACTOR**place:.4g}")


def tuned(chain: Chain, held_out: float, run: RunTrials) -> Iterator[tuple[Cell, float]]:
    """Yield the cells of a chain with their best rates, as far as `run` has outcomes; `held_out` is a share of the clients."""
    seeds = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + chain.tuning)
    place = 0
    for cell in chain.cells:

        def score(place: int, cell: Cell = cell) -> float | None:
            found = run([Trial(cell, rate_at(chain.start, place), seed, held_out) for seed in seeds])
            return None if found is None else statistics.fmean(outcome.accuracy for outcome in found)

        best = best_place(score, place)
        if best is None:
            return
        place = best
        yield cell, rate_at(chain.start, place)


def best_place(score: Callable[[int], float | None], place: int) -> int | None:
    """Return the place on the grid with the best score, searched from `place` on; None where a score is missing.

    The best place so far and both its neighbours are tried until no neighbour is better. A neighbour that is as good is
    not better, so that the search ends on a plateau.

    >>> best_place(lambda place: -abs(place - 3), 0), best_place(lambda place: 0.0, 5)
    (3, 5)
    """
    known: dict[int, float] = {}
    while missing := [near for near in (place - 1, place, place + 1) if near not in known]:
        for near in missing:
            found = score(near)
            if found is None:
                return None
            known[near] = found
        place = max((place, *sorted(known)), key=known.__getitem__)  # the first of equals
    return place
