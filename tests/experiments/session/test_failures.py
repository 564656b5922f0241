"""Clients that could not train are counted on stderr and nowhere else; a run stops for them on request only."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import own_models
from experiments.cli.command import guard
from experiments.engines.grid import Failure
from experiments.session.progress import FailureCount
from fedmf.errors import RunStoppedError, SettingError
from runs import composed, metrics, model, run, simulate
from server import state as server_state

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
OPTIONS = (
    "dataset=custom",
    "dataset.name=own_models:people",
    "model=custom",
    "model.name=own_models:Switched",
    "population.cohort_size=3",
    "population.epochs=2",
    "run.reproducible=true",
    "output=json",
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


def test_failures_are_counted_in_the_round_and_at_the_end_with_the_first_reason_and_no_traceback(
    tmp_path, capsys, turning
):
    turning("raising")
    run(tmp_path / "r", *OPTIONS)
    first, last = said(capsys)
    assert first.startswith(f"round 1: 3 of 3 {SENT}; the first in round 1: {WHY}")
    assert last.startswith(f"12 of 12 {SENT}; the first in round 1: {WHY}")
    assert first.rstrip(")").endswith(f"own_models.py:{own_models.raising.__code__.co_firstlineno + 1}")


def test_data_that_cannot_be_read_count_as_a_failure(tmp_path, capsys):
    run(tmp_path / "r", *OPTIONS, "dataset.settings={unreadable: true}")
    lines = said(capsys)
    assert lines[-1].startswith(f"2 of 12 {SENT}")
    assert "OSError: the disk is gone (" in lines[-1]


def test_workers_hand_their_failures_over_and_do_not_rehearse(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("OWN_TURN", "raising")
    monkeypatch.setenv("OWN_REHEARSALS", str(tmp_path / "rehearsed"))
    run(tmp_path / "r", *OPTIONS, "engine.workers=2")
    first, last = said(capfd)
    assert first.startswith(f"round 1: 3 of 3 {SENT}; the first in round 1: {WHY}")
    assert last.startswith(f"12 of 12 {SENT}; the first in round 1: {WHY}")
    assert set((tmp_path / "rehearsed").read_text().split()) == {str(os.getpid())}


def contents(directory):
    """All files of a run directory by name; what a clock or a random name decides is left out."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


@pytest.mark.parametrize("fails", ["raising", "not_finite"])
def test_no_file_of_a_run_tells_a_client_that_failed_from_one_that_sent_zeros(
    tmp_path, monkeypatch, capsys, turning, fails
):
    """All bytes of the run directory; clocks stand still and random names repeat."""
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    monkeypatch.setattr("experiments.run_files.provenance._text", lambda moment: "2026-01-01T00:00:00Z")
    monkeypatch.setattr("secrets.token_hex", lambda count=32: "0" * 2 * count)
    found, errors = {}, {}
    for name in (fails, "zero", "honest"):
        turning(name, least=77)
        run(tmp_path / "r", *OPTIONS)
        errors[name] = capsys.readouterr().err
        found[name] = contents(tmp_path / "r")
        shutil.rmtree(tmp_path / "r")
    assert found[fails] == found["zero"]
    assert found["honest"]["model.npz"] != found["zero"]["model.npz"]
    assert (SENT in errors[fails], SENT in errors["zero"]) == (True, False)


STOPS = (*OPTIONS, "run.stop_if_all_fail=true")


def test_a_run_stops_only_on_request_and_only_if_all_fail(tmp_path, capsys, turning):
    turning("raising")
    run(tmp_path / "unasked", *OPTIONS)
    assert len(metrics(tmp_path / "unasked")) == 4
    turning("raising", least=77)
    run(tmp_path / "one", *STOPS)
    assert len(metrics(tmp_path / "one")) == 4
    capsys.readouterr()


def test_a_stop_comes_before_the_round_is_released_and_says_that_no_statement_covers_it(
    tmp_path, capsys, turning
):
    turning("raising")
    assert guard(lambda: simulate(composed(f"run.directory={tmp_path / 'r'}", *STOPS))) == 1
    last = said(capsys)[-1]
    assert last.startswith(f"error: round 1 is not released: 3 of 3 {SENT} (the first: {WHY}")
    assert "No privacy statement covers that it stopped" in last
    assert last.endswith("go on with run.resume=true.")
    assert not (tmp_path / "r/metrics.jsonl").exists() or metrics(tmp_path / "r") == []
    assert not (tmp_path / "r/privacy.json").exists()


@pytest.mark.parametrize("stopped", [1, 2, 4])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped_and_draws_no_noise_for_the_failed_round(
    tmp_path, capsys, turning, monkeypatch, stopped
):
    """The round asked twice has the same masks and the same noise row, of which the first attempt drew none."""
    run(tmp_path / "whole", *STOPS)
    real, drawn = server_state.next_noise, []

    def next_noise(mechanism, stream, key, **options):
        drawn.append(stream.step)
        return real(mechanism, stream, key, **options)

    turns, rehearsed = [], 1

    def breaking(outputs):
        turns.append("turn")
        return own_models.raising(outputs) if len(turns) > rehearsed + 3 * (stopped - 1) else outputs

    with monkeypatch.context() as patched:
        patched.setattr(server_state, "next_noise", next_noise)
        patched.setattr(own_models, "turn", breaking)
        assert guard(lambda: simulate(composed(f"run.directory={tmp_path / 'r'}", *STOPS))) == 1
    assert drawn == [step % 2 for step in range(stopped - 1)]
    rows = metrics(tmp_path / "r") if stopped > 1 else []
    assert [row["round"] for row in rows] == list(range(1, stopped))
    run(tmp_path / "r", *STOPS, "run.resume=true")
    np.testing.assert_array_equal(model(tmp_path / "r"), model(tmp_path / "whole"))
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")


def test_the_statement_of_a_run_that_stops_if_all_fail_lists_that_as_not_covered(tmp_path):
    for name, options in (("with", STOPS), ("without", OPTIONS)):
        run(tmp_path / name, *options)
        privacy = json.loads((tmp_path / name / "privacy.json").read_text())
        asked = name == "with"
        assert any("stops if all clients" in item for item in privacy["not_covered"]) is asked
        assert ("not bounded by epsilon" in privacy["paragraph"]) is asked
        assert ("stops if all clients" in (tmp_path / name / "report.html").read_text()) is asked


def test_a_deployment_cannot_know_who_failed_and_refuses_to_stop_for_it():
    with pytest.raises(SettingError, match=r"run.stop_if_all_fail is true, but the server of a deployment"):
        composed("engine=deployment", "run.stop_if_all_fail=true", "population.min_available=100")


def hear(count, number, failed, asked=("a", "b", "c"), answered=None):
    for client in failed:
        count.add(Failure(client, f"reason {client}"))
    count.on_heard(number, asked, asked if answered is None else answered)


def test_who_is_silent_keeps_no_run_going_and_a_failure_of_another_round_stops_none():
    count = FailureCount(stops=True)
    hear(count, 1, ["x", "a", "b"])
    hear(count, 2, ["c"])  # those of round 1 are forgotten
    with pytest.raises(RunStoppedError, match="round 3 is not released: 2 of 3"):
        hear(count, 3, ["a", "b"], answered=["a", "b"])
    hear(count, 4, [], answered=[])


@pytest.mark.parametrize("error", [BrokenPipeError(), UnicodeEncodeError("ascii", "x", 0, 1, "no")], ids=str)
def test_whether_a_line_can_be_written_decides_nothing(error, monkeypatch):
    def write(text):
        raise error

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=lambda: None))
    hear(FailureCount(), 1, ["a"])
