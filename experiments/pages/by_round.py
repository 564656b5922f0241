"""The sections of a run's page that show something round by round: progress, metrics, bytes, attendance."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.pages.figures import MOST_MARKERS, LinePlot, Series
from experiments.pages.page import SOURCE, Plot, Section, Table
from experiments.pages.wording import bound, figure, number, percent, size, times, times_less
from experiments.run_files.attendance import read_attendance
from experiments.run_files.directory import ATTENDANCE, CONFIG, METRICS
from experiments.run_files.reader import Run, is_of_part, part_scored, part_words
from experiments.settings.recorded import Recorded
from fedmf.errors import RunDirectoryError
from fedmf.updates.compression import Compression
from fedmf.updates.rotation import padded_dimension
from fedmf.updates.wire import value_bytes


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


FLOAT_BYTES = 4
# How the ratio grows with the model: name, parameters on 10 classes.
SIZES = (("logistic, 8 x 8", 650), ("mlp, 28 x 28", 203_530), ("cnn, 28 x 28", 1_011_466))


def recorded_compression(config: Recorded) -> Compression:
    """Return the compression that a run's config names. Raises `RunDirectoryError` where it names none."""
    try:
        return Compression(**config["compression"])
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(f"{CONFIG} names no compression ({error}); restore the file.") from error


def compression_section(summary: dict[str, Any], compression: Compression) -> Section:
    """Return why the ratio is what it is, and how it grows with the model."""
    count, rotation = int(summary["parameters"]), compression.rotation
    rows = [
        (name, f"{d:,}", f"{padded_dimension(d, rotation):,}", times(ratio(d, compression)))
        for name, d in (("this run", count), *SIZES)
    ]
    growth = (
        "The loss to padding depends on how far d lies below a power of two; the envelope of a message "
        f"({size(summary.get('envelope_bytes_per_client'))}) weighs less the larger the model. "
        "Larger models also afford a smaller keep probability at the same epsilon, which is where the ratio "
        "grows. The table holds this run's keep probability and value type fixed."
    )
    table = Table(("model", "parameters d", "sent from, D", "compression"), rows, numbers=(1, 2, 3))
    return Section("Why the compression is what it is", [reason(count, compression), growth], table=table)


def reason(count: int, compression: Compression) -> str:
    """Return in words how many of `count` parameters are sent, and how much less than all that is."""
    keep, padded = compression.keep_probability, padded_dimension(count, compression.rotation)
    value = value_bytes(1, 1.0, compression.value_type)
    bits, ideal, sent = round(8 * value), FLOAT_BYTES / (keep * value), ratio(count, compression)
    if padded == count:
        return (
            f"Nothing is padded, so keeping each value with probability {number(keep)} at {bits} bits sends "
            f"{times(ideal)} times less than {count:,} parameters of 32 bits."
        )
    return (
        f"The Hadamard rotation works on powers of two, so {count:,} parameters are padded to {padded:,}, "
        f"and a client keeps each of the {padded:,} rotated values with probability {number(keep)}: on "
        f"average {number(keep * padded)} values of {bits} bits. Against {count:,} parameters of 32 bits "
        f"that is {times_less(sent)}" + (f", not {times(ideal)} times." if sent >= 1 else ".")
    )


def ratio(parameters: int, compression: Compression) -> float:
    """Return 4 d over the value bytes that a client sends on average.

    >>> round(ratio(650, Compression(0.1, "hadamard", "float32")), 2)
    6.35
    """
    padded = padded_dimension(parameters, compression.rotation)
    sent = value_bytes(padded, compression.keep_probability, compression.value_type)
    return FLOAT_BYTES * parameters / sent


TITLE = "Which nodes took part"


def attendance_sections(run: Run) -> list[Section]:
    """Return one section for a deployment, none for other runs."""
    rows = read_attendance(run.directory)
    if not rows:
        return []
    epochs: dict[str, list[int]] = {}
    for row in rows:
        for name in row["nodes"]:
            epochs.setdefault(name, []).append(row["epoch"])
    words = [
        "A node takes part in an epoch when it is there, and ready, as the epoch begins. Which of its clients were heard, or "
        "failed, is said nowhere."
    ]
    table = Table(
        ("node", "epochs", "which", "clients in the last of them", SOURCE),
        [
            (
                name,
                f"{len(present)} of {len(rows)}",
                spans(present),
                number(rows[[row["epoch"] for row in rows].index(present[-1])]["nodes"][name]),
                ATTENDANCE,
            )
            for name, present in sorted(epochs.items())
        ],
        numbers=(1, 3),
    )
    return [Section(TITLE, words, table=table)]


def spans(numbers: list[int]) -> str:
    """Return increasing numbers as spans.

    >>> spans([1, 2, 3, 5, 7, 8])
    '1-3, 5, 7-8'
    """
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
