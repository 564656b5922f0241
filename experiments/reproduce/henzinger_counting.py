"""Figure 1 of Henzinger, Upadhyay, Upadhyay (SODA 2023): error of the binary tree beside their factorization.

Mean squared error of continual counting, computed at real lengths and by formula beyond; the factor pi^2 / (2 ln^2 2) = 10.27 by
which the tree is worse in the limit, and what it is where anybody counts. Besides, errors of real counters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.pages.wording import estimate
from experiments.reproduce import Cell, Means, Reproduction, Section
from experiments.reproduce.counting_plot import draw
from experiments.reproduce.page import stem
from experiments.reproduce.steps import told
from fedmf.checks import check_choice
from fedmf.counting import continual_counter
from fedmf.mechanisms import bounds, design, design_run, of_run, prefix_sum, restarted
from fedmf.randomness import SecretKey

NAME = "henzinger_counting"
TREES = ("binary_tree", "honaker_online")
FAMILIES = (*TREES, "sqrt_toeplitz", "optimal")
LIMIT = math.pi**2 / (2 * math.log(2) ** 2)
FORMULA_UP_TO = 20  # doublings up to which the sums of the square root are added up; beyond, their expansion
BEYOND = (20, 30, 36, 50, 100, 200, 250, 280, 300, 500, 1000, 10_000)
EPSILON, DELTA = 1.0, 1e-6
DIMENSION = 64


@dataclass(frozen=True)
class Size:
    """Up to how many doublings mechanisms are fitted, at which counters run, with how many seeds, and lengths of runs."""

    doublings: int
    counted: tuple[int, ...]
    seeds: int
    runs: tuple[int, ...]


SIZES = {
    "small": Size(14, (6, 8, 10), 10, (10, 12, 14)),
    "laptop": Size(17, (6, 8, 10, 12), 20, (10, 12, 14, 16)),
}
EPOCHS = 8
COLUMNS = ("rounds", *FAMILIES, "tree, formula", "square root, formula", "tree / square root", "tree / optimal", "square root / optimal")  # fmt: skip
BY_FORMULA = """
The gap is Theorem 2's upper bound on the mean squared error less Theorem 3's lower bound, in units of C^2; the paper has it at most 10
for all numbers of rounds up to 2^50 (docs/errata.md).
"""


def about(size: Size) -> str:
    """Return the words of the page."""
    return f"""
**What is computed.** The mean squared error of the released counts, root loss squared over the number of rounds, in units of the
squared noise multiplier times the squared norm of one vector, at equal privacy. Up to 2^{size.doublings} rounds it is that of the mechanism as fitted
and deployed, float32 tables included; the columns `formula` are computed apart from it. For 2^k rounds

    tree:         (k + 1) (k/2 + 2^-k)
    square root:  G_n (G_1 + ... + G_n) / n,      G_m = sum over j < m of (binom(2j, j) / 4^j)^2

with G_m added up to 2^{FORMULA_UP_TO} rounds and by its expansion (ln m + 0.5772 + 4 ln 2)/pi - 1/(4 pi m) beyond, which is off by less than 1e-8 there. The first two tables have no
randomness. The counters of the third are real ones ({", ".join(f"2^{k}" for k in size.counted)} rounds, dimension {DIMENSION}, epsilon = {EPSILON:g}, delta = {DELTA:g}, fed with unit vectors),
with seeds 0 to {size.seeds - 1}: mean and standard error over the seeds.

**What the paper shows.** Figure 1 of Henzinger et al. draws the error of the binary tree mechanism beside that of their
factorization, and the text gives the factor, about 10, between them: pi^2 / (2 ln^2 2) = {LIMIT:.4f} in the limit. No number
was read off their plot.

**What differs.** The limit is right, and further away than it sounds: the second table says where the tree is ten times worse. Beside
their tree stands Honaker's estimator on the same tree, which costs nothing, and beside the square root the optimum. By formula
the tree is ten times worse than the square root from 2^{ten_times()} rounds on.

