"""What a run was made with: its sessions, their software, their code, and the noise with which its epochs began."""

import getpass
import json
import platform
import shutil
import socket
import tomllib
from dataclasses import replace
from datetime import datetime
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.run_files import provenance
from experiments.run_files.directory import PROVENANCE
from experiments.run_files.provenance import code_digest, own_code
from fedmf import plan as plans
from fedmf.accounting import Ledger
from fedmf.plan import Plan
from oracles import needs_numba, without_numba
from runs import (
    ROOT,
    SMALL,
    assert_equal,
    behind_round,
    cut,
    metrics,
    model,
    refused,
    run,
    statement,
    summary,
)
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

RESUME, ALLOW = "run.resume=true", "run.allow_version_change=true"
OTHER = "0123456789abcdef"


def sessions(directory):
    return json.loads((directory / PROVENANCE).read_text())["sessions"]


def told(directory):
    """What privacy.json says of each session: its first round and its code."""
    return [(session["first_round"], session["code"]) for session in statement(directory)["provenance"]]


def test_versions_machine_and_times_are_those_of_this_process_and_no_name_or_path_is_recorded(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(provenance.IMAGE, "sha256:abc")
    clock = count(1000)
    monkeypatch.setattr(provenance, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    directory = run(tmp_path / "r", *SMALL)
    (session,) = sessions(directory)
    known = {"python": platform.python_version(), "torch": version("torch"), "flwr": version("flwr")}
    assert session["software"].items() >= known.items()
    assert all(datetime.strptime(session[key], "%Y-%m-%dT%H:%M:%S%z") for key in ("started", "until"))
    assert summary(directory)["wall_seconds"] == session["wall_seconds"] == next(clock) - 1001
    (stated,) = statement(directory)["provenance"]
    assert (stated["image"], stated["bundle"]) == ("sha256:abc", None)
    text = (directory / PROVENANCE).read_text()
    for name in (socket.gethostname(), platform.node(), getpass.getuser(), str(Path.home()), "/"):
        assert name not in text


@needs_numba
def test_a_resume_without_numba_continues_a_run_with_it_and_names_both(tmp_path):
    whole = run(tmp_path / "whole", *SMALL)
    directory = cut(tmp_path / "r", *SMALL)
    with without_numba():
        run(directory, *SMALL, RESUME)
    np.testing.assert_allclose(model(directory), model(whole), rtol=1e-4, atol=1e-5)
    assert not np.array_equal(model(directory), model(whole))  # another kind indeed
    assert [session["software"]["numba"] for session in sessions(directory)] == [version("numba"), None]


def test_a_permission_to_continue_a_copy_is_in_the_statement_from_the_first_round_on(tmp_path):
    begun = statement(cut(tmp_path / "r", *SMALL, RESUME, "run.accept_copy=true", after=4))
    assert begun["epochs"] == 2  # the second has begun
    for said in (begun, statement(run(tmp_path / "r", *SMALL, RESUME))):
        assert any("had accept_copy=true" in warning for warning in said["warnings"])
    assert [session["allows"] for session in sessions(tmp_path / "r")] == [["accept_copy"], []]


def test_other_code_is_refused_unless_allowed_and_the_statement_names_that_of_every_session(
    tmp_path, monkeypatch, capsys
):
    directory = cut(tmp_path / "r", *SMALL, after=1)
    own = own_code()["code"]
    monkeypatch.setattr(provenance, "code_digest", lambda checkout: OTHER)
    assert told(directory) == [(1, own)]
    said = refused(capsys, directory, *SMALL, RESUME)
    assert f"was run so far with code {own}, and this is code {OTHER}" in said
    assert ALLOW in said
    cut(directory, *SMALL, RESUME, ALLOW, after=2)
    assert told(directory) == [(1, own), (2, OTHER)]
    (directory / PROVENANCE).unlink()
    run(directory, *SMALL, RESUME, ALLOW)
    assert told(directory) == [(1, None), (4, OTHER)]


def bundled(folder):
    """Copy what Flower bundles of this checkout into `folder`, and return it."""
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    included, left_out = (
        {file for pattern in app[name] for file in ROOT.glob(pattern)}
        for name in ("fab-include", "fab-exclude")
    )
    for file in included - left_out:
        (folder / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / file.relative_to(ROOT))
    return folder


def test_the_digest_of_the_code_is_that_of_flowers_bundle_and_every_change_is_seen(tmp_path):
    folder, digest = bundled(tmp_path), code_digest.__wrapped__  # without its cache
    digests = [digest(ROOT), digest(folder)]
    for name in ("fedmf/checks.py", "client/app.py", "conf/config.yaml"):
        (folder / name).write_bytes((folder / name).read_bytes() + b" ")
        digests.append(digest(folder))
    (folder / "fedmf/checks.py").rename(folder / "fedmf/checked.py")
    digests.append(digest(folder))
    assert digests[0] == digests[1]
    assert len({*digests}) == 5


def calibrating(monkeypatch, factor):
    """Be a version whose calibration gives `factor` times the noise multiplier."""
    real = plans.calibrate_noise_multiplier
    monkeypatch.setattr(plans, "calibrate_noise_multiplier", lambda **asked: factor * real(**asked))


@pytest.mark.parametrize("after", [2, 3], ids=["in mid-epoch", "at an epoch's end"])
def test_a_resume_under_another_calibration_is_refused_and_changes_nothing(
    tmp_path, monkeypatch, capsys, after
):
    with behind_round(Checkpoint, "settle", after):
        run(tmp_path / "r", *SMALL)
    with monkeypatch.context() as patched:
        calibrating(patched, 1 + 1e-6)
        said = refused(capsys, tmp_path / "r", *SMALL, RESUME)
    assert "the noise multiplier is " in said
    assert "began with " in said
    run(tmp_path / "r", *SMALL, RESUME)
    assert summary(tmp_path / "r")["rounds"] == 6


@pytest.mark.parametrize(("factor", "after"), [
    (1 - 1e-7, 2),  # less noise, in mid-epoch
    (1 + 1e-7, 3),  # more noise, at an epoch's end
    pytest.param(1 - 1e-7, 3, marks=pytest.mark.slow),
    pytest.param(1 + 1e-7, 2, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_resume_and_an_extension_add_the_noise_that_their_epsilon_is_computed_from(
    tmp_path, monkeypatch, factor, after
):
    """A calibration one step away in its last digit changes no bit: less noise would cost more than what is stated."""
    longer = ("run.extend=1", "privacy.max_epsilon=20")
    straight = run(run(tmp_path / "s", *SMALL), *SMALL, *longer)
    with behind_round(Checkpoint, "settle", after):
        run(tmp_path / "r", *SMALL)
    calibrating(monkeypatch, factor)
    resumed = run(tmp_path / "r", *SMALL, RESUME)
    assert summary(resumed)["noise_multiplier"] == summary(straight)["noise_multiplier"]
    assert_equal(run(resumed, *SMALL, *longer), straight)
    assert summary(resumed)["epsilon"] == statement(straight)["epsilon"]


def test_the_epsilon_that_is_shown_and_stated_is_that_of_the_ledger(tmp_path, monkeypatch):
    """Half the noise was recorded: what the plan would have recorded is stated nowhere."""
    seen = []

    def start(self, ledger):
        after = ledger.record(replace(self.epoch_event, noise_multiplier=self.noise_multiplier / 2))
        seen.append((self, after))
        return after

    monkeypatch.setattr(Plan, "start_epoch", start)
    run(tmp_path / "r", *SMALL)
    plan, ledger = seen[-1]
    assert len(ledger.entries) == 2
    first, both = (plan.spent_on(Ledger(ledger.entries[:count])).epsilon for count in (1, 2))
    assert both > 1.5 * plan.spent().epsilon
    assert [row["epsilon"] for row in metrics(tmp_path / "r")] == [first] * 3 + [both] * 3
    assert summary(tmp_path / "r")["epsilon"] == both == statement(tmp_path / "r")["epsilon"]
    assert "2 of 2 started epochs began otherwise than stated" in statement(tmp_path / "r")["paragraph"]
