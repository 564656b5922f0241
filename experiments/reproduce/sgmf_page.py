"""The pages of the training experiments of Chen et al. 2024: all of each, made of whatever runs there are.

Both keep their runs in one file, so that what both show is computed once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.pages.wording import Estimate
from experiments.reproduce import Means, Reproduction, bytes_figure, page as pages
from experiments.reproduce.accuracy_page import COLUMNS, Comparison, Subject, as_rows, estimated, section
from experiments.reproduce.results import Results
from experiments.reproduce.runs_made import code_words, time_words
from experiments.reproduce.sgmf_training import DELTA, SIZES, Size, cell, study
from experiments.reproduce.study import Study, compute, is_paired_above, order
from experiments.reproduce.trials import play
from experiments.reproduce.tuning import FACTOR
from experiments.reproduce.whole_run import FILES, check_data
from fedmf.accounting import calibrate_noise_multiplier, resolve_linf_ratio
from fedmf.errors import SettingError
from fedmf.updates.wire import ENVELOPE_BYTES
from server.files import write_atomically

RUNS = "sgmf"  # RUNS.jsonl has the runs of both names
ABOUT_BYTES = (
    f"Bytes are those of one message: 4 for each value that a client is expected to send, and {ENVELOPE_BYTES} of envelope. "
    "The values are those of the rotated vector, for which the model is padded to a power of two. "
    "With epochs a client sends at most one in each."
)


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
    found: Mapping[str, str]


def make(directory: Path, means: Means, page: Page, size_name: str, size: Size) -> Reproduction:
    """Make the runs of a page that are missing, then the page and its plot in `directory`; return its table."""
    keeps = size.keep_probabilities[page.name]
    work = study(size, keeps, page.mechanisms)
    results = runs_made(directory / f"{RUNS}.jsonl", work, means, page.name, needs_data=size.task.needs_data)
    words = f"{size.task.words}, cohorts of {size.cohort}, {size.epochs} epochs of {size.rounds} rounds in which {size.cohort * size.rounds:,} clients take part, tested on other writers"
    cells = tuple(one for name in page.mechanisms for keep in keeps for epsilon in size.epsilons
                  for one in (cell(size, name, keep, epsilon),))  # fmt: skip
    subject = Subject(size.task.name, words, cells, size.seeds)
    rows = as_rows([subject], results)
    stem = pages.stem(page.name, means, next(iter(SIZES)))
    figures = (
        (bytes_figure.draw(directory / f"{stem}.png", subject, size.dimension, results),) if rows else ()
    )
    lines = _lines(page, size_name, size, subject, work, results, figures)
    write_atomically(directory / f"{stem}.md", ("\n".join(lines).rstrip() + "\n").encode())
    return Reproduction(page.title, COLUMNS, rows, None, (), figures)


def runs_made(path: Path, work: Study, means: Means, name: str, *, needs_data: bool) -> Results:
    """Return the runs of a study in the file `path`, with those that were missing if `means` say so.

    Raises `SettingError` for a result `name` whose handwriting by writer is missing, or is no such file.
    """
    if means.compute:
        if means.data is not None:
            check_data(means.data)
        elif needs_data:
            raise SettingError(
                f"data is null, but {name} trains on handwriting by writer; set data=mnist_by_writer.npz, {FILES}."
            )
        player = partial(play, data=means.data)
        compute(path, work, player, workers=means.workers, mix_code=means.mix_code)
    results = Results(path)
    results.prefer(work.rates(results))
    return results


def _lines(page: Page, size_name: str, size: Size, subject: Subject, work: Study, results: Results,
           figures: tuple[Path, ...]) -> Iterator[str]:  # fmt: skip
    """Yield the lines of a page."""
    yield from (f"# {page.title}", "")
    yield (
        f"Made by `python -m experiments.reproduce name={page.name}{pages.asked(size_name, next(iter(SIZES)))} directory=docs/results workers=2 "
        "data=mnist_by_writer.npz`, which goes on"
    )
    yield f"where it was cut short; `compute=false` only writes this page again. Every line of {RUNS}.jsonl is one run; the data are described in [docs/data.md](../data.md#the-files-of-the-experiments)."
    yield "`size=laptop` trains a network with a hidden layer for 8 epochs of 32 rounds, in 15 to 30 CPU seconds a run and 3 to 5 CPU hours for a page;"
    yield "`size=paper` trains nothing: it builds and accounts runs as long as the paper's, and says what they would take."
    yield from ("", page.head.strip(), "", tuning(size), "")
    for figure in figures:
        yield from (f"![Test accuracy against bytes sent per client]({figure.name})", "")
        yield from (f"Mean over seeds; bands are one standard error. {ABOUT_BYTES}", "")
    if not figures:
        yield from ("No run has ended yet.", "")
    if is_finished(subject, results) and (found := page.found.get(size_name)):
        yield from (f"**What we find.** {found.strip()}", "")
    yield from section(subject, page.comparison, results)
    yield from sent_table(size, subject)
    yield from noise_table(size, subject)
    yield from lost_table(page, subject, results)
    yield from claims_table(page, subject, results)
    yield from what_it_took(work, results)


def is_finished(subject: Subject, results: Results) -> bool:
    """Return whether every cell has the runs that each must have."""
    return all(len(results.final(one)[1]) >= subject.runs for one in subject.cells)


def sent_table(size: Size, subject: Subject) -> Iterator[str]:
    """Yield the table of what a client sends."""
    dense = bytes_figure.sent(size.dimension, 1.0)
    yield from ("## Bytes", "", ABOUT_BYTES, "")
    yield from (
        "| keep | bytes a message | with keep 1, over these | bytes of a client in the run with epochs, at most |",
        "| ---: | ---: | ---: | ---: |",
    )
    for keep in subject.keep_probabilities:
        message = bytes_figure.sent(size.dimension, keep)
        yield f"| {keep:g} | {message:,.0f} | {dense / message:.1f} | {size.epochs * message:,.0f} |"
    yield ""


def noise_table(size: Size, subject: Subject, large: int = SIZES["paper"].dimension) -> Iterator[str]:
    """Yield what the noise in the mean grows by as less is sent, beside the same for a model of `large` parameters."""
    columns = [
        f"epsilon {epsilon:g}, {size_of:,} parameters"
        for epsilon in subject.epsilons
        for size_of in (size.dimension, large)
    ]
    yield from ("## The noise", "")
    yield "Noise multiplier of the mechanisms accounted by both bounds over the keep probability: the noise in the mean, relative to its sensitivity, for"
    yield f"{size.epochs} epochs. A vector of more coordinates is spread thinner, so that fewer of them may be kept before the noise grows: the model of"
    yield "`size=paper` pays less for the same keep probability. With keep 1 epsilon is exact, below by Rényi divergence."
    yield from ("", f"| keep | {' | '.join(columns)} |", "| ---: " * (1 + len(columns)) + "|")
    for keep in subject.keep_probabilities:
        noise = [
            f"{noise_over_keep(dimension, size, keep, epsilon):.3g}"
            for epsilon in subject.epsilons
            for dimension in (size.dimension, large)
        ]
        yield f"| {keep:g} | {' | '.join(noise)} |"
    yield ""


def noise_over_keep(dimension: int, size: Size, keep: float, epsilon: float) -> float:
    """Return the noise multiplier over the keep probability for a model of `dimension` parameters, bounds by default.

    >>> round(noise_over_keep(7850, SIZES["small"], 0.01, 2.0), 3)
    6.116
    """
    ratio = resolve_linf_ratio(None, dimension, size.cohort)
    return (
        calibrate_noise_multiplier(
            epsilon=epsilon, delta=float(DELTA), keep_probability=keep, linf_over_l2=ratio, epochs=size.epochs
        )
        / keep
    )


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
                    estimated(results, subject.cell(name, keep, epsilon)),
                    estimated(results, subject.cell(name, dense, epsilon)),
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
    yield "Here > means that the mean difference between the runs of the same seed, of those that both have, is two of its standard errors or more, ≈ that it is less."
    yield from ("", "| keep | epsilon | order | not as in the paper |", "| ---: | ---: | :--- | :--- |")
    for keep in subject.keep_probabilities:
        for epsilon in subject.epsilons:
            found = {name: results.final(subject.cell(name, keep, epsilon))[1] for name in page.mechanisms}
            if any(found.values()):
                yield f"| {keep:g} | {epsilon:g} | {order(found)} | {differs(page, found)} |"
    yield ""


def differs(page: Page, found: Mapping[str, Mapping[int, float]]) -> str:
    """Return the claims of the paper that a row does not have, in words; a dash if it has all whose runs are there."""
    missing = []
    for above, below in page.claims:
        a, b = found[above], found[below]
        if a and b and not is_paired_above(a, b):
            missing.append(
                f"`{above}` is {'below' if is_paired_above(b, a) else 'not told apart from'} `{below}`"
            )
    return "; ".join(missing) or "–"


def what_it_took(work: Study, results: Results) -> Iterator[str]:
    """Yield which code played the runs, how many there are and their time, those that tune included."""
    yield from ("## What it took", "")
    yield from (code_words(results, work.cells), "", time_words(results, work.cells))


def tuning(size: Size) -> str:
    """Return how learning rates are tuned, seeds chosen and runs made."""
    return f"""
