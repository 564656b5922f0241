"""What noise that knows the whole run is worth: accuracy against epsilon of five mechanisms at equal privacy.

Independent noise, the tree of DP-FTRL, the optimum of one epoch fitted to prefix sums and to momentum, and the optimum of
the whole run; on digits, and on handwriting by writer with logistic regression and a small network. Every mechanism has
the server's learning rate tuned for each setting, on training clients held out for it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from client.data.reading import PARSERS_RAISE, brief
from experiments.reproduce import Means, Reproduction
from experiments.reproduce.accuracy_page import COLUMNS, Comparison, Subject, as_rows, write_page
from experiments.reproduce.page import asked, stem
from experiments.reproduce.results import Results
from experiments.reproduce.runs_made import code_words, time_words
from experiments.reproduce.trials import Cell, play
from experiments.reproduce.tuning import FACTOR, Seeds, tuned_rates, tuned_runs
from experiments.reproduce.work import carry_out
from fedmf.checks import check_choice
from fedmf.errors import DataError

NAME = "whole_run"
ARRAYS = ("x", "y", "user", "split")  # of the handwriting by writer, whose bytes have the digest WRITERS
WRITERS = "59a960ef96be319f81e9186f1d0578027690f346c41d06487a4f6e8bef9445b0"
FILES = 'as docs/data.md says under "The files of the experiments"'
HELD_OUT = 0.15  # share of the training clients on whom a learning rate is tuned


@dataclass(frozen=True)
class Task:
    """Data and model, with every setting that a change of defaults could change later.

    `start` is the learning rate at which the first search begins, `tuning` how many seeds score a rate.
    """

    name: str
    words: str
    overrides: tuple[str, ...]
    start: float
    tuning: int
    needs_data: bool = False


COMMON = (
    "clipping.l2_norm=1.0",
    "clipping.linf_norm=null",
    "compression.rotation=hadamard",
    "compression.value_type=float32",
    "privacy.noise_multiplier=null",
    "privacy.adjacency=zero_out",
    "privacy.accountant=rdp",
    "optimizer.momentum=0.9",
    "optimizer.schedule=constant",
    "client.learning_rate=1.0",
    "client.epochs=1",
)
BY_WRITER = (
    *COMMON,
    "dataset=by_user_npz",
    "dataset.examples_per_client=17",
    "privacy.delta=1e-5",
    "population.cohort_size=80",
    "population.rounds_per_epoch=10",
    "population.epochs=6",
    "client.batch_size=20",
)
TASKS = (
    Task(
        "digits",
        "The default run: 1,437 clients with one 8 x 8 image each, cohorts of 64, 8 epochs of 22 rounds, 360 test images, "
        "logistic regression",
        (
            *COMMON,
            "dataset=digits",
            "model=logistic",
            "privacy.delta=1e-4",
            "population.cohort_size=64",
            "population.rounds_per_epoch=null",
            "population.epochs=8",
            "client.batch_size=10",
        ),
        start=0.3,
        tuning=2,
    ),
    Task(
        "writers, logistic",
        "MNIST by writer, cut into 3,782 clients of at most 17 images (the unit of privacy is such a client, not the "
        "writer), cohorts of 80, 6 epochs of 10 rounds, tested on other writers; logistic regression",
        (*BY_WRITER, "model=logistic"),
        start=0.1,
        tuning=1,
        needs_data=True,
    ),
    Task(
        "writers, mlp",
        "The same clients; a network with one hidden layer of 20 units",
        (*BY_WRITER, "model=mlp", "model.hidden=20"),
        start=0.1,
        tuning=1,
        needs_data=True,
    ),
)
# Independent noise and the tree are what they are, whatever they are fitted to.
MECHANISMS = {
    "independent": ("mechanism=independent", "workload=prefix_sum"),
    "honaker_online": ("mechanism=honaker_online", "workload=prefix_sum"),
    "epoch, prefix sums": ("mechanism=optimal", "workload=prefix_sum"),
    "epoch, momentum": ("mechanism=optimal", "workload=momentum"),
    "whole run": ("mechanism=optimal", "workload=run"),
}
COMPARISON = Comparison("whole run", "epoch, prefix sums")


@dataclass(frozen=True)
class Size:
    """How much is computed; neighbouring epsilons begin each other's search."""

    tasks: tuple[str, ...]
    keep_probabilities: tuple[float, ...]
    epsilons: tuple[float, ...]
    seeds: int


