"""report.html of a run: one self-contained page on which every number names the file that it comes from."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from experiments.pages.figures import LinePlot, Series
from experiments.pages.page import Page, Section, table_of, write_page
from experiments.pages.wording import (
    SHORT,
    bound,
    holds_for,
    number,
    text_of,
    times,
    unit_of,
    words_of,
)
from experiments.run_files.directory import (
    ATTENDANCE,
    CONFIG,
    MECHANISM,
    METRICS,
    PRIVACY,
    PROVENANCE,
    REPORT,
    SUMMARY,
    read_attendance,
)
from experiments.run_files.reader import Run, read_run
from experiments.settings.recorded import to_yaml
from fedmf.accounting.caveats import CHOOSING
from fedmf.errors import RunDirectoryError

LARGEST = 1e100  # noise that can be drawn
THIS = "this run"


def write_report(directory: Path, plots: str | None = None) -> list[Path]:
    """Write report.html from the other files of the run in `directory`; with `plots` as `write_page` does.

    Reads config.yaml, metrics.jsonl, privacy.json, summary.json and, where they exist, mechanism.json,
    attendance.json and provenance.json; never a secret file. Raises `RunDirectoryError` for a directory without a finished run.
    """
    return write_page(run_page(read_run(directory)), directory / REPORT, plots)


def run_page(run: Run) -> Page:
    """Return the page of one run: the result, accuracy and epsilon first."""
    sections = [
        by_round_section(run, run.headline),
        by_round_section(run, "epsilon"),
        privacy_section(run.privacy),
        *(by_round_section(run, name) for name in ("loss", *run.further_metrics)),
        *([noise_section(run)] if run.mechanism else []),
        *([by_round_section(run, "next_clip_norm")] if run.privacy.get("clipping") else []),
        bytes_section(run),
        *diagnostic_sections(run),
        Section("Summary", table=table_of([run.summary], SUMMARY, run.further_metrics)),
        Section("The privacy statement field by field", table=table_of([run.privacy], PRIVACY)),
        *attendance_sections(run),
        *provenance_sections(run),
        Section(
            f"Settings ({CONFIG})",
            [
                "Of absolute paths the last part is shown."
            ],  # the page is shown to others; the file stays as it is
            verbatim=to_yaml(without_folders(run.config)),
        ),
    ]
    rounds, cohort, clients = (number(run.summary.get(key)) for key in ("rounds", "cohort_size", "clients"))
    model, data = run.config["model"]["name"], run.config["dataset"]["name"]
    lead = f"Model {text_of('model', model)}, data {text_of('data', data)}: {rounds} rounds with {cohort} of {clients} clients in each."
    name = run.directory.resolve().name
    return Page(f"fedmf run {name}", lead, sections, tuple(warnings(run)), tuple(key_figures(run)))


def warnings(run: Run) -> Iterator[str]:
    """Yield what must be read before anything else."""
    metric = (run.config.get("run") or {}).get("optimized_metric")
    yield from run.warnings
    if metric:
        yield CHOOSING.format(metric=metric)
    if run.summary.get("learnt") is False:
        yield str(run.summary.get("learning"))


def key_figures(run: Run) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield the result: accuracy or another score, epsilon with all that it needs to mean something, and what a client sends."""
    summary = run.summary
    scores = ["loss", *run.further_metrics]
    notes = [f"{SHORT.get(name, name)}: {text_of(name, summary[name])}" for name in scores if name in summary]
    if summary.get("learnt"):
        notes.append(summary["learning"])
    yield words_of(run.headline), text_of(run.headline, summary.get(run.headline)), notes
    if summary.get("epsilon") is None:
        yield "epsilon", "not private", ["No noise was added: no client is protected."]
    else:
        exposed = (run.config.get("run") or {}).get("reproducible")
        name = "epsilon, had its keys been secret" if exposed else "epsilon spent"
        yield name, bound(summary["epsilon"]), [claim(run)]
    values, envelope = (
        text_of(key, summary.get(key)) for key in ("uplink_bytes_per_client", "envelope_bytes_per_client")
    )
    ratio, whole = text_of("compression_ratio", summary["compression_ratio"]), number(summary["parameters"])
    note = f"of values, for {whole} parameters of 32 bits: compression {ratio}; the envelope adds {envelope}"
    yield "a client sends in a round", values, [note]


