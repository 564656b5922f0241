"""What speaks against a run is said before its first round, once, and stands in its report."""

import html
import json

import pytest

from experiments import run
from experiments.settings.experiment import build
from experiments.settings.recorded import from_yaml, restored
from runs import composed, simulate
from server.strategy import FedMF

pytestmark = pytest.mark.long

WASTEFUL = (
    "dataset=synthetic", "dataset.clients=40", "dataset.features=6", "dataset.classes=3", "population.cohort_size=2",
    "population.rounds_per_epoch=3", "population.epochs=2", "privacy.epsilon=null", "privacy.noise_multiplier=0.01",
)  # fmt: skip
UNASKED = "warning: an epoch leaves 34 of 40 clients unasked"
COHORT = "warning: population.cohort_size is 2"


def test_it_is_said_again_while_nothing_was_released_and_not_afterwards(tmp_path, capsys, monkeypatch):
    given = composed(f"run.directory={tmp_path / 'r'}", "run.resume=true", *WASTEFUL)
    real = FedMF.configure_train

    def configure_train(strategy, server_round, *arguments):
        if server_round in stops:
            raise KeyboardInterrupt
        return real(strategy, server_round, *arguments)

    monkeypatch.setattr(FedMF, "configure_train", configure_train)
    counts = []
    for stops in ({1}, {2}, set()):  # before the first round, after one released round, to the end
        try:
            simulate(given)
        except KeyboardInterrupt:
            assert stops
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


def test_a_usual_run_is_told_nothing(tmp_path, capsys):
    cohort = ("population.cohort_size=80", "population.rounds_per_epoch=null", "dataset.clients=400")
    run(*WASTEFUL, *cohort, "privacy.noise_multiplier=1", run={"directory": str(tmp_path / "r")})
    assert "warning" not in capsys.readouterr().err
    assert "Before the first round" not in (tmp_path / "r/report.html").read_text()
