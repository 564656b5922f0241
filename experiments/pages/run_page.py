"""report.html of a run: one self-contained page on which every number names the file that it comes from."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from experiments.pages.compression_section import FLOAT_BYTES, compression_section, recorded_compression
from experiments.pages.figures import Series, line_plot
from experiments.pages.metrics_section import metrics_sections, value_text, words
from experiments.pages.page import SOURCE, Page, Plot, Section, Table, write_page
from experiments.pages.wording import number, percent, size, times_less
from experiments.run_files.directory import CONFIG, MECHANISM, METRICS, PRIVACY, REPORT, SUMMARY
from experiments.run_files.reader import Run, read_run
from experiments.settings.recorded import flattened, to_yaml
from fedmf.accounting.caveats import CHOOSING

# Key of summary.json -> (words, unit). Keys that are not here are printed under their own names.
WORDS: dict[str, tuple[str, str]] = {
    "accuracy": ("accuracy on the test set", ""),
    "loss": ("loss on the test set", "nats"),
    "epsilon": ("epsilon spent", ""),
    "delta": ("delta", ""),
    "unit_of_privacy": ("whom epsilon protects", ""),
    "statement": ("what epsilon covers and what not", ""),
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
    "wall_seconds": ("wall time", "s"),
}


def write_report(directory: Path) -> Path:
    """Write report.html from the other files of the run in `directory` and return its path.

    Reads config.yaml, metrics.jsonl, privacy.json, summary.json and, where there is one, mechanism.json;
    never a secret file. Raises `RunDirectoryError` for a directory without a finished run.
    """
    directory = Path(directory)
    return write_page(run_page(read_run(directory)), directory / REPORT)


def run_page(run: Run) -> Page:
    """Return the page of one run."""
    sections = [
        Section("Summary", table=summary_table(run)),
        privacy_section(run.privacy),
        *progress_sections(run),
        mechanism_section(run.mechanism, int(run.summary["rounds"])),
        bytes_section(run),
        compression_section(run.summary, recorded_compression(run.config)),
        statement_section(run.privacy),
        Section(f"Settings ({CONFIG})", verbatim=to_yaml(run.config)),
    ]
    return Page(f"fedmf run {run.directory.resolve().name}", lead(run), sections, tuple(warnings(run)))


def lead(run: Run) -> str:
    """Return the run in one sentence."""
    summary, model, data = run.summary, run.config["model"]["name"], run.config["dataset"]["name"]
    spent = summary.get("epsilon")
    private = (
        f"with epsilon = {number(spent)} at delta = {number(summary.get('delta'))} ({whose(run)})"
        if spent is not None
        else "without privacy"
    )
    return (
        f"The {model} model reaches {percent(summary.get('accuracy'))} accuracy on {data} after "
        f"{number(summary.get('rounds'))} rounds {private}; a client sends "
        f"{number(summary.get('uplink_bytes_per_client'))} bytes of values a round, "
        f"{times_less(summary['compression_ratio'])} than uncompressed."
    )


def whose(run: Run) -> str:
    """Return whom a run's epsilon protects, and where the rest stands."""
    unit, adjacency = (run.privacy.get(key) for key in ("unit_of_privacy", "adjacency"))
    return f'{unit}, {adjacency} adjacency; what it covers stands under "What is private"'


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
        text = value_text(key, value)
        rows.append((said, f"{text} {unit}".strip(), f"{SUMMARY}: {key}"))
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
        (key.replace("_", " "), _numbers(value), f"{PRIVACY}: {key}")
        for key, value in flattened(privacy)
        if key != "paragraph" and not _is_said(value)
    ]
    return Section("The privacy statement field by field", table=Table(("field", "value", SOURCE), rows))