SIZES = {
    "full": Size(tuple(task.name for task in TASKS), (0.1, 1.0), (8.0, 4.0, 2.0, 1.0), seeds=10),
    "small": Size(("digits",), (0.1,), (8.0, 2.0), seeds=3),
}

OF_OLD_CODE = (
    "Those were computed with commit 7f0c7e6. Later code rounds otherwise, and gives other runs of the same law: to have these "
    "numbers again, check out that commit. A call of later code refuses to add runs beside them, unless mix_code=true."
)
HEAD = f"""
**What is compared.** Test accuracy after the last round, at equal privacy: `independent` noise; `honaker_online`, the tree of
DP-FTRL; the optimal factorization of one epoch alone, fitted to prefix sums (`workload=prefix_sum`) or to the momentum of
the server's optimizer (`workload=momentum`); and the optimal factorization of the whole run (`workload=run`). The
noise multiplier is the same for all of them in a row of a table: privacy does not depend on the factorization. The
optimizer has momentum 0.9 and a constant learning rate. The last column of each table is the mean difference between
runs of the same seed, which share cohorts, initial model, order of the data, masks and the noise before it is correlated.

**How the learning rate was tuned.** For each task, mechanism, keep probability and epsilon on its own, on a grid of factors of
{FACTOR:g}. A rate is scored with other seeds than those of the tables: for each of them {HELD_OUT:.0%} of the training clients,
drawn by that public seed, are held out; the others train (the same cohort size and number of epochs; digits then has
19 rounds an epoch instead of 22) and the held-out clients' examples give the accuracy after the last round; the
mean over seeds counts: 2 seeds with digits, whose held-out clients have 215 images each time, and 1 with the others, whose
held-out clients have some 9,600 images, of writers who may also train (the test split has other writers). From the best rate of the next larger epsilon (at epsilon 8
from 0.3 with digits, 0.1 with the others) the search goes to the better neighbour until both neighbours of the best rate have
been tried and are no better. The runs of the tables train on all training clients. No learning rate of the tables is
chosen by the test split. The standard errors are those of the runs at the rate that was chosen: that the choice was made
with noise is not in them. A score of 430 images has a standard error of 1.2 points near 93 %, so that neighbouring
rates of digits are hardly told apart. The clients' learning rate, the clip norm, cohorts and epochs were fixed beforehand and are the same
for all; those of the writers after some single runs of independent noise and of the optimum of one epoch fitted to
momentum, at epsilon 1 and 8, scored on held-out clients, but for their 10 rounds an epoch, which keep the computation short.

**What a run is.** The product's own pipeline, as `simulate` runs it: plan, Flower strategy, clients' training, clipping, rotation,
secret masks, noise. Secrets derive from the seed, so that the same code computes every number again: these runs protect nobody, and
choosing a learning rate by accuracy is not covered by epsilon. Zero-out adjacency; delta is 1e-4 with digits, 1e-5 with the
others. The data are smaller and easier than the papers' Federated EMNIST (62 classes, 3,400 writers).
"""


def reproduce(directory: Path, means: Means) -> Reproduction:
    """Make the runs that are missing, and return their table; the page and its plot go to `directory`."""
    check_choice("size", means.size or "full", SIZES)
    size = SIZES[means.size or "full"]
    name = stem(NAME, means, "full")
    notes = compute(directory, means, size) if means.compute else ()
    results = Results(directory / f"{NAME}.jsonl")
    results.prefer(
        {
            cell: rate
            for task in TASKS
            for chain in chains_of(task, size)
            for cell, rate in tuned_rates(
                tuned_runs(chain, task.start, seeds_of(task, size)), results
            ).items()
        }
    )
    subjects = [
        Subject(task.name, task.words, tuple(cells_of(task, size)), size.seeds)
        for task in TASKS
        if task.name in size.tasks
    ]
    cells = [cell for subject in subjects for cell in subject.cells]
    head = "\n\n".join(
        [
            "# Noise that knows the whole run",
            made_by(means.size),
            HEAD.strip(),
            code_words(results, cells, OF_OLD_CODE),
            f"**What it took.** {time_words(results, cells)}",
        ]
    )
    figures = write_page(directory, name, head, subjects, COMPARISON, results)
    return Reproduction(
        "Accuracy at equal privacy", COLUMNS, as_rows(subjects, results), None, notes, figures
    )


