"""The tables of the studies, made of the results that are there."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.pages.wording import Estimate
from experiments.reproduce import Table, texts
from experiments.reproduce.compared import NONE, difference, is_paired_above, order, plus_minus
from experiments.reproduce.results import Outcome, Results, Runs
from experiments.reproduce.study import Cell, Study, Task
from experiments.settings.factorization import factorize
from experiments.settings.mechanism import WorkloadName
from fedmf.accounting import calibrate_noise_multiplier, resolve_linf_ratio
from fedmf.mechanisms import RunFactorization
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import ENVELOPE_BYTES, value_bytes

MOMENTUM = 0.9  # of the server, in every study


@dataclass(frozen=True)
class Found:
    """A study with its results and the learning rates that tuning chose."""

    study: Study
    results: Results
    tuned: Mapping[Cell, float] = field(default_factory=dict)

    def runs(self, cell: Cell) -> Runs:
        """Return the runs of a cell at its tuned rate."""
        return self.results.runs(cell, self.tuned.get(cell))

    def row(self, task: Task, keep: float, epsilon: float) -> dict[str, Runs]:
        """Return the runs of all mechanisms at a point."""
        return {name: self.runs(cell) for name, cell in task.row(keep, epsilon).items()}

    def same_words(self, task: Task) -> Outcome | None:
        """Return the outcome of suggesting the most frequent words always."""
        return self.results.find(texts.same_words(task))


Row = Mapping[str, Runs]
"""Mechanism -> its runs at a point."""


def by_point(
    found: Found,
    name: str,
    columns: Callable[[Task], Sequence[str]],
    cells: Callable[[Task, Row, float], Sequence[str]],
    texts: int = 0,
) -> Iterator[Table]:
    """Yield for each task a table with a row for each keep probability and epsilon; several tasks are named.

    `cells` gets the task, the runs at the point, and its epsilon.
    """
    several = len(found.study.tasks) > 1
    for task in found.study.tasks:
        rows = tuple(
            (f"{keep:g}", f"{epsilon:g}", *cells(task, found.row(task, keep, epsilon), epsilon))
            for keep, epsilon in found.study.points
        )
        title = f"{name} of {task.name}" if several else name
        yield Table(title, ("keep", "epsilon", *columns(task)), rows, texts)


def by_mechanism(found: Found, name: str, text: Callable[[Runs], str]) -> Iterator[Table]:
    """Yield for each task a table with a column for each mechanism, whose runs are written by `text`."""
    return by_point(
        found, name, lambda task: task.mechanisms, lambda task, row, _: [text(runs) for runs in row.values()]
    )


def accuracy(found: Found) -> Iterator[Table]:
    """Yield the accuracies of each task, the best of a row bold, and the difference of the two columns compared."""

    def cells(task: Task, row: Row, epsilon: float) -> list[str]:
        best = max((runs.accuracy.mean for runs in row.values() if runs.accuracy), default=None)
        shown = [_accuracy(runs, best, found.study.seeds) for runs in row.values()]
        return [*shown, difference(*(row[name] for name in task.compared))]

    return by_point(found, "accuracy", lambda task: (*task.mechanisms, " − ".join(task.compared)), cells)


def _accuracy(runs: Runs, best: float | None, seeds: int) -> str:
    """Return an accuracy, bold if it is the best, with the number of runs where that is not `seeds`."""
    text = plus_minus(runs.accuracy)
    if runs.accuracy and runs.accuracy.mean == best:
        text = f"**{text}**"
    return text if len(runs.outcomes) in (0, seeds) else f"{text} ({len(runs.outcomes)})"


def rates(found: Found) -> Iterator[Table]:
    """Yield the learning rates that tuning chose."""
    return by_mechanism(found, "learning rates", lambda runs: f"{runs.rate:g}" if runs.outcomes else NONE)


def took(found: Found) -> Iterator[Table]:
    """Yield how many runs there are, what they took, tuning included, and which code played them."""
    final, tuning = (
        [
            one
            for cell in dict.fromkeys(found.study.cells)
            for one in found.results.of(cell, held_out=held_out).values()
        ]
        for held_out in (False, True)
    )
    every = [*final, *tuning]
    if every:
        low, high = np.quantile([one.seconds for one in every], [0.05, 0.95])
        walls = [one.wall for one in every if one.wall is not None]
        codes = Counter(one.code for one in every)
        named = "; ".join(f"{number} by {code or 'code that is not named'}" for code, number in codes.items())
        yield Table(
            "what it took",
            ("runs", "trials for tuning", "CPU minutes", "wall minutes", "CPU seconds of nine runs of ten", "code"),
            ((len(final), len(tuning), f"{sum(one.seconds for one in every) / 60:.0f}",
              f"{sum(walls) / 60:.0f}" if len(walls) == len(every) else NONE, f"{low:.1f} to {high:.1f}", named),),
            texts=1,
        )  # fmt: skip


def bytes_sent(dimension: int, keep: float) -> float:
    """Return the bytes that a client is expected to send in a round: float32 values of the padded model, and the envelope.

    >>> round(bytes_sent(7850, 1.0)), round(bytes_sent(7850, 0.003))
    (33159, 489)
    """
    return value_bytes(padded_dimension(dimension, "hadamard"), keep, "float32") + ENVELOPE_BYTES


def sent(found: Found) -> Iterator[Table]:
    """Yield what a client sends."""
    values = found.study.values
    dense = bytes_sent(values["dimension"], 1.0)
    messages = {keep: bytes_sent(values["dimension"], keep) for keep in found.study.keeps}
    yield Table(
        "bytes",
        (
            "keep",
            "bytes a message",
            "with keep 1, over these",
            "bytes of a client in the run with epochs, at most",
        ),
        tuple(
            (f"{keep:g}", f"{one:,.0f}", f"{dense / one:.1f}", f"{values['epochs'] * one:,.0f}")
            for keep, one in messages.items()
        ),
    )


def noise(found: Found) -> Iterator[Table]:
    """Yield by what the noise in the mean grows as less is sent, next to the same for a large model."""
    study = found.study
    models = [(epsilon, study.values[size]) for epsilon in study.epsilons for size in ("dimension", "large")]
    yield Table(
        "noise",
        ("keep", *(f"epsilon {epsilon:g}, {dimension:,} parameters" for epsilon, dimension in models)),
        tuple(
            (
                f"{keep:g}",
                *(f"{noise_over_keep(dimension, study, keep, epsilon):.3g}" for epsilon, dimension in models),
            )
            for keep in study.keeps
        ),
    )


def noise_over_keep(dimension: int, study: Study, keep: float, epsilon: float) -> float:
    """Return the noise multiplier over the keep probability for a model of `dimension` parameters, default bounds.

    >>> round(noise_over_keep(7850, Study("sgmf_femnist", "small"), 0.01, 2.0), 3)
    6.116
    """
    values = study.values
    ratio = resolve_linf_ratio(None, dimension, values["cohort"])
    return calibrate_noise_multiplier(
        epsilon=epsilon, delta=values["delta"], keep_probability=keep, linf_over_l2=ratio, epochs=values["epochs"]
    ) / keep  # fmt: skip


def lost(found: Found) -> Iterator[Table]:
    """Yield what each mechanism loses by compression: its accuracy less that with everything sent."""

    def cells(task: Task, row: Row, epsilon: float) -> list[str]:
        dense = found.row(task, found.study.keeps[0], epsilon)
        return [less(runs.accuracy, dense[name].accuracy) for name, runs in row.items()]

    for table in by_point(found, "what compression costs", lambda task: task.mechanisms, cells):
        yield replace(table, rows=table.rows[len(found.study.epsilons) :])


def less(a: Estimate | None, b: Estimate | None) -> str:
    """Return the difference of two independent means with its standard error; a dash where one is missing.

    >>> less(Estimate(80.0, 0.3), Estimate(81.0, 0.4))
    '-1.0 ± 0.5'
    """
    return (
        NONE
        if not a or not b
        else f"{a.mean - b.mean:+.1f} ± {math.hypot(a.error or 0.0, b.error or 0.0):.1f}"
    )


def claims(found: Found) -> Iterator[Table]:
    """Yield the order of the mechanisms in each row, and where it is not that of the paper's figures."""

    def cells(task: Task, row: Row, epsilon: float) -> list[str]:
        known = {name: runs.accuracies for name, runs in row.items()}
        missing = [
            f"`{a}` is {'below' if is_paired_above(known[b], known[a]) else 'not told apart from'} `{b}`"
            for a, b in found.study["claims"]
            if known[a] and known[b] and not is_paired_above(known[a], known[b])
        ]
        return [order(known), "; ".join(missing) or NONE]

    return by_point(found, "order", lambda task: ("order", "not as in the paper"), cells, texts=2)


