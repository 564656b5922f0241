"""report.html of a run: one self-contained page on which every number names the file that it comes from."""

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiments.pages.by_round import (
    FLOAT_BYTES,
    accuracy_section,
    attendance_sections,
    compression_section,
    epsilon_section,
    loss_section,
    metrics_sections,
    recorded_compression,
    value_text,
    words,
)
from experiments.pages.figures import LinePlot, Series
from experiments.pages.mechanism_section import mechanism_sections
from experiments.pages.page import SOURCE, KeyFigure, Page, Plot, Section, Table, write_page
from experiments.pages.provenance_section import provenance_section
from experiments.pages.wording import (
    bound,
    byte_unit,
    duration,
    figure,
    number,
    percent,
    size,
    times,
    times_less,
)
from experiments.run_files.directory import CONFIG, METRICS, PRIVACY, REPORT, SUMMARY
from experiments.run_files.reader import Run, read_run
from experiments.settings.recorded import flattened, to_yaml
from fedmf.accounting.caveats import CHOOSING

# Key of summary.json -> (words, unit). Keys that are not here are printed under their own names.
WORDS: dict[str, tuple[str, str]] = {
    "accuracy": ("accuracy on the test set", ""),
    "loss": ("loss on the test set", "nats"),
    "epsilon": ("epsilon spent", ""),
    "delta": ("delta", ""),
    "adjacency": ("adjacency", ""),
    "unit_of_privacy": ("whom epsilon protects", ""),
    "statement": ("what epsilon covers and what not", ""),
    "test_examples": ("test examples that the last model was scored on", ""),
    "evaluation_examples": ("test examples scored in every round before", ""),
    "shape": ("the data", ""),
    "rounds": ("rounds", ""),
    "parameters": ("model parameters d", ""),
    "clients": ("clients N with training examples", ""),
    "cohort_size": ("clients in a cohort n", ""),
    "rounds_per_epoch": ("rounds in an epoch T", ""),
    "epochs": ("epochs E", ""),
    "keep_probability": ("keep probability gamma", ""),
    "linf_over_l2": ("bound on one coordinate over the L2 bound", ""),
    "noise_multiplier": ("noise multiplier z", ""),
    "sigma": ("standard deviation of the fresh noise sigma", "units of the update"),
    "compression_ratio": ("compression of the values sent", "times"),
    "uplink_bytes_per_client": ("values that a client sends in a round", "bytes"),
    "envelope_bytes_per_client": ("envelope of its message", "bytes"),
    "wall_seconds": ("wall time of all sessions", "s"),
}
# Units that a number is scaled to.
MEASURED: dict[str, Callable[[Any], str]] = {
    "bytes": size,
    "s": duration,
    "times": lambda value: f"{times(value)} times",
}


def shape_text(shape: dict[str, Any]) -> str:
    """Return the shape of a data set in words.

    >>> shape_text({"input_shape": [1, 28, 28], "classes": 10, "task": "image"})
    'image, input 1 x 28 x 28, 10 classes'
    """
    size_of_one = " x ".join(map(str, shape.get("input_shape") or ())) or "of any length"
    return f"{shape.get('task')}, input {size_of_one}, {number(shape.get('classes'))} classes"


def adjacency_text(adjacency: object) -> str:
    """Return an adjacency as it is written in sentences."""
    return str(adjacency).replace("_", "-")


# Keys whose values are no numbers, and how they are said.
SAID: dict[str, Callable[[Any], str]] = {"shape": shape_text, "adjacency": adjacency_text}


def write_report(directory: Path) -> Path:
    """Write report.html from the other files of the run in `directory` and return its path.

    Reads config.yaml, metrics.jsonl, privacy.json, summary.json and, where there are, mechanism.json,
    attendance.json and provenance.json; never a secret file. Raises `RunDirectoryError` for a directory without a finished run.
    """
    directory = Path(directory)
    return write_page(run_page(read_run(directory)), directory / REPORT)