def made_by(size: str | None) -> str:
    """Return the words that say with what command the page is made."""
    return f"""
Made by `python -m experiments.reproduce name={NAME}{asked(size, "full")} directory=docs/results workers=3 data=mnist_by_writer.npz`, which
takes some hours and goes on where it was cut short; `compute=false` only writes this page again. Every line of
{NAME}.jsonl is one run. The data are described in [docs/data.md](../data.md#the-files-of-the-experiments).
""".strip()


def compute(directory: Path, means: Means, size: Size) -> tuple[str, ...]:
    """Make the runs that are missing, task by task; return what was left out, in words."""
    if means.data is not None:
        check_data(means.data)
    tasks = [task for task in TASKS if task.name in size.tasks and (means.data or not task.needs_data)]
    notes = []
    if left_out := [task.name for task in TASKS if task.name in size.tasks and task not in tasks]:
        notes.append(
            f"Not computed: {'; '.join(left_out)}. They need data=FILE, handwriting by writer, {FILES}."
        )
    chains = [
        tuned_runs(chain, task.start, seeds_of(task, size))
        for task in tasks
        for chain in chains_of(task, size)
    ]
    runs = size.seeds * sum(len(list(cells_of(task, size))) for task in tasks)
    with Results.alone(directory / f"{NAME}.jsonl", mix_code=means.mix_code) as results:
        carry_out(chains, results, partial(play, data=means.data), workers=means.workers, runs=runs)
    return tuple(notes)


def check_data(path: Path) -> None:
    """Raise `DataError` unless a file holds the handwriting of the page: results are kept by settings, not by data."""
    digest = hashlib.sha256()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in ARRAYS:
                digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    except PARSERS_RAISE as error:
        # NumPy's own words for a file of another kind advise to load it unsafely
        why = (
            f"cannot be read ({brief(error)})"
            if isinstance(error, OSError)
            else f"is no file of {', '.join(ARRAYS)}, which an .npz file must hold"
        )
        raise DataError(f"{path} {why}; data must be handwriting by writer, {FILES}.") from error
    if digest.hexdigest() != WRITERS:
        raise DataError(
            f"{path} holds other data than the handwriting by writer of {NAME}.md, whose results would be mixed with its own; data must be the file {FILES}."
        )


def seeds_of(task: Task, size: Size) -> Seeds:
    """Return the seeds of a task's trials: those that tune begin at 100."""
    return Seeds(tuple(range(100, 100 + task.tuning)), tuple(range(size.seeds)), HELD_OUT)


def chains_of(task: Task, size: Size) -> list[list[Cell]]:
    """Return the cells of a task, those of one mechanism and keep probability together, from the largest epsilon on."""
    return [
        [cell(task, mechanism, keep, epsilon) for epsilon in size.epsilons]
        for keep in size.keep_probabilities
        for mechanism in MECHANISMS
    ]


def cells_of(task: Task, size: Size) -> Sequence[Cell]:
    """Return all cells of a task."""
    return [cell for chain in chains_of(task, size) for cell in chain]


def cell(task: Task, mechanism: str, keep: float, epsilon: float) -> Cell:
    """Return one entry of the table."""
    own = (f"compression.keep_probability={keep:g}", f"privacy.epsilon={epsilon:g}", *MECHANISMS[mechanism])
    return Cell(task.name, mechanism, keep, epsilon, (*task.overrides, *own), task.needs_data)
