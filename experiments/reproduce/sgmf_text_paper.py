"""The size `paper` of next-word prediction: every cell is composed, built and accounted, and nothing is trained."""

import numpy as np

from client.data import Dataset, Examples
from client.data.dataset import NEXT_TOKEN, describe_unit
from client.data.text import SPECIAL, UNCOUNTED
from experiments.reproduce import Reproduction
from experiments.reproduce.page import once
from experiments.reproduce.sgmf_page import Page
from experiments.reproduce.sgmf_paper import COLUMNS, TRIALS, accounted
from experiments.reproduce.sgmf_training import Size, cell

USERS = 342_477  # of Stack Overflow
WORDS = 10_000  # of its benchmark's vocabulary
LENGTH = 20  # words of a sentence


def dry_run(page: Page, size: Size) -> Reproduction:
    """Return what each cell would be, and how much work all would be; raises a `FedmfError` for what could not run as asked."""
    rows = tuple(accounted(page, size, blank(size)))
    runs = len(rows) * (size.seeds + TRIALS * size.task.tuning)
    rounds = runs * size.rounds * size.epochs
    last = cell(size, page.mechanisms[-1], size.keep_probabilities[page.name][-1], size.epsilons[0])
    notes = (
        "Composed, built and accounted; nothing was trained, and no page written. The data are stood in for by blank texts.",
        f"It would take about {runs:,} runs with tuning, {rounds:,} rounds and {rounds * size.cohort:,} trainings of a client.",
        "Cohorts, rounds and epochs are our choice. Set dataset.path and dataset.vocabulary to Stack Overflow's files with `simulate` to train one "
        f"of them: {' '.join(once(last.overrides))}",
    )
    return Reproduction(f"{page.title}: a dry run", COLUMNS, rows, None, notes)


def blank(size: Size) -> Dataset:
    """Return a data set in the shape of Stack Overflow, less the users on whom rates would be tuned, all texts blank."""
    text = Examples(np.full((1, LENGTH), SPECIAL, np.int64), np.full((1, LENGTH), SPECIAL, np.int64))
    return Dataset(
        name="stackoverflow",
        clients=[text] * (USERS - int(size.held_out * USERS)),
        test=text,
        input_shape=(LENGTH,),
        classes=WORDS + SPECIAL,
        task=NEXT_TOKEN,
        licence="none",
        source="blank texts",
        unit=describe_unit("user"),
        uncounted=UNCOUNTED,
        person="user",
        notes=("All texts are blank.",),
    )
