"""The training experiments of Chen et al. 2024: tasks and sizes, the mechanisms that are compared, and how a page is made.

`sgmf_femnist` and `sgmf_csgm` choose among these mechanisms. Both keep their runs in one file, so that what both show is
computed once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.pages.estimate import Estimate, estimate
from experiments.reproduce import Means, Reproduction, bytes_figure
from experiments.reproduce.accuracy_page import COLUMNS, Comparison, Subject, as_rows, section
from experiments.reproduce.results import Results
from experiments.reproduce.study import Study, compute, is_above, order
from experiments.reproduce.trials import Cell, play
from experiments.reproduce.tuning import FACTOR, Seeds
from experiments.reproduce.whole_run import COMMON, Task, check_data
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.updates.rotation import padded_dimension
from server.files import write_atomically

RUNS = "sgmf"  # RUNS.jsonl has the runs of both names
NARROW = 1.5  # the bound of a coordinate, relative to that of a vector whose coordinates are all as large
INDEPENDENT = "independent, L2-CSGM"
NO_EPOCHS = "L2-CSGM, no epochs"
LINF = "Linf-CSGM"
LINF_NARROW = "Linf-CSGM, narrow"
HONAKER = "honaker_online"
EPOCH = "SGMF, epoch"
WHOLE_RUN = "SGMF, whole run"
ABOUT_BYTES = (
    "Bytes are those of one message: 4 for each value that a client is expected to send, and 375 of envelope. A client "
    "sends at most one an epoch."
)


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


BY_WRITER = (
    *COMMON,
    "dataset=by_user_npz",
    "dataset.examples_per_client=17",
    "privacy.delta=1e-5",
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
        dimension=50890, cohort=100, rounds=32, epochs=4, keep_probabilities=KEEPS, epsilons=(8.0, 4.0, 2.0), seeds=5, more=5,
    ),
    "paper": Size(
        Task("femnist, cnn", "Federated EMNIST, 62 classes of 3,400 writers; a convolutional network of 1,018,174 parameters",
             (*COMMON, "dataset=femnist", "privacy.delta=1e-5", "client.batch_size=20", "model=cnn"),
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
    narrow = NARROW / math.sqrt(padded_dimension(size.dimension, "hadamard"))
    independent = ("mechanism=independent", "workload=prefix_sum")
    own = {
        INDEPENDENT: independent,
        NO_EPOCHS: independent,
        LINF: (*independent, "privacy.geometry=linf"),
        LINF_NARROW: (*independent, "privacy.geometry=linf", f"clipping.linf_norm={narrow:.6g}"),
        HONAKER: ("mechanism=honaker_online", "workload=prefix_sum"),
        EPOCH: ("mechanism=optimal", "workload=momentum"),
        WHOLE_RUN: ("mechanism=optimal", "workload=run"),
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


@dataclass(frozen=True)
class Page:
    """A page: its name, its mechanisms in the order of the columns, its words, and what the paper's curves say.

    `head` has no line about how things were made, which `tuning` says for all.  `claims` are pairs (above, below) that the
    paper's figures show; each is held against every row.
    """

    name: str
    title: str
    head: str
    mechanisms: tuple[str, ...]
    comparison: Comparison
    claims: tuple[tuple[str, str], ...]


def make(directory: Path, means: Means, page: Page, size_name: str, size: Size) -> Reproduction:
    """Make the runs of a page that are missing, then the page and its plot in `directory`; return its table."""
    if means.compute and means.data is None and size.task.needs_data:
        raise SettingError(
            f"data is null, but {page.name} trains on handwriting by writer; set data=mnist_by_writer.npz."
        )
    keeps = size.keep_probabilities[page.name]
    work = study(size, keeps, page.mechanisms)
    if means.compute:
        if means.data is not None:
            check_data(means.data)
        compute(directory / f"{RUNS}.jsonl", work, partial(play, data=means.data), workers=means.workers)
    results = Results(directory / f"{RUNS}.jsonl")
    results.prefer(work.rates(results))
    words = f"{size.task.words}, cohorts of {size.cohort}, {size.epochs} epochs of {size.rounds} rounds, tested on other writers"
    cells = tuple(one for name in page.mechanisms for keep in keeps for epsilon in size.epsilons
                  for one in (cell(size, name, keep, epsilon),))  # fmt: skip
    subject = Subject(size.task.name, words, cells, size.seeds)
    rows = as_rows([subject], results)
    stem = page.name if size_name == next(iter(SIZES)) else f"{page.name}_{size_name}"
    figures = (
        (bytes_figure.draw(directory / f"{stem}.png", subject, size.dimension, results),) if rows else ()
    )
    lines = _lines(page, size_name, size, subject, work, results, figures)
    write_atomically(directory / f"{stem}.md", ("\n".join(lines).rstrip() + "\n").encode())
    return Reproduction(page.title, COLUMNS, rows, None, (), figures)


def _lines(page: Page, size_name: str, size: Size, subject: Subject, work: Study, results: Results,
           figures: tuple[Path, ...]) -> Iterator[str]:  # fmt: skip
    """Yield the lines of a page."""
    asked = "" if size_name == next(iter(SIZES)) else f" size={size_name}"
    yield from (f"# {page.title}", "")
    yield (
        f"Made by `python -m experiments.reproduce name={page.name}{asked} directory=docs/results workers=2 "
        "data=mnist_by_writer.npz`, which goes on"
    )
    yield f"where it was cut short; `compute=false` only writes this page again. Every line of {RUNS}.jsonl is one run."
    yield from ("", page.head.strip(), "", tuning(size), "")
    for figure in figures:
        yield from (f"![Test accuracy against bytes sent per client]({figure.name})", "")
        yield from (f"Mean over seeds; bands are one standard error. {ABOUT_BYTES}", "")
    if not figures:
        yield from ("No run has ended yet.", "")
    yield from section(subject, page.comparison, results)
    yield from sent_table(size, subject)
    yield from lost_table(page, subject, results)
    yield from claims_table(page, subject, results)
    yield from what_it_took(work, results)


def sent_table(size: Size, subject: Subject) -> Iterator[str]:
    """Yield the table of what a client sends."""
    dense = bytes_figure.sent(size.dimension, 1.0)
    yield from ("## Bytes", "", ABOUT_BYTES, "")
    yield from (
        "| keep | bytes a message | with keep 1, over these | bytes of a client in the run, at most |",
        "| ---: | ---: | ---: | ---: |",
    )
    for keep in subject.keep_probabilities:
        message = bytes_figure.sent(size.dimension, keep)
        yield f"| {keep:g} | {message:,.0f} | {dense / message:.1f} | {size.epochs * message:,.0f} |"
    yield ""


def lost_table(page: Page, subject: Subject, results: Results) -> Iterator[str]:
    """Yield what each mechanism loses by compression: its accuracy less that with the largest keep probability."""
    dense, *fewer = subject.keep_probabilities
    yield from ("## What compression costs", "")
    yield f"Accuracy less that of the same mechanism with keep {dense:g}, in percent, with the standard error of the difference of means:"
    yield from (
        "",
        f"| keep | epsilon | {' | '.join(page.mechanisms)} |",
        "| ---: " * (2 + len(page.mechanisms)) + "|",
    )
    for keep in fewer:
        for epsilon in subject.epsilons:
            pairs = [
                (
                    _estimated(results, subject.cell(name, keep, epsilon)),
                    _estimated(results, subject.cell(name, dense, epsilon)),
                )
                for name in page.mechanisms
            ]
            yield f"| {keep:g} | {epsilon:g} | {' | '.join(less(a, b) for a, b in pairs)} |"
    yield ""


def less(a: Estimate | None, b: Estimate | None) -> str:
    """Return the difference of two means that share no run, with its standard error; a dash where one is missing.

    >>> less(Estimate(80.0, 0.3), Estimate(81.0, 0.4))
    '-1.0 ± 0.5'
    """
    if not a or not b:
        return "–"
    return f"{a.mean - b.mean:+.1f} ± {math.hypot(a.error or 0.0, b.error or 0.0):.1f}"


def claims_table(page: Page, subject: Subject, results: Results) -> Iterator[str]:
    """Yield the order of the mechanisms in each row, and where it is not that of the paper's figures."""
    said = "; ".join(f"`{above}` above `{below}`" for above, below in page.claims)
    yield from ("## The order beside the paper's", "")
    yield f"The paper's curves are not digitised: only the order of mechanisms is compared, where the paper has {said}."
    yield "Here > means two standard errors of the difference or more, ≈ less."
    yield from ("", "| keep | epsilon | order | not as in the paper |", "| ---: | ---: | :--- | :--- |")
    for keep in subject.keep_probabilities:
        for epsilon in subject.epsilons:
            found = {name: _estimated(results, subject.cell(name, keep, epsilon)) for name in page.mechanisms}
            if any(found.values()):
                yield f"| {keep:g} | {epsilon:g} | {order(found)} | {differs(page, found)} |"
    yield ""


