"""Table 2 of Denisov et al. (NeurIPS 2022): root loss of prefix-sum factorizations, theirs beside ours.

Their "Honaker" is the online estimator. Their optimal entry at 4096 rounds, 217.3, was not converged: the
certified interval of the optimum lies below it. Their efficient column is the banded-plus-low-rank
approximation of Appendix H.
"""

import sys
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from experiments import command
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.optimal_solve import certified

PUBLISHED = {  # rounds: Honaker, optimal, efficient
    256: (74.4, 40.4, 40.4),
    512: (116.5, 62.0, 62.2),
    1024: (180.8, 94.6, 95.5),
    2048: (278.3, 143.6, 145.8),
    4096: (425.6, 217.3, 224.0),
}
BANDS_AND_RANK = {256: 4, 512: 4, 1024: 5, 2048: 5, 4096: 6}
PRINTED = 0.05  # half a unit of the last printed digit


def main(config: DictConfig) -> None:
    """Print the table, or its rows as JSON with output=json."""
    rows = [row(rounds) for rounds in PUBLISHED]
    if str(getattr(config.output, "value", config.output)) == "json":
        command.print_json(rows)
    else:
        _print_table(rows)


def row(rounds: int) -> dict[str, Any]:
    """Return their three numbers and ours, the certified interval, and whether their optimum agrees with
    it.
    """
    honaker, optimal, efficient = PUBLISHED[rounds]
    solution = certified(prefix_sum(rounds))
    size = BANDS_AND_RANK[rounds]
    return {
        "rounds": rounds,
        "honaker_published": honaker,
        "honaker": design("honaker_online", prefix_sum(rounds)).root_loss,
        "optimal_published": optimal,
        "optimal_lower": solution.lower,
        "optimal_upper": solution.upper,
        "optimal_streamed": design("optimal", prefix_sum(rounds)).root_loss,
        "efficient_published": efficient,
        "efficient": design("banded_low_rank", prefix_sum(rounds), bands=size, rank=size).root_loss,
        "converged": solution.lower - PRINTED <= optimal <= solution.upper + PRINTED,
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line a size, then the entries that disagree."""
    table = Table(title="Denisov et al. 2022, Table 2: root loss, published | here")
    for heading in ("rounds", "Honaker online", "optimal", "certified interval", "streamed", "efficient"):
        table.add_column(heading, justify="right")
    for item in rows:
        table.add_row(
            f"{item['rounds']}",
            f"{item['honaker_published']} | {item['honaker']:.2f}",
            f"{item['optimal_published']} | {item['optimal_upper']:.4f}",
            f"[{item['optimal_lower']:.4f}, {item['optimal_upper']:.4f}]",
            f"{item['optimal_streamed']:.4f}",
            f"{item['efficient_published']} | {item['efficient']:.2f}",
        )
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for item in rows:
        if not item["converged"]:
            console.print(
                f"The published optimum {item['optimal_published']} at {item['rounds']} rounds was not "
                f"converged: the optimum is at most {item['optimal_upper']:.4f}."
            )
