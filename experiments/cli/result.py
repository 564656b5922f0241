"""What a finished run did, printed on stdout: a table, the privacy statement in short with its warnings, and where its page is."""

from typing import Any

from experiments.cli import output
from experiments.pages.wording import bound, holds_for, text_of, words_of
from experiments.run_files.directory import PRIVACY, REPORT
from experiments.run_files.reader import Run
from experiments.settings.values import Output
from fedmf.accounting.caveats import LARGEST
from fedmf.statement import SECRETS_FROM_SYSTEM

# Keys of summary.json in the table, after the metrics.
SHOWN = (
    "test_examples", "rounds", "epochs", "clients", "cohort_size", "parameters", "uplink_bytes_per_client",
    "compression_ratio", "envelope_bytes_per_client", "wall_seconds",
)  # fmt: skip


def show(form: Output, run: Run) -> None:
    """Print what a finished run did: a table and the statement in short for people, or summary.json for programs."""

    def print_text() -> None:
        output.print_table("Result", {}, rows(run), title_justify="left")
        for line in (*filter(None, [run.summary.get("learning")]), *statement_lines(run)):
            output.console().print(line, markup=False, soft_wrap=True)  # lines are searched for

    output.show(form, run.summary, print_text)


def statement_lines(run: Run) -> tuple[str, ...]:
    """Return a run's privacy statement in short: what holds for whom, what is not covered, all warnings, where all of it is."""
    privacy = run.privacy
    return (
        _claim(privacy),
        f"It does NOT cover {len(privacy['not_covered'])} things, among them test examples, hyper-parameter search and any "
        "further run on the same clients.",
        *(f"Warning: {warning}" for warning in run.warnings),
        f"All of it, in words and figures: {run.directory / REPORT} and {PRIVACY}",
    )


def _claim(privacy: dict[str, Any]) -> str:
    """Return epsilon, delta, unit and adjacency in one sentence, no better than the statement has them."""
    whose = holds_for(privacy["delta"], privacy["unit_of_privacy"], privacy["adjacency"])
    if privacy["epsilon"] is None:
        return f"This run is NOT private: it adds no noise, so that epsilon is infinite {whose}."
    claim = f"epsilon = {bound(privacy['epsilon'])} {whose}"
    if privacy["accountant"] == "tight" and privacy["epsilon_exact"] is None:
        claim += "; by this project's own bound, which is not refereed"
    if privacy["secrets"] == SECRETS_FROM_SYSTEM and not privacy["private"]:
        return f"No privacy is claimed above epsilon = {LARGEST:g}: {claim}."
    if not privacy["private"]:
        return f"NOT private as run (secrets: {privacy['secrets']}). With secret keys: {claim}."
    return f"Privacy: {claim}."


def rows(run: Run) -> list[tuple[str, str]]:
    """Return what a run came to, as names and values."""
    metrics = run.further_metrics
    keys = (run.headline, "loss", *metrics, *SHOWN)
    return [(words_of(key, metrics.get(key, "")), text_of(key, run.summary.get(key))) for key in keys]
