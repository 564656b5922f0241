"""A run is stated at the privacy with which its epochs began, whatever a later version would calculate."""

import json
from dataclasses import replace

import pytest

from crashes import behind_round
from experiments.cli.command import guard
from fedmf import plan as plans
from fedmf.accounting import Ledger
from fedmf.plan import Plan
from runs import metrics, run, summary
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=6",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "privacy.epsilon=8",
    "run.reproducible=true",
    "run.checkpoint_every=2",
)


def calibrating(monkeypatch, factor):
    """Be a version whose calibration gives `factor` times the noise multiplier."""
    real = plans.calibrate_noise_multiplier
    monkeypatch.setattr(plans, "calibrate_noise_multiplier", lambda **asked: factor * real(**asked))


def files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("factor", [0.02, 1 + 1e-7], ids=["far less noise", "a little more"])
@pytest.mark.parametrize("after", [2, 3], ids=["in mid-epoch", "at an epoch's end"])
def test_a_resume_under_another_calibration_is_refused_and_changes_nothing(
    tmp_path, monkeypatch, capsys, after, factor
):
    with behind_round(Checkpoint, "settle", after):
        run(tmp_path / "r", *SMALL)
    before = files(tmp_path / "r")
    capsys.readouterr()
    with monkeypatch.context() as patched:
        calibrating(patched, factor)
        assert guard(lambda: run(tmp_path / "r", *SMALL, "run.resume=true")) == 2
    said = capsys.readouterr().err
    assert "the noise multiplier is " in said
    assert "began with " in said
    assert files(tmp_path / "r") == before
    run(tmp_path / "r", *SMALL, "run.resume=true")
    assert summary(tmp_path / "r")["rounds"] == 6


def test_a_calibration_that_differs_by_rounding_goes_on(tmp_path, monkeypatch):
    """Also under the tight accountant, which knows equal epochs only."""
    tight = ("privacy.accountant=tight", "compression.keep_probability=0.1")
    with behind_round(Checkpoint, "settle", 3):
        run(tmp_path / "r", *SMALL, *tight)
    calibrating(monkeypatch, 1 + 1e-12)
    run(tmp_path / "r", *SMALL, *tight, "run.resume=true")
    assert len({row["epsilon"] for row in metrics(tmp_path / "r")}) == 2


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
    assert summary(tmp_path / "r")["epsilon"] == both
    stated = json.loads((tmp_path / "r/privacy.json").read_text())
    assert stated["epsilon"] == both
    assert "2 of 2 started epochs began otherwise than stated" in stated["paragraph"]
