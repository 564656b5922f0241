"""The size `paper` of a training experiment: every cell is composed, built and accounted, and nothing is trained."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from client.data import Dataset, Examples
from experiments.reproduce import Cell, Reproduction
from experiments.reproduce.page import once
from experiments.reproduce.sgmf_page import Page
from experiments.reproduce.sgmf_training import Size, cell
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.errors import DataError

CLIENTS, CLASSES = 3400, 62  # of Federated EMNIST
TRIALS = (
    4  # that a search of a rate takes at least, from where a neighbour's ended: about what it took in `small`
)
SECONDS = (
    3.0,
    5.0,
)  # of a round of this network with cohorts of 100 on two busy cores, with 17 images a client
COLUMNS = ("mechanism", "keep", "epsilon", "noise multiplier", "over keep", "bytes of values")


def dry_run(page: Page, size: Size) -> Reproduction:
    """Return what each cell would be, and what all would cost; raises a `FedmfError` for what could not run as asked."""
    keeps = size.keep_probabilities[page.name]
    rows = tuple(accounted(page, size, blank(size)))
    runs = len(rows) * (size.seeds + TRIALS * size.task.tuning)
    rounds = runs * size.rounds * size.epochs
    low, high = (rounds * seconds / 3600 for seconds in SECONDS)
    notes = (
        "Composed, built and accounted; nothing was trained, and no page written. The data are stood in for by blank images.",
        f"It would take about {runs:,} runs with tuning, {rounds:,} rounds and {rounds * size.cohort:,} trainings of a client: "
        f"{low:,.0f} to {high:,.0f} hours at the {SECONDS[0]:g} to {SECONDS[1]:g} s a round that two busy cores took for this network.",
        "Set dataset.path to Federated EMNIST's files with `simulate` to train one of them: "
        f"{' '.join(once(cell(size, page.mechanisms[-1], keeps[-1], size.epsilons[0]).overrides))}",
    )
    return Reproduction(f"{page.title}: a dry run", COLUMNS, rows, None, notes)


def accounted(page: Page, size: Size, dataset: Dataset) -> Iterator[tuple[Cell, ...]]:
    """Yield the row of each cell, see `COLUMNS`: built for `dataset` and accounted.

    Raises `DataError` where the model has other parameters than the size says.
    """
    keeps = size.keep_probabilities[page.name]
    for mechanism, keep, epsilon in product(page.mechanisms, keeps, size.epsilons):
        settings = compose("config", [*cell(size, mechanism, keep, epsilon).overrides, "seed=0"], Settings)
        plan = build(settings, dataset).plan
        if plan.dimension != size.dimension:
            raise DataError(f"the model has {plan.dimension} parameters; the size says {size.dimension}.")
        z = plan.noise_multiplier
        yield (mechanism, keep, epsilon, z, z / keep, plan.value_bytes)


def blank(size: Size) -> Dataset:
    """Return a data set in the shape of Federated EMNIST, less the clients on whom rates would be tuned, all images blank."""
    image = Examples(np.zeros((1, 28, 28), np.float32), np.zeros(1, np.int64))
    clients = [image] * (CLIENTS - int(size.held_out * CLIENTS))
    shape = image.x.shape[1:]
    return replace(
        Dataset(
            "femnist", clients, image, shape, CLASSES, "classification", "none", "blank images", "one writer"
        ),
        notes=("All images are blank.",),
    )