def beside(found: Found) -> Iterator[Table]:
    """Yield what the network learns without noise, and what is right without any network."""
    (task,) = found.study.tasks
    assert task.no_noise is not None
    runs, words = found.runs(task.no_noise), found.same_words(task)
    rows: list[tuple[str, ...]] = []
    if runs.outcomes:
        losses = plus_minus(runs.loss, ".2f")
        rows.append(
            (
                task.no_noise.mechanism,
                plus_minus(runs.accuracy),
                losses,
                str(len(runs.outcomes)),
                f"{runs.rate:g}",
            )
        )
    if words:
        rows.append((texts.SAME_WORDS, f"{100 * words.accuracy:.1f}", f"{words.loss:.2f}", NONE, NONE))
    yield Table("without noise", ("", "test accuracy, %", "loss", "seeds", "learning rate"), tuple(rows))


def above(found: Found) -> Iterator[Table]:
    """Yield how far each mechanism is above the most frequent words."""
    words = found.same_words(found.study.tasks[0])
    level = 100 * words.accuracy if words else math.nan
    return by_mechanism(found, "above the most frequent words", lambda runs: gain(runs.accuracy, level))


def gain(found: Estimate | None, level: float) -> str:
    """Return by how much a mean is above a level, marked where it is not by two standard errors.

    >>> gain(Estimate(21.0, 0.2), 20.0), gain(Estimate(20.3, 0.2), 20.0)
    ('+1.0 ± 0.2', '+0.3 ± 0.2, **no better**')
    """
    if found is None:
        return NONE
    error = found.error or 0.0
    text = f"{found.mean - level:+.1f} ± {error:.1f}"
    return text if found.mean - level > 2 * error else f"{text}, **no better**"


