"""provenance.json: what a run was made with and how long it took, resumes and workers included, and nobody's name."""

import getpass
import json
import platform
import re
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmf
from crashes import Crash, behind_round
from experiments.cli.result import rows as result_rows
from experiments.pages.wording import text_of
from experiments.run_files import provenance
from experiments.run_files.directory import PROVENANCE, RunDirectory
from experiments.run_files.provenance import Provenance, software
from experiments.run_files.reader import read_run
from fedmf import compiling
from runs import run, summary
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=6",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "run.reproducible=true",
)


def sessions(directory):
    """Return the recorded sessions."""
    return json.loads((directory / PROVENANCE).read_text())["sessions"]


def begun(directory, first_round=1):
    """Return the record of a session that begins."""
    record = Provenance(RunDirectory(directory))
    record.begin(first_round)
    return record


def test_versions_machine_and_times_are_those_of_this_process(tmp_path):
    before = time.time()
    (session,) = sessions(run(tmp_path / "r", *SMALL))
    said = session["software"]
    assert said["fedmf"] == fedmf.__version__
    assert said["python"] == platform.python_version()
    assert (said["torch"], said["flwr"]) == (torch.__version__, version("flwr"))
    assert session["machine"]["accelerator"] is None
    assert session["machine"]["memory_bytes"] > 10**8
    assert session["machine"]["cores"] >= 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", session["started"])
    assert time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(before)) <= session["started"] <= session["until"]
    wall = summary(tmp_path / "r")["wall_seconds"]
    assert wall == session["wall_seconds"] <= time.time() - before


def test_neither_a_name_of_machine_or_user_nor_a_path_is_recorded(tmp_path):
    text = (run(tmp_path / "r", *SMALL) / PROVENANCE).read_text()
    for name in (socket.gethostname(), platform.node(), getpass.getuser(), str(Path.home()), str(tmp_path)):
        assert name not in text
    assert "/" not in text


def test_a_resumed_run_adds_its_sessions_and_the_page_their_times(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "_EVERY", 0.0)
    with behind_round(Checkpoint, "settle", 4):
        run(tmp_path / "r", *SMALL)
    monkeypatch.undo()
    (killed,) = sessions(tmp_path / "r")
    assert killed["wall_seconds"] > 0
    run(tmp_path / "r", *SMALL, "run.resume=true")
    first, second = sessions(tmp_path / "r")
    assert first == killed
    assert (first["first_round"], second["first_round"]) == (1, 5)
    html = (tmp_path / "r" / "report.html").read_text()
    assert "Sessions: 2." in html
    assert "of a session that was killed, the time after its last record is missing" in html
    wall = summary(tmp_path / "r")["wall_seconds"]
    assert wall == first["wall_seconds"] + second["wall_seconds"]
    walls = (
        text_of("wall_seconds", wall),
        ", ".join(dict.fromkeys(text_of("wall_seconds", one["wall_seconds"]) for one in (first, second))),
    )
    assert tuple(re.findall(r">wall time</td>\s*<td[^>]*>([^<]*)</td>", html)) == walls
    assert ("wall seconds", f"{wall:.1f} in 2 sessions") in [*result_rows(read_run(tmp_path / "r"))]
    assert ", ".join(dict.fromkeys((first["started"], second["started"]))) in html
    run(tmp_path / "r", *SMALL, "run.resume=true")  # finished: nothing changes
    assert sessions(tmp_path / "r") == [first, second]


@pytest.mark.skipif(not compiling.available(), reason="numba, the extra fast, is not installed")
@pytest.mark.parametrize("first", ["without", "with"])
def test_a_resume_with_or_without_numba_goes_on_alike(first, tmp_path, monkeypatch):
    """Of the same run, cut after round 3: masks and noise of each round are those of a run of one kind, to rounding."""
    models = {}

    def settle(checkpoint, plan, state, real=Checkpoint.settle):
        real(checkpoint, plan, state)
        models[state.round] = state.model.copy()
        if state.round == 3 and crashes:
            raise Crash

    def play(kind, name, *overrides):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "settle", settle)
            if kind == "without":
                patch.setitem(sys.modules, "numba", None)  # installed, and cannot be imported
            compiling.loops.cache_clear()
            try:
                run(tmp_path / name, *SMALL, *overrides)
            finally:
                compiling.loops.cache_clear()
        session = sessions(tmp_path / name)[-1]
        assert session["software"]["numba"] == (None if kind == "without" else version("numba"))

    crashes = False
    play(first, "whole")
    whole = dict(models)
    crashes = True
    with pytest.raises(Crash):
        play(first, "cut")
    crashes = False
    second = {"with": "without", "without": "with"}[first]
    play(second, "cut", "run.resume=true")
    for number, model in whole.items():
        np.testing.assert_allclose(models[number], model, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(models[6], whole[6])  # another kind indeed
    assert [session["first_round"] for session in sessions(tmp_path / "cut")] == [1, 4]


def test_a_killed_session_leaves_what_it_had_recorded(tmp_path, monkeypatch):
    entry = begun(tmp_path)
    entry.write()
    first = sessions(tmp_path)[0]["wall_seconds"]
    entry.on_release()
    assert sessions(tmp_path)[0]["wall_seconds"] == first  # it was written a moment ago
    monkeypatch.setattr(provenance, "_EVERY", 0.0)
    entry.on_release()
    assert sessions(tmp_path)[0]["wall_seconds"] > first


DAMAGED = ["{", "[]", '{"sessions": [4]}', '{"sessions": [{"first_round": 1, "software": ["numba"]}]}']


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_record_keeps_nobody_from_resuming(tmp_path, capsys, text):
    (tmp_path / PROVENANCE).write_text(text)
    record = begun(tmp_path, 4)
    record.write()
    assert "cannot be read" in capsys.readouterr().err
    assert record.end() >= 0
    assert [entry["first_round"] for entry in record.code()] == [1, 4]
    assert [session["first_round"] for session in sessions(tmp_path)] == [4]
    assert (tmp_path / f"{PROVENANCE}.damaged").read_text() == text


def test_the_commit_is_that_of_the_checkout_and_nothing_where_there_is_none(tmp_path):
    def git(*arguments):
        name = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        done = subprocess.run(
            ["git", *name, "-C", tmp_path, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    installed = tmp_path / "lib"
    installed.mkdir()
    git("init", "-q")
    (tmp_path / "code").write_text("1")
    git("add", "code")
    git("commit", "-qm", "first")
    said = software(tmp_path)
    assert (said["git_commit"], said["git_modified"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "code").write_text("2")
    assert software(tmp_path)["git_modified"] is True
    said = software(installed)  # inside somebody else's checkout: its commit is not ours
    assert (said["git_commit"], said["git_modified"]) == (None, None)


def test_a_permission_to_continue_a_copy_is_in_the_statement_from_the_first_round_on(tmp_path):
    """A copy that was made before the first release starts at round 1 too."""
    run(tmp_path / "r", *SMALL, "run.resume=true", "run.accept_copy=true")
    said = json.loads((tmp_path / "r/privacy.json").read_text())
    assert any("had accept_copy=true" in warning for warning in said["warnings"])
    assert sessions(tmp_path / "r")[-1]["allows"] == ["accept_copy"]