**How the learning rate was tuned.** In the same way for every column: for each keep probability and epsilon on its own, on a grid of
factors of {FACTOR:g}. A rate is scored with {size.task.tuning} seed that no table shows: {size.held_out:.0%} of the training clients, drawn by that public
seed, are held out, the others train, and the held-out clients' examples give the accuracy after the last round. The search begins at
the best rate of a neighbouring keep probability or epsilon (first {size.task.start:g}) and goes to the better neighbour until neither is better. No
rate is chosen by the test split. That the choice was made with noise is not in the standard errors. The clients' learning rate 1, the
clip norm 1, cohorts and epochs are fixed and the same for all.

**Seeds.** {size.seeds} runs of each, and {size.more} more of two mechanisms that lie closer than two standard errors after these, on this page or on
the other one that shows them (sgmf_femnist, sgmf_csgm). Runs of the same seed share cohorts (but those without epochs), initial model, order of the data and the noise before it is correlated.

**What a run is.** The product's own pipeline, as `simulate` runs it. Secrets derive from the seed, so that the
same code computes every number again: these runs protect nobody, and choosing a learning rate by accuracy is not covered by epsilon. Zero-out adjacency,
delta {DELTA}; one participation an epoch. The server has momentum 0.9 and a constant learning rate.
""".strip()