def claim(run: Run) -> str:
    """Return for whom a run's epsilon holds, and where the rest is."""
    known = (run.privacy.get(key) for key in ("unit_of_privacy", "adjacency"))
    return f'{holds_for(run.summary.get("delta"), *known)}; what it covers is under "What is private"'


def by_round_section(run: Run, name: str) -> Section:
    """Return the section of one field of metrics.jsonl, by round."""
    label = SHORT.get(name, name.replace("_", " "))
    title = f"{label[0].upper()}{label[1:]} by round"
    rounds, values = run.column(name)
    if not rounds:
        return Section(title, [f"{METRICS} contains no round with a value of {name}."])
    words, unit = words_of(name, run.further_metrics.get(name, "")), unit_of(name)
    caption = f"{words[0].upper()}{words[1:]} after round {rounds[-1]:,}: {text_of(name, values[-1])}. From {METRICS}: {name}."
    more = f" It holds {claim(run)}. An epoch that has begun counts whole." if name == "epsilon" else ""
    series = [Series(THIS, rounds, [100 * value for value in values] if unit == "%" else values)]
    chance = run.summary.get("chance")
    if name == run.headline and chance is not None:
        line = 100 * chance if unit == "%" else chance
        series.append(Series("best constant answer", [rounds[0], rounds[-1]], [line] * 2))
        more = f" Dashed: the best constant answer, {text_of(name, chance)}. From {SUMMARY}: chance."
    plot = LinePlot(
        f"{name}_by_round",
        caption + more,
        series,
        f"{label} ({unit})" if unit else label,
        steps=name == "epsilon",
    )
    return Section(title, plot=plot)


def privacy_section(privacy: dict[str, Any]) -> Section:
    """Return the privacy statement in words, and its lists as points, each sentence once."""
    words = privacy["paragraph"].partition(" Not covered: ")[0]
    points = [
        f"{key.replace('_', ' ')}: {item}"
        for key, items in privacy.items()
        if isinstance(items, list)
        for item in items
        if isinstance(item, str) and item not in words
    ]
    return Section("What is private", words.split("\n\n"), points)


def noise_section(run: Run) -> Section:
    """Return the standard deviation of the noise in the accumulated updates by round, against independent noise.

    Errors in mechanism.json are relative: over noise multiplier times clip norm and the first learning rate. Times
    `update_noise_std`, z Delta_2/(gamma n), they are those of the sum of all mean updates so far. A run that ended early
    shows the rounds that it released: its noise was designed for more.
    """
    mechanism, released = run.mechanism, run.summary["rounds"]
    scale = mechanism.get("update_noise_std") or 1.0
    own, independent = (
        [scale * error for error in mechanism[f"{name}per_round_error"][:released]]
        for name in ("", "independent_")
    )
    if not own or len(own) != len(independent) or max(*own, *independent) > LARGEST:
        raise RunDirectoryError(
            f"{MECHANISM} contains {len(own)} rounds of per_round_error and {len(independent)} of "
            f"independent_per_round_error; they must be as many, and their noise at most {LARGEST:g}."
        )
    family, rounds = str(mechanism.get("family")), range(1, len(own) + 1)
    series = [Series(THIS, rounds, own), Series("independent", rounds, independent)]
    least = mechanism.get("lowest_rms_error")
    if least is not None and released == len(mechanism["per_round_error"]):
        lowest = [scale * least] * len(own)
        series.append(Series("least root mean square with equal noise in every epoch", rounds, lowest))
    mean, other = (math.hypot(*errors) / len(errors) ** 0.5 for errors in (own, independent))
    caption = (
        f"Standard deviation of the noise on each coordinate of the accumulated updates. Root mean square over the run: "
        f"{number(mean)} for {family}, {number(other)} for independent noise at the same privacy. From {MECHANISM}: "
        "per_round_error, update_noise_std."
    )
    unit = "update units" if mechanism.get("update_noise_std") else "relative"
    plot = LinePlot("noise_by_round", caption, series, f"noise std ({unit})")
    return Section("Noise against independent noise", plot=plot)


