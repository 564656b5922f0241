"""The parts of a run's page that go by round: accuracy, loss and epsilon, marked where the run was scored."""

from collections.abc import Callable, Sequence

from experiments.pages.figures import MOST_MARKERS, LinePlot, Series
from experiments.pages.page import Plot, Section
from experiments.pages.wording import bound, number, percent
from experiments.run_files.directory import METRICS
from experiments.run_files.reader import Run


def accuracy_section(run: Run) -> Section:
    """Return accuracy by round."""
    return _scored(
        run, "accuracy", max, percent, "Accuracy on the test set", y_label="test accuracy (%)", scale=100
    )


def loss_section(run: Run) -> Section:
    """Return the loss on the test set by round."""
    return _scored(run, "loss", min, _nats, "Loss on the test set", y_label="test loss (nats)")


def epsilon_section(run: Run, whose: str) -> Section:
    """Return epsilon by round; `whose` says whom it protects."""
    title = "Epsilon by round"
    rounds, epsilon = run.column("epsilon")
    if not rounds:
        return Section(title, ["The run is not private, so there is no epsilon to draw."])
    caption = (
        f"Epsilon spent so far at delta = {bound(run.summary.get('delta'))} ({whose}): {bound(epsilon[0])} once "
        f"the first epoch has begun, {bound(epsilon[-1])} at the end. An epoch that has begun counts "
        f"whole. From {METRICS}: epsilon."
    )
    line = Series("epsilon", rounds, epsilon)
    drawing = LinePlot([line], "round", "epsilon spent", steps=True, y_from=0)
    return Section(title, figure=Plot("epsilon", drawing, caption, "epsilon_by_round"))


def scored_words(marked: Sequence[int], released: int) -> str:
    """Return in words in which of the rounds a run was scored, and how a plot shows it.

    >>> scored_words([2, 4, 6], 6), scored_words([1, 2], 2)
    ('Scored after 3 of 6 rounds, each marked.', 'Scored after every round, each marked.')
    """
    often = "every round" if len(marked) == released else f"{len(marked):,} of {released:,} rounds"
    return f"Scored after {often}{', each marked' if len(marked) <= MOST_MARKERS else ''}."


def _scored(
    run: Run,
    key: str,
    best_of: Callable[[Sequence[float]], float],
    text: Callable[[float], str],
    words: str,
    *,
    y_label: str,
    scale: float = 1,
) -> Section:
    """Return what was scored on the test set by round; `text` says a value, `best_of` finds the best."""
    title = f"{key.capitalize()} by round"
    rounds, values = run.column(key)
    if not rounds:
        return Section(title, [f"{METRICS} holds no round at which the model was scored."])
    best = best_of(values)
    caption = (
        f"{words} after round {rounds[-1]:,}: {text(values[-1])}; the {'highest' if best_of is max else 'lowest'} "
        f"was {text(best)} in round {rounds[values.index(best)]:,}. {scored_words(rounds, len(run.rounds))} From "
        f"{METRICS}: {key}."
    )
    line = Series(key, rounds, [scale * value for value in values])
    drawing = LinePlot([line], "round", y_label, markers=True)
    return Section(title, figure=Plot(key, drawing, caption, f"{key}_by_round"))


def _nats(value: float) -> str:
    return f"{number(value)} nats"
