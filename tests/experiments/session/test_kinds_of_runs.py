"""Whole runs of the baselines, with each server optimizer and of a billion clients: cut short they continue bit for bit."""

import resource
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from experiments.cli.command import guard
from experiments.settings.experiment import build
from fedmf.accounting import privacy_spent
from plans import linf_event
from runs import SMALL, assert_equal, behind_round, composed, cut, metrics, refused, run, statement, summary
from server import record
from server.checkpoint import Checkpoint
from server.cohort import cohort_indices

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
        moved = parameters + np.float32(rate) * velocity
        return moved, {"velocity": velocity, "rounds": state["rounds"] + 1}

    return Optimizer(init, update, momentum=0.5)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of one's own: its name, and where it lies."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine_of_the_run_tests", raising=False)
    (tmp_path / "mine_of_the_run_tests.py").write_text(MINE)
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
    (tmp_path / f"{own}.py").write_text(MINE.replace("parameters + ", "parameters + 1.5 * "))
    monkeypatch.delitem(sys.modules, own)
    said = refused(capsys, directory, *SMALL, *CHOICES["custom"], RESUME)
    assert "what optimizer.name does is" in said


def test_a_state_that_overflows_ends_the_run_though_the_model_is_finite(tmp_path, capsys):
    """v = infinity would stop every later step without a word."""
    diverging = ("privacy.epsilon=null", "privacy.noise_multiplier=1e30", "optimizer=adagrad")
    for resume in ((), (RESUME,)):
        assert guard(lambda more=resume: run(tmp_path / "r", *SMALL, *diverging, *more)) == 2
        assert "the state of the optimizer is no longer finite after round 1" in capsys.readouterr().err
        assert not list((tmp_path / "r").rglob("secrets*"))


SMALL_BASELINE = (
    "population.cohort_size=6",
    "population.epochs=2",
    "run.reproducible=true",
    "privacy.epsilon=3",
)
LINF = ("+experiment=linf_csgm", "population.rounds_per_epoch=3", *SMALL_BASELINE)
L2 = ("+experiment=l2_csgm", *SMALL_BASELINE, "population.epochs=5")


def test_the_baseline_states_the_epsilon_of_all_its_coordinates_at_the_bound_and_continues(tmp_path) -> None:
    """650 parameters are rotated in 1024 coordinates; noise is independent, so that sigma / bound says it all."""
    straight = run(tmp_path / "straight", *LINF)
    said = statement(straight)
    event = linf_event(
        noise_over_linf=said["sigma"] / said["linf_norm"], keep_probability=0.1, coordinates=1024
    )
    assert (said["geometry"], said["mechanism"], said["coordinates"]) == ("linf", "independent", 1024)
    assert said["epsilon"] == pytest.approx(privacy_spent(event, 2, delta=said["delta"]).epsilon, rel=1e-7)
    assert said["epsilon"] == pytest.approx(3, rel=1e-6)
    assert "L-infinity bound alone: all 1024 coordinates" in said["paragraph"]
    assert "L-infinity bound alone" in (straight / "report.html").read_text()
    cut(tmp_path / "r", *LINF)
    assert_equal(run(tmp_path / "r", *LINF, RESUME), straight)


def test_a_run_without_epochs_draws_each_cohort_from_all_clients_and_pays_for_each_round(tmp_path) -> None:
    whole = run(tmp_path / "whole", *L2)
    said = statement(whole)
    plan = build(composed(f"run.directory={tmp_path / 'x'}", *L2)).plan
    assert (said["rounds_per_epoch"], said["epochs"], said["geometry"]) == (1, 5, "l2")
    assert said["epsilon"] == plan.spent(5).epsilon
    assert "5 of 5 planned epochs started, each of 1 round with" in said["paragraph"]
    epsilons = [row["epsilon"] for row in metrics(whole)]
    assert epsilons == [plan.spent(rounds).epsilon for rounds in range(1, 6)]
    cut(tmp_path / "r", *L2, after=3)
    assert_equal(run(tmp_path / "r", *L2, "run.resume=true"), whole)


MANY = (
    *("dataset=synthetic", "dataset.clients=1000000000", "population.cohort_size=20", "population.epochs=2"),
    *("population.rounds_per_epoch=4", "run.reproducible=true", "run.checkpoint_every=1"),
)


def test_a_run_of_a_billion_clients_lists_them_nowhere(tmp_path):
    """A list of them would need 8 GB; the run gets 1 GiB beyond what the process has mapped after a small one."""
    run(tmp_path / "small", *MANY, "dataset.clients=1000", "population.epochs=1")
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 2**30, limits[1]))
    try:
        run(tmp_path / "r", *MANY, "population.epochs=1")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert len(metrics(tmp_path / "r")) == 4


def test_the_record_holds_each_cohort_once_and_no_other_client(tmp_path):
    directory, plan = run(tmp_path / "r", *MANY), build(composed(*MANY)).plan
    with closing(sqlite3.connect(directory / "checkpoint" / record.FILE)) as connection:
        heard = connection.execute("SELECT client, epoch, round FROM heard").fetchall()
    asked = {number: cohort_indices(plan, number) for number in range(1, 9)}
    assert sorted(heard) == sorted(
        (str(client), (number - 1) // 4, number) for number, cohort in asked.items() for client in cohort
    )
    assert sum(path.stat().st_size for path in (directory / "checkpoint").iterdir()) < 200_000
