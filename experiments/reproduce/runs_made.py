"""What a page says of its runs as such: which code played them, and what time they took."""

from collections.abc import Sequence

import numpy as np

from experiments.reproduce.results import Results, in_words
from experiments.reproduce.trials import Cell


def code_words(results: Results, cells: Sequence[Cell], unnamed: str = "") -> str:
    """Return which code played the runs of these cells; `unnamed` is said where some of the lines do not name theirs."""
    codes = results.codes(cells)
    if not codes:
        return "**The code.** No run has ended yet."
    tail = unnamed if None in codes else ""
    return f"**The code.** {in_words(codes)}. {tail}".strip()


def time_words(results: Results, cells: Sequence[Cell]) -> str:
    """Return how many runs there are and what they took, those that tune included."""
    final = [outcome for one in cells for *_, outcome in results.of(one, held_out=False)]
    tuned = [outcome for one in cells for *_, outcome in results.of(one, held_out=True)]
    every = [*final, *tuned]
    cpu = sum(outcome.seconds for outcome in every) / 60
    said = (
        f"{len(final)} runs and {len(tuned)} trials for tuning, {cpu:.0f} CPU minutes in all; over two cores that is {cpu / 2:.0f} minutes "
        "each, which is not wall time."
    )
    if walls := [outcome.wall for outcome in every if outcome.wall is not None]:
        some = "" if len(walls) == len(every) else f"; it is missing for {len(every) - len(walls)}"
        said += (
            f" Wall time, measured for {len(walls)} of them: {sum(walls) / 60:.0f} minutes one after the other, "
            f"{sum(walls) / len(walls):.1f} s a run{some}."
        )
    else:
        said += " Wall time was not measured."
    return f"{said} {_spread([outcome.seconds for outcome in every])}".strip()


def _spread(seconds: Sequence[float]) -> str:
    """Say how far apart the CPU times of single runs are: machines and what else they had to do differ."""
    if len(seconds) < 2:
        return ""
    low, high = np.quantile(seconds, [0.05, 0.95]).tolist()
    return f"Nine runs of ten took {low:.1f} to {high:.1f} CPU seconds, as the machine was and what else it had to do."
