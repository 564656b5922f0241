"""What speaks against a run is said before its first round, once, and stands in its report."""

import html
import json
from functools import partial

import pytest

import runs
from crashes import cut
from experiments import run
from experiments.settings.experiment import build
from experiments.settings.recorded import from_yaml, restored

pytestmark = pytest.mark.long

WASTEFUL = (
    "dataset=synthetic", "dataset.clients=40", "dataset.features=6", "dataset.classes=3", "population.cohort_size=2",
    "population.rounds_per_epoch=3", "population.epochs=2", "privacy.epsilon=null", "privacy.noise_multiplier=0.01",
)  # fmt: skip
UNASKED = "warning: an epoch leaves 34 of 40 clients unasked"
COHORT = "warning: population.cohort_size is 2"


def test_it_is_said_again_while_nothing_was_released_and_not_afterwards(tmp_path, capsys):
    counts = []
    for session in (partial(cut, after=0), partial(cut, after=1), runs.run):
        session(tmp_path / "r", "run.resume=true", *WASTEFUL)
        counts.append(capsys.readouterr().err.count(COHORT))
    assert counts == [1, 1, 0]


def test_python_is_told_too_and_the_report_and_the_record_hold_it(tmp_path, capsys):
    result = run(*WASTEFUL, "privacy.delta=0.5", run={"directory": str(tmp_path / "r")})
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count(UNASKED) == printed.err.count(COHORT) == 1
    assert "population.rounds_per_epoch=20 would ask 40" in printed.err
    recorded = json.loads((tmp_path / "r/mechanism.json").read_text())["misgivings"]
    assert recorded == list(build(restored(from_yaml((tmp_path / "r/config.yaml").read_text()))).misgivings)
    page = html.unescape((tmp_path / "r/report.html").read_text())
    epsilon, delta, unasked, cohort = recorded
    assert page.index(unasked) < page.index(cohort) < page.index("Summary")
    assert [page.count(sentence) for sentence in recorded] == [1, 1, 1, 1]
    assert epsilon in result.statement  # where the page has them
    assert delta in result.statement
