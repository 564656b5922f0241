"""The training experiments of Chen et al. 2024: their tasks and sizes, and the mechanisms that are compared.

`sgmf_femnist` and `sgmf_csgm` choose among these.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.reproduce import Means
from experiments.reproduce.study import Study
from experiments.reproduce.trials import Cell
from experiments.reproduce.tuning import Seeds
from experiments.reproduce.whole_run import COMMON, Task
from fedmf.checks import check_choice
from fedmf.updates.rotation import padded_dimension

NARROW = 1.5  # the bound of a coordinate, relative to that of a vector whose coordinates are all as large
INDEPENDENT = "independent, L2-CSGM"
NO_EPOCHS = "L2-CSGM, no epochs"
LINF = "Linf-CSGM"
LINF_NARROW = "Linf-CSGM, narrow"
HONAKER = "honaker_online"
EPOCH = "SGMF, epoch"
WHOLE_RUN = "SGMF, whole run"
WHOLE_RUN_NARROW = "SGMF, whole run, narrow"


@dataclass(frozen=True)
class Size:
    """How much is computed: a task with cohorts, rounds and epochs; neighbouring keep probabilities begin each other's search.

    `dimension` are the parameters of the model.  `keep_probabilities` are by name of the page.  `seeds` runs of each
    cell are made, `more` besides where mechanisms lie close.  `held_out` is the share of the clients on whom rates are tuned.
    """

    task: Task
    dimension: int
    cohort: int
    rounds: int
    epochs: int
    keep_probabilities: Mapping[str, tuple[float, ...]]
    epsilons: tuple[float, ...]
    seeds: int
    more: int
    held_out: float = 0.15


DELTA = "1e-5"
BY_WRITER = (
    *COMMON,
    "dataset=by_user_npz",
    "dataset.examples_per_client=17",
    f"privacy.delta={DELTA}",
    "client.batch_size=20",
)
WRITERS = "MNIST by writer, cut into 3,782 clients of at most 17 images (the unit of privacy is such a client, not the writer)"
KEEPS = {"sgmf_femnist": (1.0, 0.1, 0.03, 0.01, 0.003), "sgmf_csgm": (1.0, 0.1, 0.01)}
SIZES = {
    "small": Size(
        Task("writers, logistic", f"{WRITERS}; logistic regression of 7,850 parameters",
             (*BY_WRITER, "model=logistic"), start=0.15, tuning=1, needs_data=True),
        dimension=7850, cohort=100, rounds=16, epochs=4, keep_probabilities=KEEPS, epsilons=(8.0, 2.0), seeds=5, more=5,
    ),
    "laptop": Size(
        Task("writers, mlp", f"{WRITERS}; a network with one hidden layer of 64 units, 50,890 parameters",
             (*BY_WRITER, "model=mlp", "model.hidden=64"), start=0.15, tuning=1, needs_data=True),
        dimension=50890, cohort=100, rounds=32, epochs=8, keep_probabilities=KEEPS, epsilons=(8.0, 4.0, 2.0), seeds=5, more=5,
    ),
    "paper": Size(
        Task("femnist, cnn", "Federated EMNIST, 62 classes of 3,400 writers; a convolutional network of 1,018,174 parameters",
             (*COMMON, "dataset=femnist", f"privacy.delta={DELTA}", "client.batch_size=20", "model=cnn"),
             start=0.15, tuning=1, needs_data=True),
        dimension=1018174, cohort=100, rounds=32, epochs=16, keep_probabilities=KEEPS, epsilons=(8.0, 4.0, 2.0, 1.0),
        seeds=10, more=0, held_out=0.05,
    ),
}  # fmt: skip


def check_size(means: Means) -> str:
    """Return the name of the size that is asked for, the first one by default."""
    size = means.size or next(iter(SIZES))
    check_choice("size", size, SIZES)
    return size


def overrides(mechanism: str, size: Size) -> tuple[str, ...]:
    """Return the settings of a mechanism, cohorts, rounds and epochs included."""
    bound = NARROW / math.sqrt(padded_dimension(size.dimension, "hadamard"))
    narrow = (f"clipping.linf_norm={bound:.6g}",)
    independent = ("mechanism=independent", "workload=prefix_sum")
    own = {
        INDEPENDENT: independent,
        NO_EPOCHS: independent,
        LINF: (*independent, "privacy.geometry=linf"),
        LINF_NARROW: (*independent, "privacy.geometry=linf", *narrow),
        HONAKER: ("mechanism=honaker_online", "workload=prefix_sum"),
        EPOCH: ("mechanism=optimal", "workload=momentum"),
        WHOLE_RUN: ("mechanism=optimal", "workload=run"),
        WHOLE_RUN_NARROW: ("mechanism=optimal", "workload=run", *narrow),
    }[mechanism]
    rounds, epochs = (1, size.rounds * size.epochs) if mechanism == NO_EPOCHS else (size.rounds, size.epochs)
    who = (
        f"population.cohort_size={size.cohort}",
        f"population.rounds_per_epoch={rounds}",
        f"population.epochs={epochs}",
    )
    return (*who, *own)  # fmt: skip


def cell(size: Size, mechanism: str, keep: float, epsilon: float) -> Cell:
    """Return one entry of a table."""
    task = size.task
    own = (
        f"compression.keep_probability={keep:g}",
        f"privacy.epsilon={epsilon:g}",
        *overrides(mechanism, size),
    )
    return Cell(task.name, mechanism, keep, epsilon, (*task.overrides, *own), task.needs_data)  # fmt: skip


def study(size: Size, keeps: tuple[float, ...], mechanisms: tuple[str, ...]) -> Study:
    """Return the work of a page: a chain for each mechanism, through all keep probabilities and epsilons by turns."""
    points = [
        (keep, epsilon)
        for index, keep in enumerate(keeps)
        for epsilon in (size.epsilons if index % 2 == 0 else reversed(size.epsilons))
    ]
    chains = tuple(tuple(cell(size, name, *point) for point in points) for name in mechanisms)
    rows = tuple(tuple(cell(size, name, *point) for name in mechanisms) for point in points)
    seeds = Seeds(tuple(range(100, 100 + size.task.tuning)), tuple(range(size.seeds)), size.held_out)
    return Study(chains, rows, size.task.start, seeds, tuple(range(size.seeds, size.seeds + size.more)))
