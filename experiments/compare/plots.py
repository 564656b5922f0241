"""The plots of a comparison: accuracy against what a sweep varies, by round, and bytes to reach an accuracy."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.compare.groups import EITHER, KEEP, Group, bytes_to_reach, label
from experiments.pages.estimate import Estimate, estimate
from experiments.pages.figures import COLOURS, BarPlot, LinePlot, Scale, Series
from experiments.pages.page import Plot, Section
from experiments.pages.wording import byte_unit, percent
from experiments.run_files.directory import CONFIG, METRICS, SUMMARY
from experiments.run_files.reader import Run, part_words

MOST_LINES = len(COLOURS)
SAME = (
    0.01  # values that differ by less than this share are one: calibrations end close to a target, not on it
)
EPOCHS = ("population.epochs",)
NAMED = 8  # lines that are not drawn and are named
ACCURACY = "test accuracy (%)"


@dataclass(frozen=True)
class Measure:
    """What accuracy is drawn against: `value` is a group's; groups that differ in what it does not follow from are other lines.

    It follows from the first of `causes` in which the groups differ: where compression is varied, runs of other epochs
    are another line; where it is not, epochs are what varies the bytes.
    """

    name: str
    words: str
    causes: tuple[tuple[str, ...], ...]
    value: Callable[[Group], Estimate | None]
    source: str


def sent_by_client(run: Run) -> float | None:
    """Return the bytes that a client sends which takes part in every epoch, envelopes included."""
    names = ("epochs", "uplink_bytes_per_client", "envelope_bytes_per_client")
    known = [float(value) for name in names if (value := run.summary.get(name)) is not None]
    if len(known) < len(names):
        return None
    epochs, values, envelope = known
    return epochs * (values + envelope)


def keep_probability(group: Group) -> Estimate | None:
    """Return a group's keep probability, None where it is the same in all groups."""
    value = group.settings.get(KEEP)
    return None if value is None else Estimate(float(value), None)


MEASURES = (
    Measure("epsilon", "epsilon spent", (EITHER, EPOCHS), lambda group: group.estimate("epsilon"), f"{SUMMARY}: epsilon"),
    Measure(
        "sent",
        "bytes sent by a client",
        ((KEEP, "compression.value_type", "compression.rotation"), EPOCHS),
        lambda group: estimate([sent_by_client(run) for run in group.runs]),
        f"{SUMMARY}: epochs, uplink_bytes_per_client, envelope_bytes_per_client",
    ),
    Measure("keep", "keep probability", ((KEEP,),), keep_probability, f"{CONFIG}: {KEEP}"),
)  # fmt: skip


def measured_sections(groups: Sequence[Group]) -> Iterator[Section]:
    """Yield accuracy against epsilon, bytes and keep probability, each where the groups differ in it."""
    for measure in MEASURES:
        points = [
            (group, x, y)
            for group in groups
            if (x := measure.value(group)) is not None and (y := group.estimate("accuracy")) is not None
        ]
        values = [x.mean for _, x, _ in points if x.mean > 0]
        if values and max(values) > (1 + SAME) * min(values):
            yield _measured(measure, points, len(groups) - len(points), values)


def _measured(
    measure: Measure, points: Sequence[tuple[Group, Estimate, Estimate]], missing: int, values: Sequence[float]
) -> Section:  # fmt: skip
    """Return accuracy against one measure, one line for each setting of the others."""
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    unit, length = byte_unit(max(values)) if measure.name == "sent" else ("", 1.0)
    causes = next((keys for keys in measure.causes if any(key in points[0][0].settings for key in keys)), ())
    for group, x, y in points:
        others = {key: value for key, value in group.settings.items() if key not in causes}
        lines.setdefault(_line_name(others), []).append((x.mean / length, y))
    best = sorted(lines, key=lambda name: -max(accuracy.mean for _, accuracy in lines[name]))
    drawn = [name for name in lines if name in best[:MOST_LINES]]
    series = [_accuracies(name, lines[name]) for name in drawn]
    scale = Scale.log if max(values) >= 3 * min(values) else Scale.linear
    x_label = f"sent by a client that takes part in every epoch ({unit})" if unit else measure.words
    left_out = f" {missing} of the groups have none and are not drawn." if missing else ""
    means = (
        " Bytes are those of a client that takes part in every epoch, envelopes included; one that is asked less often "
        "sends less."
        if unit
        else ""
    )
    caption = (
        f"Accuracy at the end against {measure.words}, mean over seeds, bands one standard error; "
        f"{shown(best)}.{means}{left_out} From {SUMMARY}: accuracy; {measure.source}."
    )
    drawing = LinePlot(series, x_label, ACCURACY, markers=True, x_scale=scale)
    plot = Plot(measure.name, drawing, caption, f"accuracy_against_{measure.words.replace(' ', '_')}")
    return Section(f"Accuracy against {measure.words}", figure=plot)


