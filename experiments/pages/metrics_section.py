"""The part of a run's page about metrics besides accuracy and loss: what each is, and how it went by round."""

from collections.abc import Iterator

from experiments.pages.figures import LinePlot
from experiments.pages.page import Plot, Section
from experiments.pages.progress_section import series_of
from experiments.pages.wording import figure, percent
from experiments.run_files.directory import METRICS
from experiments.run_files.reader import Run
from experiments.run_files.scored import part_words

WORDS = {
    "top5": "top-5 accuracy on the test set",
    "f1": "F1 on the test set, mean over classes",
    "perplexity": "perplexity on the test set",
}
SHARES = ("accuracy", "top5")  # shown as percentages


def words(name: str, entry: str) -> str:
    """Return what a metric is called on a page; one of the user's own by its import path.

    >>> words("f1", "f1"), words("recall", "mine:recall")
    ('F1 on the test set, mean over classes', 'recall on the test set (mine:recall)')
    """
    return WORDS.get(entry, f"{name} on the test set ({entry})")


def value_text(name: str, value: float | None) -> str:
    """Return a metric's value as people read it, a dash where it is not defined."""
    return percent(value) if name in SHARES else figure(name, value)


def metrics_sections(run: Run) -> Iterator[Section]:
    """Yield one plot by round for each metric besides accuracy and loss."""
    for place, (name, entry) in enumerate(run.further_metrics.items(), start=1):
        title = f"{name} by round"
        rounds, values = run.column(name)
        if not rounds:
            yield Section(title, [f"{METRICS} holds no round with a value of {name}."])
            continue
        scored = [line[name] for line in run.rounds if name in line]
        lacking = len(scored) - len(values)
        gaps = f"; without a value in {lacking} of {len(scored)} rounds" if lacking else ""
        caption = (
            f"{words(name, entry)} after round {rounds[-1]}: {value_text(name, values[-1])}{gaps}. "
            f"{part_words([run])}From {METRICS}: {name}."
        )
        scale = 100 if name in SHARES else 1
        figure = f"metric{place}"  # an id of the page, which a name from a file is not
        drawing = LinePlot(
            series_of(run, name, scale), "round", f"{name} (%)" if scale == 100 else name, markers=True
        )
        said = caption[0].upper() + caption[1:] if entry in WORDS else caption
        yield Section(title, figure=Plot(figure, drawing, said, f"{name}_by_round"))