def _is_said(value: object) -> bool:
    """Return whether a value is a list of sentences, which stand in the section before."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _numbers(value: object) -> str:
    """Return one number, or those of a list: once if all look the same."""
    if not isinstance(value, list):
        return number(value)
    return ", ".join(dict.fromkeys(number(item) for item in value))


def progress_sections(run: Run) -> Iterator[Section]:
    """Yield accuracy, further metrics and epsilon by round."""
    rounds, accuracy = run.column("accuracy")
    if rounds:
        best = max(accuracy)
        caption = (
            f"Accuracy on the test set after round {rounds[-1]}: {percent(accuracy[-1])}; the highest was "
            f"{percent(best)} in round {rounds[accuracy.index(best)]}. From {METRICS}: accuracy."
        )
        line = Series("accuracy", rounds, [100 * value for value in accuracy])
        svg = line_plot("accuracy", [line], x_label="round", y_label="test accuracy (%)")
        yield Section("Accuracy by round", figure=Plot("accuracy", svg, caption))
    else:
        yield Section("Accuracy by round", [f"{METRICS} holds no round at which the model was scored."])
    yield from metrics_sections(run)
    rounds, epsilon = run.column("epsilon")
    if rounds:
        caption = (
            f"Epsilon spent so far at delta = {number(run.summary.get('delta'))} ({whose(run)}): {number(epsilon[0])} once "
            f"the first epoch has begun, {number(epsilon[-1])} at the end. An epoch that has begun counts "
            f"whole. From {METRICS}: epsilon."
        )
        svg = line_plot(
            "epsilon",
            [Series("epsilon", rounds, epsilon)],
            x_label="round",
            y_label="epsilon spent",
            steps=True,
            y_from=0,
        )
        yield Section("Epsilon by round", figure=Plot("epsilon", svg, caption))
    else:
        yield Section("Epsilon by round", ["The run is not private, so there is no epsilon to draw."])


def mechanism_section(mechanism: dict[str, Any], released: int) -> Section:
    """Return the noise in the model against independent noise and the certificate, by round of the whole run.

    Of a run that ended after `released` rounds these are shown: its noise was designed for rounds that did not come.
    """
    title = "Noise of the mechanism against independent noise"
    if not mechanism:
        return Section(title, [f"The run directory holds no {MECHANISM}, so there is nothing to compare."])
    planned = len(mechanism["per_round_error"])
    own, independent = (
        mechanism[name][:released] for name in ("per_round_error", "independent_per_round_error")
    )
    rounds = range(1, len(own) + 1)
    series = [Series(str(mechanism["family"]), rounds, own), Series("independent", rounds, independent)]
    best = mechanism.get("lowest_rms_error") if released == planned else None
    if best is not None:
        series.append(Series("least possible, root mean square", rounds, [best] * len(own)))
    early = (
        ""
        if released == planned
        else f" The noise was designed for {planned} rounds: for the {released} that were released it is as private, but "
        "another design would have left less noise."
    )
    gain = root_mean_square(independent) / root_mean_square(own)
    caption = (
        "Standard deviation of the noise in the accumulated updates after each round, over noise multiplier times "
        "clip norm and the first learning rate: the server's momentum and schedule counted, and what earlier epochs "
        f"left. Root mean square over the run: {number(root_mean_square(own))} for {mechanism['family']}, "
        f"{number(root_mean_square(independent))} for independent noise at the same privacy, {number(gain)} times as "
        f"much{_above(root_mean_square(own), best)}.{early} From {MECHANISM}: per_round_error."
    )
    svg = line_plot("noise", series, x_label="round", y_label="noise std (relative)", y_from=0)
    return Section(title, figure=Plot("noise", svg, caption))


def _above(own: float, best: float | None) -> str:
    """Return how far the error is above the certified least of all mechanisms that restart every epoch."""
    if best is None:
        return ""
    return (
        f"; no mechanism that restarts every epoch has less than {number(best)}, and this one is "
        f"{100 * (own / best - 1):.2g} % above"
    )


def bytes_section(run: Run) -> Section:
    """Return the bytes sent to the server so far, against a run that sends every parameter as float32."""
    rounds, sent = run.column("uplink_bytes")
    envelope = run.summary.get("envelope_bytes_per_client") or 0
    dense = FLOAT_BYTES * run.summary["parameters"] + envelope
    replies = [line["replies"] for line in run.rounds if line.get("uplink_bytes") is not None]
    total, whole = list(accumulate(sent)), list(accumulate(dense * count for count in replies))
    if not rounds or not total[-1]:
        return Section("Bytes against an uncompressed run", [f"{METRICS} records no bytes."])
    series = [
        Series("this run", rounds, [value / 1e6 for value in total]),
        Series("uncompressed", rounds, [value / 1e6 for value in whole]),
    ]
    caption = (
        f"Sent by all clients so far, envelopes included: {size(total[-1])} against {size(whole[-1])} if "
        f"every reply held all {number(run.summary['parameters'])} parameters as float32, "
        f"{number(whole[-1] / total[-1])} times as much. Nominal figures (expected, not measured: sizes "
        f"would reveal mask counts). From {METRICS}: uplink_bytes, replies; {SUMMARY}: parameters."
    )
    svg = line_plot("bytes", series, x_label="round", y_label="sent by clients (MB)", y_from=0)
    return Section("Bytes against an uncompressed run", figure=Plot("bytes", svg, caption))


def root_mean_square(values: Sequence[float]) -> float:
    """Return the square root of the mean square."""
    return float((sum(value * value for value in values) / len(values)) ** 0.5)
