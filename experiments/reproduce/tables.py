"""The tables of the studies, made of the results that are there."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import numpy as np

from experiments.pages.wording import Estimate
from experiments.reproduce import Table, texts
from experiments.reproduce.results import (
    NONE,
    Results,
    Runs,
    difference,
    is_paired_above,
    order,
    plus_minus,
)
from experiments.reproduce.study import Study, Task
from experiments.settings.factorization import factorize
from fedmf.accounting import calibrate_noise_multiplier, resolve_linf_ratio
from fedmf.mechanisms import RunFactorization
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import ENVELOPE_BYTES, value_bytes

Row = Mapping[str, Runs]  # mechanism -> its runs at a point


def by_point(
    found: Results,
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


def by_mechanism(found: Results, name: str, text: Callable[[Runs], str]) -> Iterator[Table]:
    """Yield for each task a table with a column for each mechanism, whose runs are written by `text`."""
    return by_point(
        found, name, lambda task: task.mechanisms, lambda task, row, _: [text(runs) for runs in row.values()]
    )


def accuracy(found: Results) -> Iterator[Table]:
    """Yield the accuracies of each task, the best of a row bold, and the difference of the two columns compared.

    The number of runs is in brackets where it is not that of the study's seeds.
    """

    def cells(task: Task, row: Row, epsilon: float) -> list[str]:
        best = max((runs.accuracy.mean for runs in row.values() if runs.accuracy), default=None)
        shown = []
        for runs in row.values():
            text = plus_minus(runs.accuracy)
            text = f"**{text}**" if runs.accuracy and runs.accuracy.mean == best else text
            usual = len(runs.outcomes) in (0, found.study.seeds)
            shown.append(text if usual else f"{text} ({len(runs.outcomes)})")
        return [*shown, difference(*(row[name] for name in task.compared))]

    return by_point(found, "accuracy", lambda task: (*task.mechanisms, " − ".join(task.compared)), cells)


def took(found: Results) -> Iterator[Table]:
    """Yield how many runs there are, what they took, tuning included, and which code played them."""
    cells = dict.fromkeys(found.study.cells)
    final, tuning = (
        [one for cell in cells for one in found.of(cell, held_out=held_out).values()]
        for held_out in (False, True)
    )
    if every := [*final, *tuning]:
        low, high = np.quantile([one.seconds for one in every], [0.05, 0.95])
        walls = [one.wall for one in every if one.wall is not None]
        codes = Counter(one.code or "code that is not named" for one in every)
        yield Table(
            "what it took",
            ("runs", "trials for tuning", "CPU minutes", "wall minutes", "CPU seconds of nine runs of ten", "code"),
            ((len(final), len(tuning), f"{sum(one.seconds for one in every) / 60:.0f}",
              f"{sum(walls) / 60:.0f}" if len(walls) == len(every) else NONE, f"{low:.1f} to {high:.1f}",
              "; ".join(f"{number} by {code}" for code, number in codes.items())),),
            texts=1,
        )  # fmt: skip


def bytes_sent(dimension: int, keep: float) -> float:
    """Return the bytes that a client is expected to send in a round: float32 values of the padded model, and the envelope.

    >>> round(bytes_sent(7850, 1.0)), round(bytes_sent(7850, 0.003))
    (33159, 489)
    """
    return value_bytes(padded_dimension(dimension, "hadamard"), keep, "float32") + ENVELOPE_BYTES


def sent(found: Results) -> Iterator[Table]:
    """Yield what a client sends."""
    values = found.study.values
    messages = {keep: bytes_sent(values["dimension"], keep) for keep in found.study.keeps}
    dense = bytes_sent(values["dimension"], 1.0)
    rows = tuple(
        (f"{keep:g}", f"{one:,.0f}", f"{dense / one:.1f}", f"{values['epochs'] * one:,.0f}")
        for keep, one in messages.items()
    )
    most = "bytes of a client in the run with epochs, at most"
    yield Table("bytes", ("keep", "bytes a message", "with keep 1, over these", most), rows)


def noise(found: Results) -> Iterator[Table]:
    """Yield by what the noise in the mean grows as less is sent, next to the same for a large model.

    That is the noise multiplier over the keep probability, with default bounds.
    """
    study, values = found.study, found.study.values

    def text(keep: float, epsilon: float, dimension: int) -> str:
        ratio = resolve_linf_ratio(None, dimension, values["cohort"])
        z = calibrate_noise_multiplier(
            epsilon=epsilon, delta=values["delta"], keep_probability=keep, linf_over_l2=ratio, epochs=values["epochs"]
        )  # fmt: skip
        return f"{z / keep:.3g}"

    models = [(epsilon, values[size]) for epsilon in study.epsilons for size in ("dimension", "large")]
    columns = (f"epsilon {epsilon:g}, {dimension:,} parameters" for epsilon, dimension in models)
    rows = tuple((f"{keep:g}", *(text(keep, *model) for model in models)) for keep in study.keeps)
    yield Table("noise", ("keep", *columns), rows)


def lost(found: Results) -> Iterator[Table]:
    """Yield what each mechanism loses by compression: its accuracy less that with everything sent."""

    def cells(task: Task, row: Row, epsilon: float) -> list[str]:
        dense = found.row(task, found.study.keeps[0], epsilon)
        return [plus_minus(less(row[name].accuracy, dense[name].accuracy), "+.1f") for name in row]

    for table in by_point(found, "what compression costs", lambda task: task.mechanisms, cells):
        yield replace(table, rows=table.rows[len(found.study.epsilons) :])


def less(a: Estimate | None, b: Estimate | None) -> Estimate | None:
    """Return the difference of two independent means; None where one is missing.

    >>> less(Estimate(80.0, 0.3), Estimate(81.0, 0.4))
    Estimate(mean=-1.0, error=0.5)
    """
    return Estimate(a.mean - b.mean, math.hypot(a.error or 0.0, b.error or 0.0)) if a and b else None


def claims(found: Results) -> Iterator[Table]:
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


def without_noise(found: Results) -> Iterator[Table]:
    """Yield what the network learns without noise, and what is right without any network."""
    (task,) = found.study.tasks
    assert task.no_noise is not None
    runs, words = found.runs(task.no_noise), found.find(texts.same_words(task))
    rows = []
    if runs.outcomes:
        scores = (plus_minus(runs.accuracy), plus_minus(runs.loss, ".2f"))
        rows.append((task.no_noise.mechanism, *scores, str(len(runs.outcomes)), f"{runs.rate:g}"))
    if words:
        rows.append((texts.SAME_WORDS, f"{100 * words.accuracy:.1f}", f"{words.loss:.2f}", NONE, NONE))
    yield Table("without noise", ("", "test accuracy, %", "loss", "seeds", "learning rate"), tuple(rows))


def above(found: Results) -> Iterator[Table]:
    """Yield how far each mechanism is above the most frequent words, marked where it is not by two standard errors."""
    words = found.find(texts.same_words(found.study.tasks[0]))
    level = Estimate(100 * words.accuracy if words else math.nan, None)

    def text(runs: Runs) -> str:
        gain = less(runs.accuracy, level)
        is_above = gain is None or gain.mean > 2 * (gain.error or 0.0)
        return plus_minus(gain, "+.1f") + ("" if is_above else ", **no better**")

    return by_mechanism(found, "above the most frequent words", text)


def schedule_of(task: Task) -> str:
    """Return what the schedule of a one-pass task is called."""
    return task.name.rpartition(", ")[2]


def by_schedule(
    found: Results, name: str, columns: Sequence[str], cells: Callable[[Task, Row], Sequence[str]]
) -> Iterator[Table]:
    """Yield one table of all tasks, each a schedule, with a row for each epsilon, the largest first."""
    rows = tuple(
        (schedule_of(task), f"{epsilon:g}", *cells(task, found.row(task, keep, epsilon)))
        for task in found.study.tasks
        for keep, epsilon in reversed(found.study.points)
    )
    yield Table(name, ("schedule", "epsilon", *columns), rows)


def steps(found: Results) -> Iterator[Table]:
    """Yield the differences from one mechanism to the next better one, by runs of the same seed."""
    pairs, none = found.study["steps"], Runs(math.nan, {})

    def cells(task: Task, row: Row) -> list[str]:
        return [difference(row.get(a, none), row.get(b, none)) for a, b in pairs]

    return by_schedule(found, "from one mechanism to the next", [f"{a} − {b}" for a, b in pairs], cells)


def cooldown(found: Results) -> Iterator[Table]:
    """Yield what the cooldown brings each mechanism, by runs of the same seed, each at its own best rate."""
    constant, cooled = found.study.tasks
    rows = []
    for keep, epsilon in reversed(found.study.points):
        after, before = (found.row(task, keep, epsilon) for task in (cooled, constant))
        rows.append((f"{epsilon:g}", *(difference(after[name], before[name]) for name in before)))
    yield Table("what the cooldown brings", ("epsilon", *constant.mechanisms), tuple(rows))


def against(found: Results) -> Iterator[Table]:
    """Yield the order of the mechanisms by accuracy, and where it contradicts that of their errors."""
    errors = {
        task.name: {name: factorization(found.study, task, name).rms_error for name in task.mechanisms}
        for task in found.study.tasks
    }

    def cells(task: Task, row: Row) -> list[str]:
        known = {name: runs.accuracies for name, runs in row.items() if runs.outcomes}
        contrary = [
            f"`{a}` above `{b}`"
            for a, b in permutations(known, 2)
            if is_paired_above(known[a], known[b]) and errors[task.name][a] > errors[task.name][b]
        ]
        return [order(known), "; ".join(contrary) or NONE]

    return by_schedule(found, "order", ("order of accuracy", "against the order of the errors"), cells)


def factorization(study: Study, task: Task, mechanism: str) -> RunFactorization:
    """Return a mechanism with the error that it leaves in the model, as the runs of a task have it."""
    cell = next(cell for cell in task.cells.values() if cell.mechanism == mechanism)
    keys = dict(one.split("=", 1) for one in cell.overrides)
    return factorize(
        keys["mechanism"], keys["workload"], study.values["rounds"], 1, beta=0.9,  # of the server, in every study

        schedule=keys["optimizer.schedule"],
    )  # fmt: skip


def errors(found: Results) -> Iterator[Table]:
    """Yield the exact errors in the model: root mean square over the rounds, and after the last one."""
    names = list(dict.fromkeys(name for task in found.study.tasks for name in task.mechanisms))
    columns, rows = ["mechanism"], {name: [name] for name in names}
    for task in found.study.tasks:
        known = {name: factorization(found.study, task, name) for name in task.mechanisms}
        both = {name: (run.rms_error, float(run.per_round_error[-1])) for name, run in known.items()}
        least = [min(pair) for pair in zip(*both.values(), strict=True)]
        for name in names:
            for error, low in zip(both.get(name, (None, None)), least, strict=True):
                rows[name] += [NONE, NONE] if error is None else [f"{error:.2f}", f"{error / low:.3f}"]
        columns += [f"{schedule_of(task)}: all rounds", "over the least", "last round", "over the least"]
    yield Table("noise in the model", tuple(columns), tuple(map(tuple, rows.values())))


def multiplier(found: Results) -> Iterator[Table]:
    """Yield the noise multipliers of one pass, the same for all mechanisms."""
    values, rows = found.study.values, []
    for epsilon in reversed(found.study.epsilons):
        z = calibrate_noise_multiplier(
            epsilon=epsilon, delta=values["delta"], keep_probability=1.0, linf_over_l2=1.0, epochs=1
        )
        rows.append((f"{epsilon:g}", f"{z:.4g}", f"{z / values['cohort']:.4g}"))
    yield Table("noise multiplier", ("epsilon", "noise multiplier", "over the cohort's size"), tuple(rows))


TABLES: dict[str, Callable[[Results], Iterator[Table]]] = {
    "accuracy": accuracy,
    "rates": lambda found: by_mechanism(
        found, "learning rates", lambda runs: f"{runs.rate:g}" if runs.outcomes else NONE
    ),
    "took": took,
    "bytes": sent,
    "noise": noise,
    "lost": lost,
    "claims": claims,
    "beside": without_noise,
    "above": above,
    "loss": lambda found: by_mechanism(found, "loss", lambda runs: plus_minus(runs.loss, ".2f")),
    "steps": steps,
    "cooldown": cooldown,
    "against": against,
    "errors": errors,
    "multiplier": multiplier,
}
