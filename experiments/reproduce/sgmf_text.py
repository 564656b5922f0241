"""Figures 2 and 6 of Chen et al. 2024 in small, next-word prediction: accuracy against bytes on texts by user.

The sparsified matrix mechanism fitted to one epoch, as in the paper, and to the whole run, beside the tree of DP-FTRL and
independent noise, at fixed epsilon; on Stack Exchange by user, with the learning rate tuned for each.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from experiments.pages.wording import Estimate, estimate
from experiments.reproduce import Means, Reproduction, bytes_figure, sgmf_page, sgmf_text_task as task
from experiments.reproduce.accuracy_page import COLUMNS, Comparison, Subject, as_rows, estimated, section
from experiments.reproduce.page import asked, stem, table_head, table_row
from experiments.reproduce.results import Results
from experiments.reproduce.sgmf_page import ABOUT_BYTES, Page
from experiments.reproduce.sgmf_text_paper import dry_run
from experiments.reproduce.sgmf_text_task import NAME, RUNS, SIZES, VOCABULARY, WORDS
from experiments.reproduce.sgmf_text_words import FOUND, HEAD, tuning
from experiments.reproduce.sgmf_training import EPOCH, HONAKER, INDEPENDENT, WHOLE_RUN, Size, cell
from experiments.reproduce.study import Study, compute
from experiments.reproduce.trials import Cell
from experiments.reproduce.tuning import Chain
from experiments.reproduce.whole_run import FILES
from experiments.reproduce.work import carry_out
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from server.files import write_atomically

PAGE = Page(
    NAME,
    "Next-word prediction: accuracy against bytes sent per client",
    HEAD,
    (INDEPENDENT, HONAKER, EPOCH, WHOLE_RUN),
    Comparison(WHOLE_RUN, EPOCH),
    ((EPOCH, INDEPENDENT),),
    FOUND,
)


def reproduce(directory: Path, means: Means) -> Reproduction:
    """Make the runs that are missing, and return their table; the page and its plot go to `directory`."""
    name = means.size or next(iter(SIZES))
    check_choice("size", name, SIZES)
    size = SIZES[name]
    return dry_run(PAGE, size) if name == "paper" else make(directory, means, PAGE, name, size)


def make(directory: Path, means: Means, page: Page, size_name: str, size: Size) -> Reproduction:
    """Make the runs that are missing, then the page and its plot in `directory`; return its table."""
    work = task.study(size, page.mechanisms)
    if means.compute:
        _compute(directory, means, work, size)
    results = Results(directory / RUNS)
    results.prefer(work.rates(results))
    where = (
        f"{size.task.words}, cohorts of {size.cohort}, {size.epochs} epochs of {size.rounds} rounds in which "
        f"{size.cohort * size.rounds:,} users take part, tested on other posts and comments of the same users"
    )
    cells = tuple(
        cell(size, name, keep, epsilon)
        for name in page.mechanisms
        for keep in size.keep_probabilities[NAME]
        for epsilon in size.epsilons
    )
    subject = Subject(size.task.name, where, cells, size.seeds)
    rows = as_rows([subject], results)
    name = stem(NAME, means, next(iter(SIZES)))
    picture = directory / f"{name}.png"
    levels = beside(size, results)
    draw = partial(bytes_figure.draw, subject=subject, dimension=size.dimension, results=results)
    of_loss = partial(
        draw, measure=mean_loss, label="test loss (nats)", levels=beside(size, results, of_loss=True)
    )
    figures = (draw(picture, levels=levels), of_loss(directory / f"{name}_loss.png")) if rows else ()
    lines = _lines(page, size_name, size, subject, work, results, figures)
    write_atomically(directory / f"{name}.md", ("\n".join(lines).rstrip() + "\n").encode())
    return Reproduction(page.title, COLUMNS, rows, None, (), figures)


def _compute(directory: Path, means: Means, work: Study, size: Size) -> None:
    if means.data is None:
        raise SettingError(
            f"data is null, but {NAME} trains on texts by user; set data=stackexchange_by_user.jsonl.gz, {FILES}."
        )
    task.check_texts(means.data)
    play = partial(task.play, data=means.data, vocabulary=task.public_words(directory))
    compute(directory / RUNS, work, play, workers=means.workers, mix_code=means.mix_code)
    results = Results(directory / RUNS, mix_code=means.mix_code)
    carry_out([_same_words(size)], results, play, workers=1, runs=1)
    results.sort()


def _same_words(size: Size) -> Chain[None]:
    yield [task.same_words(size)]


def beside(size: Size, results: Results, *, of_loss: bool = False) -> Mapping[str, float]:
    """Return the accuracies, in percent, or losses that belong to no mechanism: without noise, and of frequencies alone."""
    levels = {}
    measure = mean_loss if of_loss else estimated
    if found := measure(results, task.no_noise(size)):
        levels[task.NO_NOISE] = found.mean
    if word := results.find(task.same_words(size)):
        levels[task.SAME_WORDS] = word.loss if of_loss and word.loss else 100 * word.accuracy
    return levels


def _lines(page: Page, size_name: str, size: Size, subject: Subject, work: Study, results: Results,
           figures: tuple[Path, ...]) -> Iterator[str]:  # fmt: skip
    """Yield the lines of the page."""
    yield from (f"# {page.title}", "")
    yield (
        f"Made by `python -m experiments.reproduce name={NAME}{asked(size_name, next(iter(SIZES)))} directory=docs/results workers=2 "
        "data=stackexchange_by_user.jsonl.gz`, which goes"
    )
    yield f"on where it was cut short; `compute=false` only writes this page again. Every line of {RUNS} is one run; the data are described in [docs/data.md](../data.md#the-files-of-the-experiments);"
    yield f"{WORDS} is the vocabulary, made by `python -m experiments.vocabulary file=docs/results/{WORDS} size={VOCABULARY}`. `size=laptop` trains larger cohorts at smaller epsilons and more keep probabilities, for an hour or two; `size=paper` trains"
    yield "nothing: it builds and accounts runs with the network and the number of users of Stack Overflow."
    yield from ("", page.head.strip(), "", tuning(size), "")
    for figure in figures:
        yield from (f"![Against bytes sent per client]({figure.name})", "")
    if figures:
        yield "Mean over seeds; bands are one standard error; grey lines belong to no mechanism. Of the second, the loss, less is better."
        yield from (ABOUT_BYTES, "")
    if not figures:
        yield from ("No run has ended yet.", "")
    if sgmf_page.is_finished(subject, results) and (found := page.found.get(size_name)):
        yield from (f"**What we find.** {found.strip()}", "")
    yield from section(subject, page.comparison, results)
    yield from beside_table(size, results)
    yield from chance_table(subject, size, results)
    yield from loss_table(subject, results)
    yield from sgmf_page.sent_table(size, subject)
    yield from sgmf_page.noise_table(size, subject, SIZES["paper"].dimension)
    yield from sgmf_page.lost_table(page, subject, results)
    yield from sgmf_page.claims_table(page, subject, results)
    yield from sgmf_page.what_it_took(work, results)


def beside_table(size: Size, results: Results) -> Iterator[str]:
    """Yield what the same network learns without noise, and what is right without any network."""
    yield from ("## Without noise, and without learning", "")
    yield "With everything sent, clipped and tuned as above but without noise: no privacy. And the five words that are most frequent in the"
    yield from (
        "training texts, suggested always; its loss is that of a model that knows the frequencies of all tokens there, and nothing of what stands before.",
        "",
    )
    yield from table_head(["", "test accuracy, %", "loss", "seeds", "learning rate"])
    rate, by_seed = results.final(task.no_noise(size))
    if found := estimated(results, task.no_noise(size)):
        error = "" if found.error is None else f" ± {found.error:.1f}"
        yield table_row(
            [
                task.NO_NOISE,
                f"{found.mean:.1f}{error}",
                loss_text(results, task.no_noise(size)),
                str(len(by_seed)),
                f"{rate:g}",
            ]
        )
    if word := results.find(task.same_words(size)):
        yield table_row([task.SAME_WORDS, f"{100 * word.accuracy:.1f}", f"{word.loss:.2f}", "–", "–"])
    yield ""


def chance_table(subject: Subject, size: Size, results: Results) -> Iterator[str]:
    """Yield how far each mechanism is above the most frequent words, which it has not beaten below two standard errors."""
    word = results.find(task.same_words(size))
    if word is None:
        return
    yield from ("## Above the most frequent words", "")
    yield "Accuracy less that of the five most frequent words, in percent; **no better** where it is not above by two standard errors:"
    yield ""
    yield from table_head(["keep", "epsilon", *subject.mechanisms])
    for keep in subject.keep_probabilities:
        for epsilon in subject.epsilons:
            gains = []
            for name in subject.mechanisms:
                found = estimated(results, subject.cell(name, keep, epsilon))
                gains.append("–" if found is None else gain(found.mean - 100 * word.accuracy, found.error))
            yield table_row([f"{keep:g}", f"{epsilon:g}", *gains])
    yield ""


def gain(above: float, error: float | None) -> str:
    """Return a difference in words, marked where it is not above zero by two standard errors.

    >>> gain(1.0, 0.2), gain(0.3, 0.2)
    ('+1.0 ± 0.2', '+0.3 ± 0.2, **no better**')
    """
    said = f"{above:+.1f} ± {error or 0.0:.1f}"
    return said if above > 2 * (error or 0.0) else f"{said}, **no better**"


def loss_table(subject: Subject, results: Results) -> Iterator[str]:
    """Yield the mean loss on the test texts, which tells apart what accuracies near one another do not."""
    yield from ("## Loss", "")
    yield "Cross-entropy on the test texts in nats, mean ± standard error, end marks and unknown words included; – where a run diverged:"
    yield ""
    yield from table_head(["keep", "epsilon", *subject.mechanisms])
    for keep in subject.keep_probabilities:
        for epsilon in subject.epsilons:
            cells = [subject.cell(name, keep, epsilon) for name in subject.mechanisms]
            yield table_row([f"{keep:g}", f"{epsilon:g}", *(loss_text(results, one) for one in cells)])
    yield ""


def mean_loss(results: Results, one: Cell) -> Estimate | None:
    """Return mean and standard error of the loss of a cell's runs at its tuned rate; None without any and where one diverged."""
    tuned, _ = results.final(one)
    losses = [outcome.loss for rate, _, outcome in results.of(one, held_out=False) if rate == tuned]
    return None if None in losses else estimate(losses)


def loss_text(results: Results, one: Cell) -> str:
    """Return the mean loss of a cell as it stands in a table."""
    found = mean_loss(results, one)
    if found is None:
        return "–"
    return f"{found.mean:.2f}" if found.error is None else f"{found.mean:.2f} ± {found.error:.2f}"
