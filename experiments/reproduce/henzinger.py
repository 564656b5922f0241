"""Figure 1 of Henzinger, Upadhyay, Upadhyay (SODA 2023): error of the binary tree and of their factorization.

Mean squared error of continual counting, computed at real lengths and by formula beyond; the factor pi^2 / (2 ln^2 2) = 10.27
by which the tree is worse in the limit, and what it is at lengths that occur; errors of real counters.
"""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.pages.figures import COLOURS, DASHES, MARKERS
from experiments.reproduce import Reproduction, Table, Value
from experiments.reproduce.plots import figure
from experiments.reproduce.tools import computed, progress
from fedmf.counting import continual_counter
from fedmf.mechanisms import design, design_run, of_run, prefix_sum, restarted
from fedmf.randomness import SecretKey

FAMILIES = {"binary_tree": "binary tree", "honaker_online": "Honaker online", "sqrt_toeplitz": "square root", "optimal": "optimum"}  # fmt: skip
LIMIT = math.pi**2 / (2 * math.log(2) ** 2)
FORMULA_UP_TO = 20  # doublings up to which the sums of the square root are added up; beyond, their expansion
BEYOND = (20, 30, 36, 50, 100, 200, 250, 280, 300, 500, 1000, 10_000)
EPSILON, DELTA, DIMENSION = 1.0, 1e-6, 64  # of the real counters
EPOCHS = 8


SIZES = {  # doublings up to which mechanisms are fitted, at which counters run, their seeds, and lengths of runs
    "small": (14, (6, 8, 10), 10, (10, 12, 14)),
    "laptop": (17, (6, 8, 10, 12), 20, (10, 12, 14, 16)),
}


def henzinger_counting(path: Path, size: str) -> Reproduction:
    """Return the tables, and draw the first; the worst relative error is that of the formulas."""
    doublings, lengths, seeds, runs_of = SIZES[size]
    ratios = ("tree / square root", "tree / optimal", "square root / optimal")
    columns = ("rounds", *FAMILIES, "tree, formula", "square root, formula", *ratios)
    fitted = computed("mechanisms as fitted", columns, row, range(1, doublings + 1))
    columns = ("rounds", "tree", "square root", "tree / square root", "gap of Theorems 2 and 3")
    formulas = computed("beyond, by formula", columns, beyond, BEYOND)
    columns = ("rounds", "mechanism", "measured", "standard error", "expected", "tree / this one, measured")
    counters = tuple(line for power in progress(lengths, "counters") for line in counted(power, seeds))
    of_runs = ("binary tree", "square root", "optimum of one epoch", "whole run", "tree / whole run")
    epochs = computed("epochs", ("rounds an epoch", *of_runs), on_a_run, runs_of)
    rows: Any = fitted.rows
    draw(path, rows)
    errors = (
        abs(one[place] / one[place + further] - 1) for one in rows for place, further in ((1, 4), (3, 3))
    )
    return (fitted, formulas, Table("real counters", columns, counters), epochs), max(errors)


def row(doublings: int) -> tuple[float, ...]:
    """Return one line of the first table."""
    rounds = 2**doublings
    fitted = [float(design(family, prefix_sum(rounds)).root_loss ** 2 / rounds) for family in FAMILIES]
    tree, _, root, optimal = fitted
    return (
        rounds,
        *fitted,
        tree_error(doublings),
        square_root_error(doublings),
        tree / root,
        tree / optimal,
        root / optimal,
    )


def tree_error(doublings: float) -> float:
    """Return the mean squared error of the binary tree for 2^doublings rounds.

    Sensitivity^2 is doublings + 1, and a sum takes as many nodes as its number of rounds has ones: k/2 + 2^-k on average.

    >>> tree_error(1), tree_error(2)
    (2.0, 3.75)
    """
    return float((doublings + 1) * (doublings / 2 + 2.0**-doublings))


def square_root_error(doublings: float) -> float:
    """Return the mean squared error of the square-root factorization for 2^doublings rounds.

    Its squared column norm is G_n, and the squared norm of row m of B = C is G_m.

    >>> square_root_error(1)
    1.40625
    """
    if doublings <= FORMULA_UP_TO:
        steps = np.arange(1, round(2**doublings))
        norms = np.cumsum(np.cumprod(np.concatenate([[1.0], 1 - 1 / (2 * steps)])) ** 2)
        return float(norms[-1] * norms.mean())
    log, inverse = doublings * math.log(2), 2.0**-doublings
    constant = np.euler_gamma + 4 * math.log(2)
    column = (log + constant) / math.pi - inverse / (4 * math.pi)
    # The mean of ln m is ln n - 1 + ln(2 pi n) / (2 n), by Stirling, that of 1/m is H_n / n.
    mean_log = log - 1 + (math.log(2 * math.pi) + log) * inverse / 2
    harmonic = (log + np.euler_gamma) * inverse
    return float(column * ((mean_log + constant) / math.pi - harmonic / (4 * math.pi)))


def tree_over_square_root(doublings: float) -> float:
    """Return by how much the tree's mean squared error is larger, for 2^doublings rounds."""
    return tree_error(doublings) / square_root_error(doublings)