def differs(page: Page, found: Mapping[str, Estimate | None]) -> str:
    """Return the claims of the paper that a row does not have, in words; a dash if it has all whose runs are there."""
    missing = []
    for above, below in page.claims:
        a, b = found[above], found[below]
        if a and b and not is_above(a, b):
            missing.append(f"`{above}` is {'below' if is_above(b, a) else 'not told apart from'} `{below}`")
    return "; ".join(missing) or "–"


def _estimated(results: Results, one: Cell) -> Estimate | None:
    return estimate([100 * accuracy for accuracy in results.final(one)[1].values()])


def what_it_took(work: Study, results: Results) -> Iterator[str]:
    """Yield how many runs there are and their CPU time, those that tune included."""
    final = [outcome.seconds for one in work.cells for *_, outcome in results.of(one, held_out=False)]
    tuned = [outcome.seconds for one in work.cells for *_, outcome in results.of(one, held_out=True)]
    minutes = (sum(final) + sum(tuned)) / 60
    yield from ("## What it took", "")
    yield (
        f"{len(final)} runs and {len(tuned)} trials for tuning, {minutes:.0f} CPU minutes in all: {minutes / 2:.0f} minutes on two cores "
        "that do nothing else."
    )


def tuning(size: Size) -> str:
    """Return how learning rates are tuned, seeds chosen and runs made."""
    return f"""
**How the learning rate was tuned.** In the same way for every column: for each keep probability and epsilon on its own, on a grid of
factors of {FACTOR:g}. A rate is scored with {size.task.tuning} seed that no table shows: {size.held_out:.0%} of the training clients, drawn by that public
seed, are held out, the others train, and the held-out clients' examples give the accuracy after the last round. The search begins at
the best rate of a neighbouring keep probability or epsilon (first {size.task.start:g}) and goes to the better neighbour until neither is better. No
rate is chosen by the test split. That the choice was made with noise is not in the standard errors. The clients' learning rate 1, the
clip norm 1, cohorts and epochs are fixed and the same for all.

**Seeds.** {size.seeds} runs of each, and {size.more} more of two mechanisms that lie closer than two standard errors after these. Runs of the same seed
share cohorts, initial model, order of the data and the noise before it is correlated.

**What a run is.** The product's own pipeline, as `simulate` runs it. Secrets derive from the seed, so that every number can be
computed again: these runs protect nobody, and choosing a learning rate by accuracy is not covered by epsilon. Zero-out adjacency,
delta 1e-5; one participation an epoch. The server has momentum 0.9 and a constant learning rate.
""".strip()