def loss(found: Found) -> Iterator[Table]:
    """Yield the mean loss on the test texts."""
    return by_mechanism(found, "loss", lambda runs: plus_minus(runs.loss, ".2f"))


def schedule_of(task: Task) -> str:
    """Return what the schedule of a one-pass task is called."""
    return task.name.rpartition(", ")[2]


def steps(found: Found) -> Iterator[Table]:
    """Yield the differences from one mechanism to the next better one, by runs of the same seed."""
    rows = []
    for task in found.study.tasks:
        for keep, epsilon in reversed(found.study.points):
            row = found.row(task, keep, epsilon)
            pairs = [[row.get(name, Runs(math.nan, {})) for name in pair] for pair in found.study["steps"]]
            rows.append((schedule_of(task), f"{epsilon:g}", *(difference(a, b) for a, b in pairs)))
    columns = ("schedule", "epsilon", *(f"{a} − {b}" for a, b in found.study["steps"]))
    yield Table("from one mechanism to the next", columns, tuple(rows))


def cooldown(found: Found) -> Iterator[Table]:
    """Yield what the cooldown brings each mechanism, by runs of the same seed, each at its own best rate."""
    constant, cooled = found.study.tasks
    rows = []
    for point in reversed(found.study.points):
        before, after = found.row(constant, *point), found.row(cooled, *point)
        rows.append(
            (f"{point[1]:g}", *(difference(after[name], before[name]) for name in constant.mechanisms))
        )
    yield Table("what the cooldown brings", ("epsilon", *constant.mechanisms), tuple(rows))


