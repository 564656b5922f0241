"""How mechanisms differ: by independent means where they lie close, and by runs of the same seed in the tables."""

import math
from collections.abc import Mapping
from itertools import pairwise

from experiments.pages.wording import Estimate, estimate
from experiments.reproduce.results import Results, Runs
from experiments.reproduce.study import Cell, Study

CLOSE = 2.0  # standard errors of the difference
NONE = "–"


def close_cells(study: Study, results: Results, tuned: Mapping[Cell, float]) -> list[Cell]:
    """Return the cells closer than `CLOSE` standard errors to a neighbour in the order of their row.

    Only the first seeds decide, so that the answer does not depend on which further runs are there already.
    """
    close: list[Cell] = []
    for row in study.rows if study.more else ():
        found: dict[Cell, Estimate] = {}
        for cell in row.values():
            runs = results.runs(cell, tuned[cell]).accuracies
            first = estimate([100 * runs[seed] if seed in runs else None for seed in range(study.seeds)])
            if first is not None:
                found[cell] = first
        ranked = sorted(found, key=lambda cell: -found[cell].mean)
        pairs = [(a, b) for a, b in pairwise(ranked) if not is_above(found[a], found[b])]
        near = {cell for pair in pairs for cell in pair}
        close += [cell for cell in row.values() if cell in near]
    return close


def is_above(a: Estimate, b: Estimate) -> bool:
    """Return whether a is above b by at least `CLOSE` standard errors of the difference of independent means.

    >>> is_above(Estimate(90.0, 0.3), Estimate(89.0, 0.3)), is_above(Estimate(90.0, 0.3), Estimate(89.0, 0.5))
    (True, False)
    """
    return a.mean > b.mean and a.mean - b.mean >= CLOSE * math.hypot(a.error or 0.0, b.error or 0.0)


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Estimate | None:
    """Return the mean difference of accuracies over the seeds that both have, in percent."""
    return estimate([100 * (a[seed] - b[seed]) for seed in sorted({*a} & {*b})])


def is_paired_above(a: Mapping[int, float], b: Mapping[int, float]) -> bool:
    """Return whether a is above b, accuracies by seed, by `CLOSE` standard errors of the paired difference.

    >>> is_paired_above({0: 0.80, 1: 0.90}, {0: 0.79, 1: 0.89, 2: 0.5}), is_paired_above({0: 0.80, 1: 0.90}, {0: 0.79, 1: 0.92})
    (True, False)
    """
    found = paired(a, b)
    return found is not None and found.error is not None and found.mean > max(0.0, CLOSE * found.error)


def difference(a: Runs, b: Runs) -> str:
    """Return the paired difference with its standard error, in percent."""
    return plus_minus(paired(a.accuracies, b.accuracies), "+.1f")


def plus_minus(found: Estimate | None, form: str = ".1f") -> str:
    """Return a mean and its standard error, a dash for None.

    >>> plus_minus(Estimate(3.04, 0.96), "+.1f"), plus_minus(Estimate(3.0, None)), plus_minus(None)
    ('+3.0 ± 1.0', '3.0', '–')
    """
    if found is None:
        return NONE
    mean = f"{found.mean:{form}}"
    return mean if found.error is None else f"{mean} ± {found.error:{form.removeprefix('+')}}"


def order(found: Mapping[str, Mapping[int, float]]) -> str:
    """Return names in the order of their means: > where runs of the same seed differ significantly, ≈ where they do not.

    >>> order({"b": {0: 0.80, 1: 0.90}, "a": {0: 0.82, 1: 0.92}, "c": {0: 0.79, 1: 0.905}, "d": {}})
    'a > b ≈ c'
    """
    known = {name: runs for name, runs in found.items() if runs}
    ranked = sorted(known, key=lambda name: -sum(known[name].values()) / len(known[name]))
    signs = [" > " if is_paired_above(known[a], known[b]) else " ≈ " for a, b in pairwise(ranked)]
    return (
        "".join(word for pair in zip(ranked, [*signs, ""], strict=True) for word in pair) if ranked else NONE
    )
