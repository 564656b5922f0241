"""report.html of a run: one self-contained page on which every number names the file that it comes from."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.pages.fields import table_of, text_of
from experiments.pages.page import SOURCE, Page, Section, Table, write_page
from experiments.pages.run_plots import bytes_section, epsilon_section, noise_section, scored_section
from experiments.pages.wording import bound, number, percent, size, times_less
from experiments.run_files.attendance import read_attendance
from experiments.run_files.directory import ATTENDANCE, CONFIG, PRIVACY, PROVENANCE, REPORT, SUMMARY
from experiments.run_files.reader import Run, read_run
from experiments.settings.recorded import to_yaml
from fedmf.accounting.caveats import CHOOSING


def write_report(directory: Path) -> Path:
    """Write report.html from the other files of the run in `directory` and return its path.

    Reads config.yaml, metrics.jsonl, privacy.json, summary.json and, where there are, mechanism.json,
    attendance.json and provenance.json; never a secret file. Raises `RunDirectoryError` for a directory without a finished run.
    """
    file = Path(directory) / REPORT
    write_page(run_page(read_run(file.parent)), file)
    return file


def run_page(run: Run) -> Page:
    """Return the page of one run: the result, accuracy and epsilon first."""
    sections = [
        scored_section(run, "accuracy"),
        epsilon_section(run, whose(run)),
        privacy_section(run.privacy),
        scored_section(run, "loss"),
        *(scored_section(run, name) for name in run.further_metrics),
        noise_section(run),
        bytes_section(run),
        Section("Summary", table=table_of([run.summary], SUMMARY, run.further_metrics)),
        Section("The privacy statement field by field", table=table_of([run.privacy], PRIVACY)),
        *attendance_sections(run),
        provenance_section(run),
        settings_section(run.config),
    ]
    title = f"fedmf run {run.directory.resolve().name}"
    rounds, cohort, clients = (number(run.summary.get(key)) for key in ("rounds", "cohort_size", "clients"))
    model, data = run.config["model"]["name"], run.config["dataset"]["name"]
    lead = f"The {model} model on {data}, {rounds} rounds with {cohort} of {clients} clients in each."
    return Page(title, lead, sections, tuple(warnings(run)), tuple(key_figures(run)))


def warnings(run: Run) -> Iterator[str]:
    """Yield what must be read before anything else."""
    settings = run.config.get("run") or {}
    if run.summary.get("epsilon") is None:
        yield "NOT private: this run has no finite epsilon."
    if settings.get("reproducible"):
        yield "reproducible, NOT private: the secrets of this run derive from its public seed."
    if settings.get("unprotected_metrics"):
        yield "Unprotected metrics were recorded: the privacy statement does not cover them."
    if metric := settings.get("optimized_metric"):
        yield CHOOSING.format(metric=metric)
    statement = str(run.privacy.get("paragraph"))
    for sentence in run.mechanism.get("misgivings") or ():
        if sentence not in statement:  # a large delta is part of it
            yield f"Before the first round: {sentence}"


def key_figures(run: Run) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield the result: accuracy, epsilon with all that it needs to mean something, and what a client sends."""
    summary = run.summary
    further = [
        f"{name}: {text_of(name, summary[name])}"
        for name in ("loss", *run.further_metrics)
        if name in summary
    ]
    yield "accuracy on the test set", percent(summary.get("accuracy")), further
    if summary.get("epsilon") is None:
        yield "epsilon", "not private", ["No noise was added: nobody is protected."]
    else:
        exposed = (run.config.get("run") or {}).get("reproducible")
        name = "epsilon, had its keys been secret" if exposed else "epsilon spent"
        note = f"at delta = {bound(summary.get('delta'))} ({whose(run)})"
        yield name, bound(summary["epsilon"]), [note]
    less = f"{times_less(summary['compression_ratio'])} than {number(summary['parameters'])} parameters of 32 bits"
    note = f"of values, {less}; the envelope adds {size(summary.get('envelope_bytes_per_client'))}"
    yield "a client sends in a round", size(summary.get("uplink_bytes_per_client")), [note]


def whose(run: Run) -> str:
    """Return whom a run's epsilon protects, and where the rest is."""
    unit, adjacency = (text_of(key, run.privacy.get(key)) for key in ("unit_of_privacy", "adjacency"))
    return f'{unit}, {adjacency} adjacency; what it covers is under "What is private"'


def privacy_section(privacy: dict[str, Any]) -> Section:
    """Return the privacy statement in words, and its lists as points, each sentence once."""
    text = str(privacy.get("paragraph", f"{PRIVACY} contains no paragraph."))
    said = text.partition(" Not covered: ")[0]
    points = [
        f"{key.replace('_', ' ')}: {item}"
        for key, items in privacy.items()
        if isinstance(items, list)
        for item in items
        if isinstance(item, str) and item not in said
    ]
    return Section("What is private", said.split("\n\n"), points)


def attendance_sections(run: Run) -> list[Section]:
    """Return the nodes of a deployment and their epochs in one section, none for other runs."""
    epochs: dict[str, dict[int, int]] = {}
    rows = read_attendance(run.directory)
    for row in rows:
        for name, clients in row["nodes"].items():
            epochs.setdefault(name, {})[row["epoch"]] = clients
    words = (
        "A node takes part in an epoch when it is there, and ready, as the epoch begins. Which of its clients were heard, "
        "or failed, is recorded nowhere."
    )
    table = Table(
        ("node", "epochs", "which", "clients in the last of them", SOURCE),
        [
            (name, f"{len(own)} of {len(rows)}", spans(list(own)), number(own[max(own)]), ATTENDANCE)
            for name, own in sorted(epochs.items())
        ],
        numbers=(1, 3),
    )
    return [Section("Which nodes took part", [words], table=table)] if rows else []


def spans(numbers: Sequence[int]) -> str:
    """Return increasing numbers as spans.

    >>> spans([1, 2, 3, 5, 7, 8]), spans([4])
    ('1-3, 5, 7-8', '4')
    """
    firsts = [each for each in numbers if each - 1 not in numbers]
    lasts = [each for each in numbers if each + 1 not in numbers]
    pairs = zip(firsts, lasts, strict=True)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def provenance_section(run: Run) -> Section:
    """Return versions, machine and times of the sessions that carried a run to its end."""
    title = "With what, when and where it ran"
    sessions = run.provenance.get("sessions")
    if not sessions:
        return Section(title, [f"The run directory has no {PROVENANCE}: the run is older than that record."])
    words = [
        "Wall time runs from the first check of the settings to the last file, data loading and this page left out."
    ]
    parts = (run.config.get("population") or {}).get("parts")
    if isinstance(parts, list) and len(parts) == len(sessions) > 1:
        words.append(f"The run was extended: {len(sessions)} sessions.")
    elif len(sessions) > 1:
        words.append(
            f"The run was resumed: {len(sessions)} sessions. Of one that was killed, the time after its last record is missing."
        )
    if (sessions[0].get("first_round") or 1) > 1:
        words.append(f"What was done before round {sessions[0]['first_round']} is not recorded.")
    return Section(title, words, table=table_of(sessions, PROVENANCE))


def settings_section(config: Mapping[str, Any]) -> Section:
    """Return the settings, of absolute paths only the last part: a page is shown to others; the file stays as it is."""
    shown = without_folders(config)
    words = ["Of absolute paths the last part is shown."] if shown != config else []
    return Section(f"Settings ({CONFIG})", words, verbatim=to_yaml(shown))


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
