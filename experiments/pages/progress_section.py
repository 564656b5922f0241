"""The parts of a run's page that go by round: accuracy, loss and epsilon, marked where the run was scored."""

from collections.abc import Callable, Sequence

from experiments.pages.figures import MOST_MARKERS, LinePlot, Series
from experiments.pages.page import Plot, Section
from experiments.pages.wording import bound, number, percent
from experiments.run_files.directory import METRICS
from experiments.run_files.reader import Run
from experiments.run_files.scored import is_of_part, part_scored, part_words


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
    best_of: Callable[..., tuple[int, float]],
    text: Callable[[float], str],
    words: str,
    *,
    y_label: str,
    scale: float = 1,
) -> Section:
    """Return what was scored on the test set by round; `text` says a value, `best_of` finds the best."""
    title = f"{key.capitalize()} by round"
    rounds, _ = run.column(key)
    if not rounds:
        return Section(title, [f"{METRICS} holds no round at which the model was scored."])
    part, whole = scores(run, key)
    last, value = whole[-1] if whole else part[-1]
    alike = part or whole  # a score on some of the examples is not compared with one on all
    best_at, best = best_of(alike, key=lambda scored: scored[1])
    which = "highest" if best_of is max else "lowest"
    on_all = f", on all {run.summary['test_examples']:,} test examples" if part else ""
    on_part = f" on the {min(part_scored(run) or (0,)):,} of the rounds before" if part else ""
    said, source = (part_words([run]), f"{key}, test_examples") if part else ("", key)
    caption = (
        f"{words} after round {last:,}: {text(value)}{on_all}; the {which}{on_part} was {text(best)} in round "
        f"{best_at:,}. {said}{scored_words(rounds, len(run.rounds))} From {METRICS}: {source}."
    )
    drawing = LinePlot(series_of(run, key, scale), "round", y_label, markers=True)
    return Section(title, figure=Plot(key, drawing, caption, f"{key}_by_round"))


def scores(run: Run, key: str) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """Return the (round, value) of scores on a part of the test examples, and of those on all."""
    part: list[tuple[int, float]] = []
    whole: list[tuple[int, float]] = []
    for line in run.rounds:
        if line.get(key) is not None:
            (part if is_of_part(run, line) else whole).append((line["round"], line[key]))
    end, value = run.summary.get("rounds"), run.summary.get(key)
    if part and value is not None and end is not None and (not whole or whole[-1][0] != end):
        whole.append((end, value))  # a run that its budget ended: its summary alone is of all
    return part, whole


def series_of(run: Run, key: str, scale: float = 1) -> list[Series]:
    """Return the scores by round as lines, those on a part of the test examples apart from those on all."""
    part, whole = scores(run, key)
    few, all_of = part_scored(run) or (0, 0)
    named = [(f"{few:,} of {all_of:,} test examples" if part else key, part or whole)]
    if part and whole:
        named.append((f"all {all_of:,} test examples", whole))
    return [
        Series(name, [place for place, _ in points], [scale * value for _, value in points])
        for name, points in named
    ]


def _nats(value: float) -> str:
    return f"{number(value)} nats"
