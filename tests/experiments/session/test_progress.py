"""What a run says on stderr: its progress, its warnings beforehand, the clients that failed; and what no file says."""

import os
import re
import shutil
import sys
from types import SimpleNamespace

import pytest

import own_models
from experiments.engines.grid import Failure
from experiments.session.progress import FailureCount, View, standing
from plans import small_plan
from runs import contents, metrics, run

PLAN = small_plan(clients=12, cohort_size=3, rounds_per_epoch=4, epochs=5)


def said(spent=(5.4712, 7.9996), scored=8, values=None, *, reproducible=False, plan=PLAN):
    return standing(plan, 9, spent, scored, values or {"accuracy": 0.928}, reproducible=reproducible)


def test_a_line_names_the_last_score_its_round_further_metrics_and_what_is_not_private():
    assert said() == "round 9/20 | epoch 3/5 | epsilon 5.472 of 8 | accuracy 92.8 % (round 8)"
    assert "accuracy" not in said(scored=None, values={"f1": None})
    values = {"accuracy": 0.5, "f1": 0.25, "top5": None}
    assert said(values=values).endswith("(round 8) | f1 0.25 | top5 –")
    assert "NOT private" not in said(spent=(5.0, 19.99))
    for given in ({"spent": (5.0, 1e6)}, {"reproducible": True}, {"plan": small_plan(noise_multiplier=0)}):
        assert "NOT private" in said(**given)


@pytest.mark.parametrize(("job", "rounds"), [("", ["88", "96", "100"]), ("job 3/12", ["88", "96"])])
def test_without_a_terminal_lines_keep_a_distance_and_the_time_left_is_that_of_this_sessions_rounds(
    capsys, job, rounds
):
    """A job of a sweep names itself, and leaves its last line to the sweep."""
    now = 0.0
    view = View(100, job, clock=lambda: now)
    view.begin(80)
    for number in range(81, 101):
        now += 0.7
        view.show(number, f"round {number}/100")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("round ")[2].partition("/")[0] for line in lines] == rounds
    assert all(line.startswith(job) for line in lines)
    assert lines[0].endswith(
        ("0:00:08", "0:00:09")
    )  # 12 rounds; with all 88 as of this session, less than a second


OPTIONS = (
    *("dataset=custom", "dataset.name=own_models:people", "model=custom", "model.name=own_models:Switched"),
    *("population.cohort_size=3", "population.epochs=2", "run.reproducible=true", "output=json"),
)
WHY = "ValueError: the secret 42 ("
SENT = "clients failed and count as zeros"


@pytest.fixture
def turning(monkeypatch):
    """Give clients another turn of `own_models`; those with a value from `least` on."""

    def give(name, least=0.0):
        monkeypatch.setattr(own_models, "turn", getattr(own_models, name))
        monkeypatch.setattr(own_models, "LEAST", least)

    return give


def said_failures(capsys):
    """What stderr holds besides the progress and what is said before the run, by line."""
    lines = capsys.readouterr().err.splitlines()
    return [
        line
        for line in lines
        if not re.match(r"round \d+/", line)
        and not line.startswith(("warning: the noise", "warning: the model"))
    ]


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2])
def test_failures_are_counted_in_the_round_and_at_the_end_and_workers_do_not_rehearse(
    tmp_path, capfd, monkeypatch, turning, workers
):
    turning("raising")
    monkeypatch.setenv("OWN_TURN", "raising")  # in workers
    monkeypatch.setenv("OWN_REHEARSALS", str(tmp_path / "rehearsed"))
    run(tmp_path / "r", *OPTIONS, f"engine.workers={workers}")
    first, last = said_failures(capfd)
    assert len(metrics(tmp_path / "r")) == 4
    assert first.startswith(f"round 1: 3 of 3 {SENT}; the first in round 1: {WHY}")
    assert last.startswith(f"12 of 12 {SENT}; the first in round 1: {WHY}")
    assert first.rstrip(")").endswith(f"own_models.py:{own_models.raising.__code__.co_firstlineno + 1}")
    assert set((tmp_path / "rehearsed").read_text().split()) == {str(os.getpid())}


@pytest.mark.long
@pytest.mark.parametrize("fails", ["raising", "not_finite"])
def test_no_file_of_a_run_tells_a_client_that_failed_from_one_that_sent_zeros(
    tmp_path, monkeypatch, capsys, turning, fails
):
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    monkeypatch.setattr("experiments.run_files.provenance._now", lambda: "2026-01-01T00:00:00Z")
    monkeypatch.setattr("secrets.token_hex", lambda count=32: "0" * 2 * count)
    found, errors = {}, {}
    for name in (fails, "zero", "honest"):
        turning(name, least=77)
        run(tmp_path / "r", *OPTIONS)
        errors[name] = capsys.readouterr().err
        found[name] = contents(tmp_path / "r")
        shutil.rmtree(tmp_path / "r")
    assert found[fails] == found["zero"]
    model = tmp_path / "r/model.npz"
    assert found["honest"][model] != found["zero"][model]
    assert (SENT in errors[fails], SENT in errors["zero"]) == (True, False)


@pytest.mark.long
def test_whether_a_line_can_be_written_decides_nothing(monkeypatch):
    def write(text):
        raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    count = FailureCount()
    count.add(Failure("a", "reason"))
    count.on_heard(1, ["a", "b"])