def against(found: Found) -> Iterator[Table]:
    """Yield the order of the mechanisms by accuracy, and where it contradicts that of their errors."""
    rows = []
    for task in found.study.tasks:
        errors = {name: factorization(found.study, task, name).rms_error for name in task.mechanisms}
        for point in reversed(found.study.points):
            row = {name: runs.accuracies for name, runs in found.row(task, *point).items() if runs.outcomes}
            contrary = [
                f"`{a}` above `{b}`"
                for a in row
                for b in row
                if is_paired_above(row[a], row[b]) and errors[a] > errors[b]
            ]
            said = "; ".join(contrary) or NONE
            rows.append((schedule_of(task), f"{point[1]:g}", order(row), said))
    columns = ("schedule", "epsilon", "order of accuracy", "against the order of the errors")
    yield Table("order", columns, tuple(rows))


def factorization(study: Study, task: Task, mechanism: str) -> RunFactorization:
    """Return a mechanism with the error that it leaves in the model, as the runs of a task have it."""
    cell = next(cell for cell in task.cells.values() if cell.mechanism == mechanism)
    keys = dict(one.split("=", 1) for one in cell.overrides)
    return factorize(
        keys["mechanism"], WorkloadName(keys["workload"]), study.values["rounds"], 1, beta=MOMENTUM,
        schedule=keys["optimizer.schedule"],
    )  # fmt: skip


def errors(found: Found) -> Iterator[Table]:
    """Yield the exact errors in the model: root mean square over the rounds, and after the last one."""
    names = list(dict.fromkeys(name for task in found.study.tasks for name in task.mechanisms))
    columns, cells = ["mechanism"], {name: [name] for name in names}
    for task in found.study.tasks:
        known = {name: factorization(found.study, task, name) for name in task.mechanisms}
        both = {name: (run.rms_error, float(run.per_round_error[-1])) for name, run in known.items()}
        least = [min(pair[index] for pair in both.values()) for index in (0, 1)]
        for name in names:
            pairs = zip(both[name], least, strict=True) if name in both else ()
            cells[name] += [
                text for error, low in pairs for text in (f"{error:.2f}", f"{error / low:.3f}")
            ] or [NONE] * 4
        columns += [
            f"{schedule_of(task)}: all rounds",
            "over the least",
            "last round",
            "over the least",
        ]
    yield Table("noise in the model", tuple(columns), tuple(tuple(row) for row in cells.values()))


def multiplier(found: Found) -> Iterator[Table]:
    """Yield the noise multipliers of one pass, the same for all mechanisms."""
    values = found.study.values
    multipliers = {
        epsilon: calibrate_noise_multiplier(
            epsilon=epsilon, delta=values["delta"], keep_probability=1.0, linf_over_l2=1.0, epochs=1
        )
        for epsilon in found.study.epsilons[::-1]
    }
    rows = tuple(
        (f"{epsilon:g}", f"{z:.4g}", f"{z / values['cohort']:.4g}") for epsilon, z in multipliers.items()
    )
    yield Table("noise multiplier", ("epsilon", "noise multiplier", "over the cohort's size"), rows)


TABLES: dict[str, Callable[[Found], Iterator[Table]]] = {
    "accuracy": accuracy,
    "rates": rates,
    "took": took,
    "bytes": sent,
    "noise": noise,
    "lost": lost,
    "claims": claims,
    "beside": beside,
    "above": above,
    "loss": loss,
    "steps": steps,
    "cooldown": cooldown,
    "against": against,
    "errors": errors,
    "multiplier": multiplier,
}
