"""What a finished run did, printed on stdout: a table, three lines on its privacy, and where its page lies."""

from collections.abc import Iterator
from typing import Any

from experiments.cli import output
from experiments.pages.wording import bound, holds_for, text_of, times_less
from experiments.run_files.directory import PRIVACY, REPORT
from experiments.run_files.reader import Run
from experiments.settings.values import Output
from fedmf.accounting.caveats import LARGEST
from fedmf.checks import counted
from fedmf.statement import SECRETS_FROM_SYSTEM


def show(form: Output, run: Run) -> None:
    """Print what a finished run did: a table and the statement in short for people, or summary.json for programs."""
    if form == "json":
        output.print_json(run.summary)
        return
    output.print_table("Result", {}, rows(run), title_justify="left")
    for line in statement_lines(run):
        output.console().print(line, markup=False, soft_wrap=True)  # lines are searched for


def statement_lines(run: Run) -> tuple[str, ...]:
    """Return a run's privacy statement in short: what holds for whom, what is not covered, the warnings, where all of it is."""
    privacy = run.privacy
    return (
        _claim(privacy),
        f"It does NOT cover {len(privacy['not_covered'])} things, among them test examples, hyper-parameter search and any "
        "further run on the same clients.",
        *(f"Warning: {warning}" for warning in privacy["warnings"]),
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


def rows(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what a run came to, as names and values."""
    figures = run.summary
    yield (
        "accuracy",
        f"{text_of('accuracy', figures.get('accuracy'))} on {figures['test_examples']:,} test examples",
    )
    for name in ("loss", *run.further_metrics):
        yield name, text_of(name, figures.get(name))
    yield "rounds", f"{figures['rounds']:,} in {counted(figures['epochs'])}"
    yield "clients", f"{figures['clients']:,}, of which {figures['cohort_size']:,} a round"
    yield "parameters", f"{figures['parameters']:,}"
    sent = f"{figures['uplink_bytes_per_client']:,.0f} bytes of values a round"
    envelope = f"in an envelope of {figures['envelope_bytes_per_client']:,}"
    yield "a client sends", f"{sent}, {times_less(figures['compression_ratio'])} than the model, {envelope}"
    sessions = len(run.provenance.get("sessions") or [0])
    yield "wall seconds", f"{figures['wall_seconds']:.1f}{f' in {sessions} sessions' if sessions > 1 else ''}"
