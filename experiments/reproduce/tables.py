"""The tables of the studies, made of the results that are there."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations

import numpy as np

from experiments.pages.wording import Estimate
from experiments.reproduce import Table, Value, texts
from experiments.reproduce.results import (
    NONE,
    Results,
    Runs,
    difference,
    is_paired_above,
    order,
    paired,
    plus_minus,
)
from experiments.reproduce.study import NO_NOISE, Study, Task
from experiments.settings.groups import factorize
from fedmf.accounting import calibrate_noise_multiplier
from fedmf.mechanisms import RunFactorization
from fedmf.updates.client_plan import default_linf_ratio
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
    for task in found.study.tasks:
        rows = tuple(
            (f"{keep:g}", f"{epsilon:g}", *cells(task, found.row(task, keep, epsilon), epsilon))
            for keep, epsilon in found.study.points
        )
        title = f"{name} of {task.name}" if len(found.study.tasks) > 1 else name
        yield Table(title, ("keep", "epsilon", *columns(task)), rows, texts)


def merged(table: Table) -> Table:
    """Return a table by two columns with one row for all that are equal in the others; the first column lists them.

    A last column of dashes is left out.

    >>> rows = (("1", "2", "a > b", "–"), ("1", "8", "a > b", "–"), ("0.1", "2", "a > b", "–"))
    >>> merged(Table("order", ("keep", "epsilon", "order", "exceptions"), rows)).rows
    (('1: 2, 8; 0.1: 2', 'a > b'),)
    """
    groups: dict[tuple[Value, ...], dict[Value, list[str]]] = {}
    width = len(table.columns) - all(row[-1] == NONE for row in table.rows)
    for first, second, *rest in table.rows:
        groups.setdefault(tuple(rest[: width - 2]), {}).setdefault(first, []).append(str(second))
    rows = tuple(
        ("; ".join(f"{first}: {', '.join(seconds)}" for first, seconds in points.items()), *rest)
        for rest, points in groups.items()
    )
    columns = (": ".join(table.columns[:2]), *table.columns[2:width])
    return Table(table.name, columns, rows, texts=len(columns))


def accuracy(found: Results) -> Iterator[Table]:
    """Yield the accuracies of each task, the best of a row bold, and the difference of the two columns compared."""

    def cells(task: Task, row: Row, epsilon: float) -> list[str]:
        best = max((runs.accuracy.mean for runs in row.values() if runs.accuracy), default=None)
        shown = []
        for runs in row.values():
            text = plus_minus(runs.accuracy)
            shown.append(f"**{text}**" if runs.accuracy and runs.accuracy.mean == best else text)
        return [*shown, difference(*(row[name] for name in task.compared))]

    return by_point(found, "accuracy", lambda task: (*task.mechanisms, " − ".join(task.compared)), cells)


def took(found: Results) -> Iterator[Table]:
    """Yield how many runs there are, what they took, tuning included, and which code ran them."""
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


def messages(found: Results) -> Iterator[Table]:
    """Yield by keep probability and epsilon the bytes that a client sends, and the noise in the mean.

    The noise multiplier over the keep probability is that of mechanisms accounted by both default bounds, with the study's model and
    with a large one.
    """
    values = found.study.values
    sizes = values["dimension"], values["large"]
    dense = bytes_sent(sizes[0], 1.0)

    def noise(keep: float, epsilon: float, dimension: int) -> float:
        ratio = default_linf_ratio(dimension, values["cohort"])
        z = calibrate_noise_multiplier(
            epsilon=epsilon, delta=values["delta"], keep_probability=keep, linf_over_l2=ratio, epochs=values["epochs"]
        )  # fmt: skip
        return z / keep

    rows = []
    for keep, epsilon in found.study.points:
        sent, noises = bytes_sent(sizes[0], keep), [noise(keep, epsilon, size) for size in sizes]
        shown = [f"{one:.4g}" for one in (*noises, noises[0] / values["cohort"])]
        rows.append((keep, epsilon, sent, dense / sent, values["epochs"] * sent, *shown))
    columns = (
        "keep", "epsilon", "bytes_a_message", "bytes_with_keep_1_over_these", "bytes_in_the_run_at_most",
        *(f"noise_multiplier_over_keep_{size}_parameters" for size in sizes), "noise_multiplier_over_keep_and_cohort",
    )  # fmt: skip
    yield Table("messages", columns, tuple(rows))


def baselines(found: Results, task: Task) -> dict[str, Runs]:
    """Return what belongs to no mechanism, with texts: training without noise, and the frequencies of words alone."""
    if task.no_noise is None:
        return {}
    words = found.find(texts.same_words(task))
    alone = Runs(math.nan, {0: words} if words else {})
    return {NO_NOISE: found.runs(task.no_noise), texts.SAME_WORDS: alone}


def cells(found: Results) -> Iterator[Table]:
    """Yield a row for each cell: runs, learning rate, and accuracy in percent and loss in nats with standard errors (se).

    The cost of compression is the accuracy less that at the largest keep probability.
    """
    most, rows = max(found.study.keeps), []
    for task in found.study.tasks:
        others = baselines(found, task)
        level = others[texts.SAME_WORDS].accuracy if others else None
        points: list[tuple[float, float | None, Row]] = [
            (keep, epsilon, found.row(task, keep, epsilon)) for keep, epsilon in found.study.points
        ]
        for keep, epsilon, row in [*points, *([(1.0, None, others)] if others else [])]:
            dense = {} if epsilon is None or keep == most else found.row(task, most, epsilon)
            for name, runs in row.items():
                cost = less(runs.accuracy, dense[name].accuracy) if dense else None
                rate = None if math.isnan(runs.rate) else runs.rate
                rows.append((
                    task.name, keep, epsilon, name, len(runs.outcomes), rate, *both(runs.accuracy), *both(cost),
                    *both(less(runs.accuracy, level))[:1], *both(runs.loss),
                ))  # fmt: skip
    columns = ("task", "keep", "epsilon", "mechanism", "runs", "learning_rate", "accuracy", "accuracy_se", "cost_of_compression",
               "cost_of_compression_se", "above_the_most_frequent_words", "loss", "loss_se")  # fmt: skip
    yield Table("cells", columns, tuple(rows))


def both(found: Estimate | None) -> tuple[float | None, float | None]:
    """Return a mean and its standard error, None for what is missing."""
    return (found.mean, found.error) if found else (None, None)


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
            f"`{a}` is {'below' if is_paired_above(known[b], known[a]) else 'not significantly above'} `{b}`"
            for a, b in found.study["claims"]
            if known[a] and known[b] and not is_paired_above(known[a], known[b])
        ]
        return [order(known), "; ".join(missing) or NONE]

    yield from map(merged, by_point(found, "order", lambda task: ("order", "not as in the paper"), cells))


def schedule_of(task: Task) -> str:
    """Return what the schedule of a one-pass task is called."""
    return task.name.rpartition(", ")[2]


def differences(found: Results) -> Iterator[Table]:
    """Yield mean differences of accuracies in percent by runs of the same seed.

    They are those from one mechanism to the next better one, and from the constant rate to the cooldown, each at its best rate.
    """
    constant, cooled = found.study.tasks
    pairs = [((a, task), (b, task)) for task in found.study.tasks for a, b in found.study["steps"]]
    pairs += [((name, cooled), (name, constant)) for name in constant.mechanisms]
    rows = []
    for keep, epsilon in reversed(found.study.points):
        runs = {(name, task.name): runs for task in (constant, cooled) for name, runs in found.row(task, keep, epsilon).items()}  # fmt: skip
        for (a, of_a), (b, of_b) in pairs:
            if (a, of_a.name) in runs:
                difference = paired(runs[a, of_a.name].accuracies, runs[b, of_b.name].accuracies)
                rows.append((epsilon, a, schedule_of(of_a), b, schedule_of(of_b), *both(difference)))
    columns = (
        "epsilon",
        "mechanism",
        "schedule",
        "less_mechanism",
        "of_schedule",
        "difference",
        "difference_se",
    )
    yield Table("differences", columns, tuple(rows))


def against(found: Results) -> Iterator[Table]:
    """Yield the order of the mechanisms by accuracy, and where it contradicts that of their errors."""
    rows = []
    for task in found.study.tasks:
        errors = {name: factorization(found.study, task, name).rms_error for name in task.mechanisms}
        for keep, epsilon in reversed(found.study.points):
            row = found.row(task, keep, epsilon)
            known = {name: runs.accuracies for name, runs in row.items() if runs.outcomes}
            contrary = [
                f"`{a}` above `{b}`"
                for a, b in permutations(known, 2)
                if is_paired_above(known[a], known[b]) and errors[a] > errors[b]
            ]
            rows.append((schedule_of(task), f"{epsilon:g}", order(known), "; ".join(contrary) or NONE))
    columns = ("schedule", "epsilon", "order of accuracy", "against the order of the errors")
    yield merged(Table("order", columns, tuple(rows)))


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
    rows = []
    for task in found.study.tasks:
        known = {name: factorization(found.study, task, name) for name in task.mechanisms}
        both = {name: (run.rms_error, float(run.per_round_error[-1])) for name, run in known.items()}
        rms, last = (min(pair) for pair in zip(*both.values(), strict=True))
        rows += [
            (schedule_of(task), name, f"{first:.2f}", f"{first / rms:.3f}", f"{end:.2f}", f"{end / last:.3f}")
            for name, (first, end) in both.items()
        ]
    columns = ("schedule", "mechanism", "all_rounds", "over_the_least", "last_round", "last_over_the_least")
    yield Table("noise in the model", columns, tuple(rows))


TABLES: dict[str, Callable[[Results], Iterator[Table]]] = {
    "accuracy": accuracy,
    "claims": claims,
    "against": against,
    "cells": cells,
    "messages": messages,
    "differences": differences,
    "errors": errors,
    "took": took,
}