def run_page(run: Run) -> Page:
    """Return the page of one run: the result, accuracy and epsilon first."""
    sections = [
        accuracy_section(run),
        epsilon_section(run, whose(run)),
        privacy_section(run.privacy),
        loss_section(run),
        *metrics_sections(run),
        *mechanism_sections(run),
        bytes_section(run),
        Section("Summary", table=summary_table(run)),
        compression_section(run.summary, recorded_compression(run.config)),
        statement_section(run.privacy),
        *attendance_sections(run),
        provenance_section(run),
        settings_section(run.config),
    ]
    return Page(
        f"fedmf run {run.directory.resolve().name}",
        lead(run),
        sections,
        tuple(warnings(run)),
        tuple(key_figures(run)),
    )


def settings_section(config: Mapping[str, Any]) -> Section:
    """Return the settings; of absolute paths only the last part: a page is shown to others, and the file stays as it is."""
    shown = without_folders(config)
    said = ["Of absolute paths the last part is shown."] if shown != config else []
    return Section(f"Settings ({CONFIG})", said, verbatim=to_yaml(shown))


def without_folders(value: Any) -> Any:
    """Return settings in which every absolute path is its last part.

    >>> without_folders({"run": {"directory": "/home/ann/runs/a"}, "dataset": {"path": "data/x"}})
    {'run': {'directory': '…/a'}, 'dataset': {'path': 'data/x'}}
    """
    if isinstance(value, Mapping):
        return {key: without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(item) for item in value]
    return f"…/{Path(value).name}" if isinstance(value, str) and value.startswith("/") else value


def lead(run: Run) -> str:
    """Return in one sentence what was trained on what."""
    summary, model, data = run.summary, run.config["model"]["name"], run.config["dataset"]["name"]
    cohort = f"{number(summary.get('cohort_size'))} of {number(summary.get('clients'))} clients in each"
    return f"The {model} model on {data}, {number(summary.get('rounds'))} rounds with {cohort}."


def key_figures(run: Run) -> Iterator[KeyFigure]:
    """Yield the result: accuracy, epsilon with all that it needs to mean something, and what a client sends."""
    summary = run.summary
    further = [
        f"{name}: {value_text(name, summary[name])}{' nats' if name == 'loss' else ''}"
        for name in ("loss", *run.further_metrics)
        if name in summary
    ]
    yield KeyFigure("accuracy on the test set", percent(summary.get("accuracy")), further)
    if summary.get("epsilon") is None:
        yield KeyFigure("epsilon", "not private", ["No noise was added: nobody is protected."])
    else:
        exposed = bool((run.config.get("run") or {}).get("reproducible"))
        yield KeyFigure(
            "epsilon spent" if not exposed else "epsilon, had its keys been secret",
            bound(summary["epsilon"]),
            [f"at delta = {bound(summary.get('delta'))} ({whose(run)})"],
        )
    yield KeyFigure(
        "a client sends in a round",
        size(summary.get("uplink_bytes_per_client")),
        [
            f"of values, {times_less(summary['compression_ratio'])} than {number(summary.get('parameters'))} parameters "
            f"of 32 bits; the envelope adds {size(summary.get('envelope_bytes_per_client'))}"
        ],
    )


def whose(run: Run) -> str:
    """Return whom a run's epsilon protects, and where the rest stands."""
    unit, adjacency = (run.privacy.get(key) for key in ("unit_of_privacy", "adjacency"))
    return f'{unit}, {adjacency_text(adjacency)} adjacency; what it covers stands under "What is private"'