def accuracy_section(groups: Sequence[Group]) -> Section:
    """Return accuracy by round, one line for each group, the best ones where there are many."""
    scored = [group for group in groups if group.estimate("accuracy") is not None]
    best = sorted(scored, key=lambda group: -(group.estimate("accuracy") or Estimate(0, None)).mean)
    series = [line for group in best[:MOST_LINES] if (line := accuracy_by_round(group)).x]
    if not series:
        return Section("Accuracy by round", [f"No {METRICS} holds a round at which the model was scored."])
    caption = (
        f"Accuracy by round, mean over seeds, bands one standard error; {shown([group.label for group in best])}. The "
        f"legend has the best first. {_of_part(groups)}From {METRICS}: accuracy."
    )
    drawing = LinePlot(series, "round", ACCURACY)
    return Section("Accuracy by round", figure=Plot("rounds", drawing, caption, "accuracy_by_round"))


def accuracy_by_round(group: Group) -> Series:
    """Return the mean accuracy over the runs of a group, with its error, in the rounds at which all were scored."""
    columns = [dict(zip(*run.column("accuracy"), strict=True)) for run in group.runs]
    rounds = sorted(set.intersection(*(set(column) for column in columns)))
    found = [
        (number, mean) for number in rounds if (mean := estimate([column[number] for column in columns]))
    ]
    return _accuracies(group.label, found)


def bytes_section(groups: Sequence[Group], target: float | None) -> Iterator[Section]:
    """Yield the bytes that all clients send until the accuracy is reached."""
    if target is None:
        return
    reached = [(group, estimate([bytes_to_reach(run, target) for run in group.runs])) for group in groups]
    found = [(group.label, value) for group, value in reached if value]
    missing = [f"{group.label}: not reached by every seed" for group, value in reached if not value]
    title = f"Bytes to reach {percent(target)}"
    if not found:
        yield Section(title, ["No group reaches it with every seed."])
        return
    caption = (
        f"Sent by all clients, envelopes included, until a scored round first reached {percent(target)}; "
        f"mean over seeds, bars one standard error. {_of_part(groups)}From {METRICS}: uplink_bytes, accuracy."
    )
    unit, length = byte_unit(max(value.mean for _, value in found))
    bars = [(name, value.mean / length, value.error and value.error / length) for name, value in found]
    drawing = BarPlot(bars, f"sent by clients ({unit})")
    yield Section(title, points=missing, figure=Plot("target", drawing, caption, "bytes_to_reach_accuracy"))


def _of_part(groups: Sequence[Group]) -> str:
    """Return what must be said where rounds are scored on a part of the test examples."""
    return part_words([run for group in groups for run in group.runs])


def shown(names: Sequence[str]) -> str:
    """Return how many lines a plot shows of `names`, best first, and which it does not."""
    count, others = len(names), names[MOST_LINES:]
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        said = "; ".join(others[:NAMED])
        return f"{MOST_LINES} of {count} lines, those that get highest; not drawn: {said}{more}"
    return f"{count} lines" if count > 1 else "one line"


def _line_name(settings: dict[str, Any]) -> str:
    """Return the settings of a line; a mechanism alone needs no words.

    >>> _line_name({"mechanism.name": "blt"}), _line_name({"mechanism.name": "blt", "model.name": "cnn"})
    ('blt', 'mechanism = blt, model = cnn')
    """
    return str(settings["mechanism.name"]) if list(settings) == ["mechanism.name"] else label(settings)


def _accuracies(name: str, points: Sequence[tuple[float, Estimate]]) -> Series:
    """Return accuracies in percent with their errors, in order of what they are drawn against."""
    ordered = sorted(points, key=lambda point: point[0])
    return Series(
        name,
        [x for x, _ in ordered],
        [100 * accuracy.mean for _, accuracy in ordered],
        [100 * (accuracy.error or 0.0) for _, accuracy in ordered],
    )
