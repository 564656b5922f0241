"""Clients that could not train are counted on stderr and nowhere else, and end no run."""

import os
import re
import shutil
import sys
from types import SimpleNamespace

import pytest

import own_models
from experiments.engines.grid import Failure
from experiments.session.progress import FailureCount
from runs import contents, metrics, run

pytestmark = pytest.mark.long

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


def said(capsys):
    """What stderr holds besides the progress and what is said before the run, by line."""
    lines = capsys.readouterr().err.splitlines()
    return [
        line
        for line in lines
        if not re.match(r"round \d+/", line)
        and not line.startswith(("warning: the noise", "warning: the model"))
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_are_counted_in_the_round_and_at_the_end_and_workers_do_not_rehearse(
    tmp_path, capfd, monkeypatch, turning, workers
):
    turning("raising")
    monkeypatch.setenv("OWN_TURN", "raising")  # in workers
    monkeypatch.setenv("OWN_REHEARSALS", str(tmp_path / "rehearsed"))
    run(tmp_path / "r", *OPTIONS, f"engine.workers={workers}")
    first, last = said(capfd)
    assert len(metrics(tmp_path / "r")) == 4
    assert first.startswith(f"round 1: 3 of 3 {SENT}; the first in round 1: {WHY}")
    assert last.startswith(f"12 of 12 {SENT}; the first in round 1: {WHY}")
    assert first.rstrip(")").endswith(f"own_models.py:{own_models.raising.__code__.co_firstlineno + 1}")
    assert set((tmp_path / "rehearsed").read_text().split()) == {str(os.getpid())}


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


@pytest.mark.parametrize("error", [BrokenPipeError(), UnicodeEncodeError("ascii", "x", 0, 1, "no")], ids=str)
def test_whether_a_line_can_be_written_decides_nothing_and_a_failure_counts_in_its_own_round(
    error, monkeypatch
):
    def write(text):
        raise error

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    count = FailureCount()
    for client in ("x", "a"):
        count.add(Failure(client, f"reason {client}"))
    count.on_heard(1, ["a", "b"])
    count.on_heard(2, ["x", "c"])
    monkeypatch.undo()
    assert (count._all, count._asked, count._first) == (1, 4, "the first in round 1: reason a")