def bytes_section(run: Run) -> Section:
    """Return the bytes sent to the server so far, against a run that sends every parameter as float32."""
    title, parameters = "Bytes against an uncompressed run", run.summary["parameters"]
    message = 4 * parameters + (run.summary.get("envelope_bytes_per_client") or 0)
    sent = list(accumulate(line["uplink_bytes"] for line in run.rounds))
    dense = list(accumulate(message * line["replies"] for line in run.rounds))
    if not any(sent):
        return Section(title, [f"{METRICS} records no bytes."])
    caption = (
        f"Sent by all clients so far, envelopes included: {decimal(round(sent[-1]))} against {decimal(round(dense[-1]))} if every reply "
        f"contained all {number(parameters)} parameters as float32, {times(dense[-1] / sent[-1])} times as much. "
        f"Expected, not measured: sizes would reveal mask counts. From {METRICS}: uplink_bytes, replies."
    )
    rounds = [line["round"] for line in run.rounds]
    series = [Series(THIS, rounds, sent), Series("uncompressed", rounds, dense)]
    return Section(title, plot=LinePlot("bytes_by_round", caption, series, "sent by clients", bytes_on="y"))


def diagnostic_sections(run: Run) -> Iterator[Section]:
    """Yield the figures of a run with unprotected metrics by round, none of other runs."""
    rounds, medians = run.column("norm_p50")
    if not rounds:
        return
    quantiles = {"90 %": "norm_p90", "median": "norm_p50", "10 %": "norm_p10"}
    series = [Series(label, *run.column(name)) for label, name in quantiles.items()]
    if isinstance(clip_norm := (run.config.get("clipping") or {}).get("l2_norm"), int | float):
        series.append(Series("clip norm", [rounds[0], rounds[-1]], [clip_norm] * 2))
    plot = LinePlot(
        "norms_by_round",
        "Euclidean norm of the clients' updates before clipping (unprotected), scaled where clipping.adapt or optimizer.precondition "
        f"scales them; median after round {rounds[-1]:,}: {number(medians[-1])}. From {METRICS}: norm_p10, norm_p50, norm_p90.",
        series,
        "norm of an update",
    )
    yield Section("Norms before clipping by round", plot=plot)
    yield from (by_round_section(run, name) for name in ("clipped_share", "client_loss", "noise_over_sum"))


def attendance_sections(run: Run) -> list[Section]:
    """Return the nodes of each epoch of a deployment in one section, none for other runs."""
    points = [
        f"epoch {row['epoch']}: {', '.join(f'{name} ({number(clients)} clients)' for name, clients in row['nodes'].items())}"
        for row in read_attendance(run.directory)
    ]
    words = f"Which of their clients answered, or failed, is recorded nowhere. From {ATTENDANCE}."
    return [Section("Which nodes took part", [words], points)] if points else []


def provenance_sections(run: Run) -> list[Section]:
    """Return versions, machine and times of a run's sessions in one section, none where they are not recorded."""
    sessions = run.provenance.get("sessions") or []
    words = (
        f"Sessions: {len(sessions)}. Wall time runs from the first check of the settings to the last score, without the loading of data "
        "and the files written after it; of a session that was killed, the time after its last record is missing."
    )
    return (
        [Section("With what, when and where it ran", [words], table=table_of(sessions, PROVENANCE))]
        if sessions
        else []
    )


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
