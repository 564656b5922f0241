"""The numbers that the papers print, each computed again, with its deviation and the test or command that shows it.

Denisov et al. (NeurIPS 2022), Henzinger et al. (SODA 2023) and, of Chen et al. (ICML 2024), formulas at the points of docs/errata.md.
Accuracies of trained models are not here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from experiments.pages.figures import COLOURS, MARKERS, STYLE, save
from experiments.reproduce import Cell, Reproduction, denisov_table2
from experiments.reproduce.henzinger_counting import LIMIT, gap_of_squares
from fedmf.accounting import EpochEvent, privacy_spent, rdp, rdp_per_coordinate
from fedmf.accounting.conversion import epsilon_of_order
from fedmf.mechanisms import bounds, design, prefix_sum

NAME = "cited_numbers"
DENISOV, HENZINGER, CHEN = "Denisov et al.", "Henzinger et al.", "Chen et al."
DELTA = 1e-6
EPSILONS = {0.341: 18.9, 0.682: 8.2, 1.364: 3.7, 2.728: 1.7, 5.456: 0.8}  # noise multiplier: as printed
ORDERS = range(2, 600)
LONGEST = 2**50  # rounds up to which the gap of Henzinger et al. is printed as at most 10
ROUNDS = (2, 6, 7, 1024)  # at which Theorem 2 is held against the loss
ORDER, SQUARE, GAMMA = (
    5,
    0.0164,
    0.01,
)  # a point of Chen et al.'s sum: order, squared mean over variance, keep probability
GAUSSIAN_ORDER, GAUSSIAN_NOISE = 3.0, 1.7
COLUMNS = ("paper", "where", "what", "printed", "ours", "deviation, %", "finding", "shown by")
ABOUT = """
**What is computed.** Every number of the three papers that follows from formulas and is known to this project as printed, by this
project's own code; `shown by` names the test (`python -m pytest -k NAME`) or the command that shows it apart from this page. Nothing in it is
drawn at random: there are no seeds.

**What the papers show.** The column `printed`. Where a paper prints a formula or a bound and no number, that is its value at the point
named. Chen et al.'s Figure 1 prints no numbers (`python -m experiments.reproduce name=sgmf_figure1`).

**What differs.** `agrees`: to the last digit printed. `ours is lower`: a fit that is not unique, of which five digits
stand, or an epsilon that is accounted exactly; theirs is valid and says more than it must. Every other word is a difference, of which docs/errata.md says what is behind it.

**Left out.** Accuracies of trained models; an epsilon in a footnote of Denisov et al., 1.36 at delta = 1e-7, whose noise multiplier is not printed.
The whole-run mechanism has no entry: nothing of it is in the papers.
"""


@dataclass(frozen=True)
class Check:
    """A printed number beside ours; `finding` says how they stand to each other, `shown_by` where that is shown."""

    paper: str
    where: str
    what: str
    printed: float
    ours: float
    finding: str
    shown_by: str

    @property
    def deviation(self) -> float:
        """How far ours is from the printed number, relative to it."""
        return self.ours / self.printed - 1

    @property
    def row(self) -> tuple[Cell, ...]:
        """One line of the table, see `COLUMNS`."""
        return (self.paper, self.where, self.what, self.printed, self.ours, round(100 * self.deviation, 4), self.finding, self.shown_by)  # fmt: skip


def reproduce(directory: Path) -> Reproduction:
    """Return the table of checks, and draw directory/cited_numbers.png.

    The worst relative error is over those that agree to the last digit printed.
    """
    checks = [*table_2(), *epsilons(), *counting(), *formulas()]
    agreeing = [abs(check.deviation) for check in checks if check.finding == "agrees"]
    return Reproduction(
        "Cited numbers of the three papers",
        COLUMNS,
        tuple(check.row for check in checks),
        max(agreeing),
        notes=(f"{len(agreeing)} of {len(checks)} agree to the last digit printed.",),
        figures=(draw(directory / f"{NAME}.png", checks),),
        stem=NAME,
        about=ABOUT,
        heading="Checks",
    )


def agrees(printed: float, ours: float, digits: int = 1) -> bool:
    """Return whether ours is printed alike, with so many digits after the point.

    >>> agrees(74.4, 74.402), agrees(217.3, 216.9455), agrees(10, 10.27, digits=0)
    (True, False, True)
    """
    return round(ours, digits) == printed


def table_2() -> Iterator[Check]:
    """Yield the entries of Denisov et al.'s Table 2."""
    for rounds in denisov_table2.PUBLISHED:
        line: dict[str, Any] = dict(zip(denisov_table2.COLUMNS, denisov_table2.row(rounds), strict=True))
        pairs = (("Honaker", "Honaker, published", "Honaker online"), ("optimal", "optimal, published", "certified to"),
                 ("efficient", "efficient, published", "banded low rank"))  # fmt: skip
        for what, theirs, own in pairs:
            printed, ours = float(line[theirs]), float(line[own])
            if what == "efficient":
                ours = float(f"{ours:.5g}")  # a fit ends elsewhere in the sixth digit on another machine
            lower = "ours is lower" if what == "efficient" else "had not converged"
            finding = "agrees" if agrees(printed, ours) else (lower if ours < printed else "ours is higher")
            yield Check(DENISOV, "Table 2", f"{what}, {rounds} rounds", printed, ours, finding, "reproduce name=denisov_table2")  # fmt: skip


