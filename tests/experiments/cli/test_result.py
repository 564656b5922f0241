"""What is printed of a finished run: a table, and the privacy statement in three lines that claim nothing more."""

import pytest
from rich.console import Console

import runs
from experiments.cli.result import show, statement_lines
from experiments.run_files.reader import read_run
from fedmf.accounting.caveats import NOT_COVERED

pytestmark = pytest.mark.long

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip


def finished(directory, *overrides):
    return read_run(runs.run(directory, *SMALL, *overrides))


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("private") / "r", "privacy.delta=0.001", "metrics=[f1]")


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


def test_three_lines_give_epsilon_delta_unit_and_adjacency_and_say_that_not_all_is_covered(private):
    claim, besides, where = statement_lines(private)
    statement = private.privacy
    assert f"at delta = 0.001, for {statement['unit_of_privacy']}, under zero-out adjacency" in claim
    assert f"does NOT cover {len(statement['not_covered'])} things" in besides
    for named in ("test examples", "hyper-parameter search", "any further run on the same clients"):
        assert named in besides
        assert any(item.startswith(named) for item in NOT_COVERED)
    assert "warning" not in besides
    assert str(private.directory / "report.html") in where


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
