"""Whole runs with each server optimizer: cut short anywhere they go on bit for bit, replay included."""

import sys

import pytest

from crashes import behind_round, cut
from experiments.cli.command import guard
from runs import SMALL, assert_equal, metrics, refused, run, summary
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (*SMALL, "run.checkpoint_every=2")
RESUME = "run.resume=true"
MINE = """
import numpy as np
from server import Optimizer

def mine(rate) -> Optimizer:
    def init(parameters):
        return {"velocity": np.zeros_like(parameters), "rounds": np.array(0)}

    def update(release, state, parameters, progress):
        velocity = np.float32(0.5) * state["velocity"] + release
        moved = parameters + FACTOR * np.float32(rate) * velocity
        return moved, {"velocity": velocity, "rounds": state["rounds"] + 1}

    return Optimizer(init, update, momentum=0.5)
"""


def write(folder, name, factor="1", more=""):
    (folder / f"{name}.py").write_text(MINE.replace("FACTOR", factor) + more)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own: its name, and where it lies."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_the_run_tests", raising=False)
    write(tmp_path, "mine_of_the_run_tests")
    return "mine_of_the_run_tests"


CHOICES = {
    "nesterov": ("optimizer.nesterov=true", "optimizer.weight_decay=0.01"),
    "adam": ("optimizer=adam", "optimizer.weight_decay=0.01"),
    "preconditioned adam": ("optimizer=adam", "optimizer.precondition=true"),
    "custom": ("optimizer=custom", "optimizer.name=mine_of_the_run_tests:mine", "optimizer.settings={rate: 0.1}"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_a_run_killed_again_and_again_goes_on_bit_for_bit_with_every_optimizer(tmp_path, own, name):
    straight = run(tmp_path / "straight", *SMALL, *CHOICES[name])
    scales = 3 if name == "preconditioned adam" else 0  # rounds in which a scale goes down too
    down = [row["downlink_bytes"] for row in metrics(straight)]
    assert [more - down[0] for more in down] == [0] * (6 - scales) + [6 * 4 * 650] * scales
    for last in (1, 5):  # on the first state, and after a base in the second epoch
        with behind_round(Checkpoint, "commit", last):  # only a replay tells what the optimizer made of it
            run(tmp_path / "r", *SMALL, *CHOICES[name], RESUME)
    assert_equal(run(tmp_path / "r", *SMALL, *CHOICES[name], RESUME), straight)
    assert summary(straight)["rounds"] == 6


def test_a_resume_under_other_code_of_the_same_name_is_refused(tmp_path, monkeypatch, own, capsys):
    directory = cut(tmp_path / "r", *SMALL, *CHOICES["custom"])
    write(tmp_path, own, "1.5")
    monkeypatch.delitem(sys.modules, own)
    said = refused(capsys, directory, *SMALL, *CHOICES["custom"], RESUME)
    assert "what optimizer.name does is" in said
    write(tmp_path, own, more="        # as it was\n\nOTHER = 3\n")  # nothing but its text is another
    monkeypatch.delitem(sys.modules, own)
    run(directory, *SMALL, *CHOICES["custom"], RESUME)


def test_a_state_that_overflows_ends_the_run_though_the_model_is_finite(tmp_path, capsys):
    """v = infinity would stop every later step without a word."""
    diverging = ("privacy.epsilon=null", "privacy.noise_multiplier=1e30", "optimizer=adagrad")
    for resume in ((), (RESUME,)):
        assert guard(lambda more=resume: run(tmp_path / "r", *SMALL, *diverging, *more)) == 2
        assert "the state of the optimizer is no longer finite after round 1" in capsys.readouterr().err
        assert not list((tmp_path / "r").rglob("secrets*"))