def warnings(run: Run) -> Iterator[str]:
    """Yield what must be read before anything else."""
    if run.summary.get("epsilon") is None:
        yield "NOT private: this run has no finite epsilon."
    if (run.config.get("run") or {}).get("reproducible"):
        yield "reproducible, NOT private: the secrets of this run derive from its public seed."
    if (run.config.get("run") or {}).get("unprotected_metrics"):
        yield "Unprotected metrics were recorded: the privacy statement does not cover them."
    if metric := (run.config.get("run") or {}).get("optimized_metric"):
        yield CHOOSING.format(metric=metric)
    statement = str(run.privacy.get("paragraph"))
    for sentence in run.mechanism.get("misgivings", []):
        if sentence not in statement:  # a large delta is part of it
            yield f"Said before the first round: {sentence}"


def summary_table(run: Run) -> Table:
    """Return summary.json as a table: words, value with unit, key."""
    metrics = {name: (words(name, entry), "") for name, entry in run.further_metrics.items()}
    rows = []
    for key, value in run.summary.items():
        said, unit = {**metrics, **WORDS}.get(key, (key.replace("_", " "), ""))
        if key in SAID:
            text = SAID[key](value)
        else:
            text = MEASURED[unit](value) if unit in MEASURED else f"{value_text(key, value)} {unit}".strip()
        rows.append((said, text, f"{SUMMARY}: {key}"))
    return Table(("figure", "value", SOURCE), rows, numbers=(1,))


def privacy_section(privacy: dict[str, Any]) -> Section:
    """Return the privacy statement in words, and what it says in lists as points, each thing once."""
    text = str(privacy.get("paragraph", f"{PRIVACY} holds no paragraph."))
    said = text.partition(" Not covered: ")[0]
    points = [
        f"{key.replace('_', ' ')}: {number(item)}"
        for key, items in privacy.items()
        if isinstance(items, list)
        for item in items
        if isinstance(item, str) and item not in said
    ]
    return Section("What is private", said.split("\n\n"), points)


def statement_section(privacy: dict[str, Any]) -> Section:
    """Return the privacy statement field by field."""
    rows = [
        (
            key.replace("_", " "),
            adjacency_text(value) if key == "adjacency" else _numbers(key, value),
            f"{PRIVACY}: {key}",
        )
        for key, value in flattened(privacy)
        if key != "paragraph" and not _is_said(value)
    ]
    return Section("The privacy statement field by field", table=Table(("field", "value", SOURCE), rows))


def _is_said(value: object) -> bool:
    """Return whether a value is a list of sentences, which stand in the section before."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _numbers(key: str, value: object) -> str:
    """Return one number, or those of a list: once if all look the same."""
    if not isinstance(value, list):
        return figure(key, value)
    return ", ".join(dict.fromkeys(number(item) for item in value))


def bytes_section(run: Run) -> Section:
    """Return the bytes sent to the server so far, against a run that sends every parameter as float32."""
    rounds, sent = run.column("uplink_bytes")
    envelope = run.summary.get("envelope_bytes_per_client") or 0
    dense = FLOAT_BYTES * run.summary["parameters"] + envelope
    replies = [line["replies"] for line in run.rounds if line.get("uplink_bytes") is not None]
    total, whole = list(accumulate(sent)), list(accumulate(dense * count for count in replies))
    if not rounds or not total[-1]:
        return Section("Bytes against an uncompressed run", [f"{METRICS} records no bytes."])
    unit, length = byte_unit(max(total[-1], whole[-1]))
    series = [
        Series("this run", rounds, [value / length for value in total]),
        Series("uncompressed", rounds, [value / length for value in whole]),
    ]
    caption = (
        f"Sent by all clients so far, envelopes included: {size(total[-1])} against {size(whole[-1])} if "
        f"every reply held all {number(run.summary['parameters'])} parameters as float32, "
        f"{number(whole[-1] / total[-1])} times as much. Nominal figures (expected, not measured: sizes "
        f"would reveal mask counts). From {METRICS}: uplink_bytes, replies; {SUMMARY}: parameters."
    )
    drawing = LinePlot(series, "round", f"sent by clients ({unit})", y_from=0)
    return Section(
        "Bytes against an uncompressed run", figure=Plot("bytes", drawing, caption, "bytes_by_round")
    )
