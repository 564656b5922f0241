"""Epsilon wherever a person reads it: one figure in every place, never less than what the run spent."""

import re
from dataclasses import replace

import pytest

import runs
import written_run
from experiments.cli.result import show, statement_lines
from experiments.compare import CompareSettings, compare
from experiments.pages.run_page import run_page
from experiments.plan import PlanSettings, plan
from experiments.run_files.reader import read_run
from experiments.settings.compose import compose

SPENT, SAID = 5.7164028, "5.717"
DELTA, SAID_DELTA = 0.00015634, "0.0001564"
BOTH = {SAID, SAID_DELTA}
SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip
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


def test_a_comparison_and_a_plan_say_the_same(tmp_path, capsys):
    for epsilon in (SPENT, 8.0):
        written_run.write(
            tmp_path / f"run at {epsilon:.0f}",
            config={"privacy": {"epsilon": epsilon, "delta": DELTA}},
            summary={"epsilon": epsilon, "delta": DELTA},
            privacy={"delta": DELTA},
        )
    compare(compose("compare", [f"directory={tmp_path}"], CompareSettings))
    assert said_in(capsys.readouterr().out) == BOTH
    assert said_in(re.sub(r"data:image[^\"]*", "", (tmp_path / "compare.html").read_text())) == BOTH
    figures = ["epochs=2", TARGET.removeprefix("privacy."), f"delta={DELTA}"]
    plan(compose("plan", figures, PlanSettings))
    assert said_in(capsys.readouterr().out) == BOTH


def test_an_extension_says_what_it_costs_rounded_up(spent, capsys):
    runs.run(spent, *SMALL, TARGET, f"privacy.delta={DELTA}", "run.extend=1", "privacy.max_epsilon=100")
    (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("extended:"))
    assert said_in(line.partition("->")[0]) == {SAID}
    held = runs.summary(spent)["epsilon"]
    assert held <= float(re.search(r"-> ([\d.]+)", line)[1]) <= 1.001 * held