**The whole-run mechanism.** For counting without restarts it is the column `optimal`. Where the noise restarts and the count goes
on, it is the last table.
"""


def reproduce(directory: Path, means: Means) -> Reproduction:
    """Return the tables, and draw directory/henzinger_counting.png."""
    check_choice("size", means.size or "small", SIZES)
    size = SIZES[means.size or "small"]
    name = stem(NAME, means, "small")
    rows = tuple(row(doublings) for doublings in in_turn("errors", range(1, size.doublings + 1)))
    formulas = [
        abs(ours / formula - 1) for item in rows for ours, formula in ((item[1], item[5]), (item[3], item[6]))
    ]
    return Reproduction(
        "Henzinger et al. 2023, Figure 1: mean squared error of continual counting",
        COLUMNS,
        rows,
        max(formulas),
        figures=(draw(directory / f"{name}.png", rows, tree_over_square_root, LIMIT),),
        stem=name,
        about=about(size),
        heading="Mechanisms as fitted",
        sections=(
            Section("Beyond, by formula", BY_FORMULA, ("rounds", "tree", "square root", "tree / square root", "gap of Theorems 2 and 3"),
                    tuple(beyond(doublings) for doublings in BEYOND)),
            Section("Real counters", "Mean squared error as measured, over the squared noise multiplier, beside what is expected:",
                    ("rounds", "mechanism", "measured", "standard error", "expected", "tree / this one, measured"),
                    tuple(line for doublings in in_turn("real counters", size.counted) for line in counted(doublings, size.seeds))),
            Section(f"Counting in {EPOCHS} epochs", f"{EPOCHS} epochs of so many rounds; the noise restarts in each and the count goes on, one participation an epoch:",
                    ("rounds an epoch", "binary tree", "square root", "optimum of one epoch", "whole run", "tree / whole run"),
                    tuple(on_a_run(doublings) for doublings in in_turn(f"{EPOCHS} epochs", size.runs))),
        ),
    )  # fmt: skip


def in_turn(table: str, doublings: Sequence[int]) -> Iterator[int]:
    """Return the lengths of a table, as doublings, each told as its turn comes."""
    return told(doublings, lambda power: f"{table}, 2^{power} rounds", lambda power: 2.0**power)


def row(doublings: int) -> tuple[float, ...]:
    """Return one line of the first table, see `COLUMNS`."""
    rounds = 2**doublings
    fitted = [float(design(family, prefix_sum(rounds)).root_loss ** 2 / rounds) for family in FAMILIES]
    tree, _, root, optimal = fitted
    return (rounds, *fitted, tree_error(doublings), square_root_error(doublings), tree / root, tree / optimal, root / optimal)  # fmt: skip


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


def ten_times() -> int:
    """Return the fewest doublings at which the tree is ten times worse, by formula."""
    return next(
        doublings for doublings in range(FORMULA_UP_TO, 1000) if tree_over_square_root(doublings) >= 10
    )


def gap_of_squares(rounds: int) -> float:
    """Return Theorem 2's upper bound on the mean squared error less Theorem 3's lower bound, in units of C^2."""
    return float((bounds.henzinger_upper(rounds) ** 2 - bounds.henzinger_lower(rounds) ** 2) / rounds)


def beyond(doublings: int) -> tuple[Cell, ...]:
    """Return one line of the second table; numbers of rounds beyond a double have no theorems' bounds there."""
    gap = gap_of_squares(2**doublings) if doublings <= 50 else None
    return (f"2^{doublings}", tree_error(doublings), square_root_error(doublings), tree_over_square_root(doublings), gap)  # fmt: skip


def counted(doublings: int, seeds: int) -> list[tuple[Cell, ...]]:
    """Return the lines of the third table for one length: real counters of each family, run once with each seed."""
    rounds = 2**doublings
    lines: list[tuple[Cell, ...]] = []
    measured = {family: [measure(rounds, family, seed) for seed in range(seeds)] for family in FAMILIES}
    tree = float(np.mean(measured["binary_tree"]))
    for family, errors in measured.items():
        found = estimate(errors)
        assert found is not None
        expected = design(family, prefix_sum(rounds)).root_loss ** 2 / rounds
        lines.append((rounds, family, found.mean, found.error, expected, tree / found.mean))
    return lines


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


def on_a_run(doublings: int) -> tuple[Cell, ...]:
    """Return one line of the last table: mean squared errors over a run of `EPOCHS` epochs of 2^doublings rounds."""
    rounds = 2**doublings
    restarting = [
        restarted(design(family, prefix_sum(rounds)), EPOCHS)
        for family in ("binary_tree", "sqrt_toeplitz", "optimal")
    ]
    whole = design_run("optimal", of_run(rounds, EPOCHS))
    errors = [run.root_loss**2 / (rounds * EPOCHS) for run in (*restarting, whole)]
    return (rounds, *errors, errors[0] / errors[-1])