def henzinger_lower(rounds: int) -> float:
    """Return sqrt(n) (2 + ln((2n+1)/5) + ln(2n+1)/(2n)) / pi, a lower bound for prefix sums.

    Source: Henzinger, Upadhyay, Upadhyay, "Almost tight error bounds on differentially private continual
    counting" (SODA 2023), Theorem 3.

    >>> round(henzinger_lower(16), 6)
    5.088292
    """
    n = rounds
    return float(np.sqrt(n) * (2 + np.log((2 * n + 1) / 5) + np.log(2 * n + 1) / (2 * n)) / np.pi)


def henzinger_upper(rounds: int) -> float:
    """Return sqrt(n) (1 + ln(4n/5) / pi), stated for the square-root factorization of prefix sums.

    Their Theorem 2. It fails for n <= 6, where their factorization is above it; a test shows both sides.

    >>> round(henzinger_upper(16), 6)
    7.246054
    """
    return float(np.sqrt(rounds) * (1 + np.log(4 * rounds / 5) / np.pi))


def gap_of_squares(rounds: int) -> float:
    """Return Theorem 2's upper bound on the mean squared error less Theorem 3's lower bound, in units of C^2."""
    return float((henzinger_upper(rounds) ** 2 - henzinger_lower(rounds) ** 2) / rounds)


def beyond(doublings: int) -> tuple[Value, ...]:
    """Return one line of the second table; numbers of rounds beyond a double have no theorems' bounds there."""
    return (
        f"2^{doublings}",
        tree_error(doublings),
        square_root_error(doublings),
        tree_over_square_root(doublings),
        gap_of_squares(2**doublings) if doublings <= 50 else None,
    )


def counted(doublings: int, seeds: int) -> list[tuple[Value, ...]]:
    """Return the lines of the third table for one length: real counters of each family, run once with each seed."""
    rounds = 2**doublings
    found = {family: [measure(rounds, family, seed) for seed in range(seeds)] for family in FAMILIES}
    tree = statistics.fmean(found["binary_tree"])
    return [
        (
            rounds,
            family,
            statistics.fmean(errors),
            statistics.stdev(errors) / math.sqrt(seeds),
            design(family, prefix_sum(rounds)).root_loss ** 2 / rounds,
            tree / statistics.fmean(errors),
        )
        for family, errors in found.items()
    ]


def measure(rounds: int, family: str, seed: int) -> float:
    """Return the mean squared error of one counter over its rounds and coordinates, per squared noise multiplier."""
    counter = continual_counter(rounds, epsilon=EPSILON, delta=DELTA, dimension=DIMENSION, family=family)
    rng = np.random.default_rng(seed)
    state = counter.start(key=SecretKey(rng.bytes(32)))
    total, squares = np.zeros(DIMENSION), 0.0
    for _ in range(rounds):
        direction = rng.standard_normal(DIMENSION)
        unit = direction / np.linalg.norm(direction)
        total += unit
        released, state = counter.feed(unit, state)
        squares += float(((released - total) ** 2).mean())
    return squares / rounds / counter.noise_multiplier**2


def on_a_run(doublings: int) -> tuple[Value, ...]:
    """Return one line of the last table: mean squared errors over a run of `EPOCHS` epochs of 2^doublings rounds."""
    rounds = 2**doublings
    families = ("binary_tree", "sqrt_toeplitz", "optimal")
    runs = [restarted(design(family, prefix_sum(rounds)), EPOCHS) for family in families]
    runs.append(design_run("optimal", of_run(rounds, EPOCHS)))
    errors = [run.root_loss**2 / (rounds * EPOCHS) for run in runs]
    return (rounds, *errors, errors[0] / errors[-1])


def draw(path: Path, rows: Sequence[Sequence[float]]) -> None:
    """Draw error against rounds and, far beyond real lengths, by how much the tree is worse, to `path`, a PNG."""
    with figure(path, 9.5, 3.8) as drawn:
        left, right = drawn.subplots(1, 2)
        rounds, *errors = np.array([row[: 1 + len(FAMILIES)] for row in rows]).T
        for index, (label, error) in enumerate(zip(FAMILIES.values(), errors, strict=True)):
            look = {"color": COLOURS[index], "linestyle": DASHES[index], "marker": MARKERS[index]}
            left.plot(rounds, error, markersize=4, label=label, **look)
        left.set_xscale("log", base=2)
        left.set(xlabel="rounds", ylabel="mean squared error of a count (units of (z C)²)", ylim=(0, None))
        left.legend()
        doublings = np.unique(np.geomspace(1, BEYOND[-1], 200).round())
        ratios = [tree_over_square_root(k) for k in doublings.tolist()]
        right.plot(doublings, ratios, color=COLOURS[0], label="tree / square root, by formula")
        right.plot(
            np.log2(rounds), errors[0] / errors[2], "o", color=COLOURS[1], markersize=5, label="as fitted"
        )
        right.axhline(LIMIT, color=COLOURS[2], linestyle="--", label=f"limit {LIMIT:.2f}")
        right.axvspan(1, 30, color=COLOURS[5], alpha=0.15, linewidth=0, label="up to a billion rounds")
        right.set(
            xlabel="log2 of the rounds", ylabel="ratio of mean squared errors", ylim=(0, 11), xscale="log"
        )
        right.legend(loc="lower right")