def epsilons() -> Iterator[Check]:
    """Yield the epsilons of Denisov et al.'s experiments, by integer orders as printed and exactly."""
    for noise, printed in EPSILONS.items():
        integer = epsilon_of_integer_orders(noise)
        exact = float(privacy_spent(EpochEvent(noise, 1.0, 1.0), 1, delta=DELTA).epsilon)
        what = f"epsilon at noise multiplier {noise:g}"
        for way, ours in (("integer orders", integer), ("exact", exact)):
            as_printed = way != "exact" and agrees(
                printed, ours
            )  # what is exact is another number, however near
            finding = "agrees" if as_printed else ("ours is lower" if ours < printed else "ours is higher")
            yield Check(DENISOV, "experiments", f"{what}, {way}", printed, ours, finding, "printed_epsilons")


def epsilon_of_integer_orders(noise: float) -> float:
    """Return the epsilon of one Gaussian release at `DELTA` by the best integer Renyi order."""
    event = EpochEvent(noise, 1.0, 1.0)
    return float(min(epsilon_of_order(order, rdp(event, order), DELTA) for order in ORDERS))


def counting() -> Iterator[Check]:
    """Yield the numbers of Henzinger et al.: the limit of the ratio, the gap, and Theorem 2 at some lengths."""
    finding = "agrees" if agrees(10, LIMIT, digits=0) else "differs"
    yield Check(HENZINGER, "factor", "tree over square root, in the limit", 10.0, LIMIT, finding, "reproduce name=henzinger_counting")  # fmt: skip
    gap = gap_of_squares(LONGEST)
    finding = "holds" if gap <= 10 else "the bound fails"
    yield Check(HENZINGER, "gap", "Theorem 2 less Theorem 3 up to 2^50 rounds, at most", 10.0, gap, finding, "published_gap")  # fmt: skip
    for rounds in ROUNDS:
        printed = bounds.henzinger_upper(rounds)
        ours = float(design("sqrt_toeplitz", prefix_sum(rounds)).root_loss)
        finding = "holds" if ours <= printed else "the bound fails"
        yield Check(HENZINGER, "Theorem 2", f"root loss of {rounds} rounds, at most", printed, ours, finding, "square_root_is_above")  # fmt: skip


def formulas() -> Iterator[Check]:
    """Yield formulas of Chen et al. as printed, at a point, beside the corrected ones."""
    printed = math.log(printed_sum(ORDER, SQUARE, GAMMA, 1)) / (ORDER - 1)
    ours = float(rdp_per_coordinate(ORDER, SQUARE, GAMMA))
    yield Check(CHEN, "Theorem 4.1", f"divergence of order {ORDER}, gamma {GAMMA:g}, t {SQUARE:g}; the sum from l = 1", printed, ours, "a slip", "sum_starts_at_two")  # fmt: skip
    printed = float(GAUSSIAN_ORDER / GAUSSIAN_NOISE**2)
    ours = float(rdp(EpochEvent(GAUSSIAN_NOISE, 1.0, 1.0), GAUSSIAN_ORDER))
    yield Check(CHEN, "eps_GM", f"divergence of order {GAUSSIAN_ORDER:g} of the Gaussian, sigma {GAUSSIAN_NOISE:g}", printed, ours, "a slip", "factor_one_half")  # fmt: skip


def printed_sum(order: int, t: float, gamma: float, start: int, exponent: int | None = None) -> float:
    """Return F as a sum over l from `start`; the paper starts at 1, and its last display has the order as `exponent`."""
    total = 1.0
    for count in range(start, order + 1):
        power = count if exponent is None else exponent
        weight = math.comb(order, count) * (1 - gamma) ** (order - count) * gamma**count
        first = (1 - gamma) ** (order - 1) * (order * gamma - gamma + 1) if start == 1 else 0.0
        total += weight * (math.exp((power**2 - power) * t / 2) - (0.0 if first else 1.0))
        if first and count == 1:
            total += first - 1
    return float(total)


def draw(path: Path, checks: list[Check]) -> Path:
    """Draw the deviation of every number to `path`, a PNG, a colour for each finding; within .1 % the axis is linear."""
    style: Any = {**STYLE, "font.size": 8}
    findings = list(dict.fromkeys(check.finding for check in checks))
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.5, 0.6 + 0.19 * len(checks)), layout="constrained")
        axes = figure.add_subplot()
        for index, finding in enumerate(findings):
            places = [place for place, check in enumerate(checks) if check.finding == finding]
            axes.plot([100 * checks[place].deviation for place in places], places, MARKERS[index], color=COLOURS[index], label=finding)  # fmt: skip
        axes.set_yticks(
            range(len(checks)), [f"{check.paper}, {check.where}: {check.what}" for check in checks]
        )
        axes.set_ylim(len(checks) - 0.5, -0.5)
        axes.set_xscale("symlog", linthresh=0.1)
        axes.margins(x=0.05)
        axes.set_xlabel("deviation of ours from what is printed, %")
        axes.axvline(0, color="#888888", linewidth=0.8)
        figure.legend(loc="outside lower center", ncols=len(findings))
        save(figure, path, 120)
    return path
