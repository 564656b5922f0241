"""Table 2 of Denisov, McMahan, Rush, Smith, Thakurta (NeurIPS 2022): root loss of prefix-sum factorizations.

Their "Honaker" is the online estimator. Their optimal entry at 4096 rounds, 217.3, was not converged: the
certified interval of the optimum lies below it. Their efficient column is the banded-plus-low-rank
approximation of Appendix H, whose fit is not unique: ours must only be no worse.
"""

from pathlib import Path

from experiments.reproduce import Reproduction
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.optimum.fixed_point import certified

PUBLISHED = {  # rounds: Honaker, optimal, efficient
    256: (74.4, 40.4, 40.4),
    512: (116.5, 62.0, 62.2),
    1024: (180.8, 94.6, 95.5),
    2048: (278.3, 143.6, 145.8),
    4096: (425.6, 217.3, 224.0),
}
BANDS_AND_RANK = {256: 4, 512: 4, 1024: 5, 2048: 5, 4096: 6}
PRINTED = 0.05  # half a unit of the last printed digit
COLUMNS = (
    "rounds",
    "Honaker, published",
    "Honaker online",
    "optimal, published",
    "certified from",
    "certified to",
    "streamed",
    "efficient, published",
    "banded low rank",
    "published optimum",
)


def reproduce(directory: Path) -> Reproduction:
    """Return the table with their numbers beside ours; nothing is drawn.

    The worst relative error is over the Honaker and the converged optimal entries, which have one digit after
    the point.
    """
    rows = tuple(row(rounds) for rounds in PUBLISHED)
    errors = [
        abs(ours / published - 1)
        for item in rows
        for published, ours, stands in ((item[1], item[2], True), (item[3], item[5], item[-1] == "converged"))
        if stands
    ]
    return Reproduction(
        "Denisov et al. 2022, Table 2: root loss of prefix sums",
        COLUMNS,
        rows,
        max(errors),
        tuple(
            f"The published optimum {item[3]} at {item[0]} rounds was not converged: the optimum is at most "
            f"{item[5]:.4f}."
            for item in rows
            if item[-1] == "not converged"
        ),
    )


def row(rounds: int) -> tuple[int, float, float, float, float, float, float, float, float, str]:
    """Return one line of the table, see `COLUMNS`."""
    honaker, optimal, efficient = PUBLISHED[rounds]
    workload, size = prefix_sum(rounds), BANDS_AND_RANK[rounds]
    solution = certified(workload)
    converged = solution.lower - PRINTED <= optimal <= solution.upper + PRINTED
    return (
        rounds,
        honaker,
        design("honaker_online", workload).root_loss,
        optimal,
        solution.lower,
        solution.upper,
        design("optimal", workload).root_loss,
        efficient,
        design("banded_low_rank", workload, bands=size, rank=size).root_loss,
        "converged" if converged else "not converged",
    )
