"""What is printed of a finished run, and epsilon wherever a person reads it: one figure, never less than what was spent."""

import re
from dataclasses import replace

import pytest
from rich.console import Console

import runs
from experiments.cli.result import show, statement_lines
from experiments.pages.run_page import run_page
from experiments.run_files.reader import read_run

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip


def finished(directory, *overrides):
    return read_run(runs.run(directory, *SMALL, *overrides))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("private") / "r", "privacy.delta=0.001", "metrics=[f1]")


@pytest.mark.long
def test_the_end_of_a_run_is_a_table_for_people_and_the_statement_in_three_lines_whatever_the_width(
    private, capsys, monkeypatch
):
    monkeypatch.setattr("experiments.cli.output.console", lambda: Console(width=80))  # a terminal's width
    show("text", private)
    said, figures = capsys.readouterr().out, private.summary
    assert f"{100 * figures['accuracy']:.1f} % on {figures['test_examples']:,} test examples" in said
    assert f"{figures['f1']:.4g}" in said
    assert "40, of which 10 a round" in said
    assert "Renyi" not in said  # the long paragraph is in its file and on the page
    assert tuple(said.rstrip().splitlines()[-3:]) == statement_lines(private)


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "claimed", "warned"),
    [
        (["run.reproducible=true", "privacy.delta=0.001"],
         "NOT private as run (secrets: reproducible, NOT private). With secret keys: epsilon", "1 warning of this run"),
        (["privacy.epsilon=null", "privacy.noise_multiplier=0"],
         "This run is NOT private: it adds no noise, so that epsilon is infinite", ""),
        (["run.unprotected_metrics=true", "privacy.delta=0.1", "privacy.adjacency=replace"],  # of delta, and of the metrics
         "under replacement adjacency", "2 warnings of this run"),
        (["privacy.accountant=tight", "compression.keep_probability=0.5", "clipping.linf_norm=0.05"],
         "by this project's own bound, which is not refereed", ""),
    ],
)  # fmt: skip
def test_what_limits_the_claim_is_said_in_its_line_and_warnings_are_counted(
    tmp_path, overrides, claimed, warned
):
    claim, besides, _ = statement_lines(finished(tmp_path / "r", *overrides))
    assert claimed in claim
    assert claim.startswith("Privacy" if claimed[0] in "ub" else claimed)
    assert warned in besides


SPENT, SAID = 5.7164028, "5.717"
DELTA, SAID_DELTA = 0.00015634, "0.0001564"
BOTH = {SAID, SAID_DELTA}

# The target of a calibration that this accountant meets from below: the run spends no less than 5.7164.
TARGET = "privacy.epsilon=5.71640279"


def said_in(text):
    """Return what a text says that begins as the epsilon and delta of the run do."""
    return set(re.findall(r"5\.71\d*|0\.000156\d*", text))


@pytest.fixture(scope="module")
def spent(tmp_path_factory):
    """A run that cost SPENT, with a real statement."""
    directory = tmp_path_factory.mktemp("epsilon") / "r"
    return runs.run(directory, *SMALL, TARGET, f"privacy.delta={DELTA}")


def test_statement_page_and_terminal_say_the_same_rounded_up(spent, capsys):
    run = read_run(spent)
    assert 5.7164 < run.privacy["epsilon"] <= SPENT
    assert said_in(run.privacy["paragraph"]) == BOTH
    page = run_page(run)
    for section in page.sections[:-1]:  # the last is config.yaml as it is
        caption = section.plot.caption if section.plot else ""
        assert said_in(str(replace(section, plot=None)) + caption) <= BOTH
    assert said_in(str(page.key_figures)) == BOTH
    assert said_in(" ".join(statement_lines(run))) == BOTH
    capsys.readouterr()
    show("text", run)
    assert said_in(capsys.readouterr().out) == BOTH
