"""Runs of the baselines: L_inf-CSGM, L2-CSGM as an event a round."""

import json

import pytest

from crashes import cut
from experiments.settings.experiment import build
from fedmf.accounting import privacy_spent
from plans import linf_event
from runs import assert_equal, composed, metrics, run

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=6", "population.epochs=2", "run.reproducible=true", "privacy.epsilon=3")
LINF = ("+experiment=linf_csgm", "population.rounds_per_epoch=3", *SMALL)
L2 = ("+experiment=l2_csgm", *SMALL, "population.epochs=5")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory):
    """A run of the baseline that nothing interrupts."""
    return run(tmp_path_factory.mktemp("linf") / "r", *LINF)


def test_the_baseline_states_the_epsilon_of_all_its_coordinates_at_the_bound(straight) -> None:
    """650 parameters are rotated in 1024 coordinates; noise is independent, so that sigma / bound says it all."""
    said = json.loads((straight / "privacy.json").read_text())
    event = linf_event(
        noise_over_linf=said["sigma"] / said["linf_norm"], keep_probability=0.1, coordinates=1024
    )
    assert (said["geometry"], said["mechanism"], said["coordinates"]) == ("linf", "independent", 1024)
    assert said["epsilon"] == pytest.approx(privacy_spent(event, 2, delta=said["delta"]).epsilon, rel=1e-7)
    assert said["epsilon"] == pytest.approx(3, rel=1e-6)
    assert "L-infinity bound alone: all 1024 coordinates" in said["paragraph"]
    assert "L-infinity bound alone" in (straight / "report.html").read_text()


@pytest.mark.parametrize("after", [1, 4])
def test_the_baseline_goes_on_bit_for_bit(tmp_path, straight, after: int) -> None:
    cut(tmp_path / "r", *LINF, after=after)
    run(tmp_path / "r", *LINF, "run.resume=true")
    assert_equal(tmp_path / "r", straight)


def test_a_run_without_epochs_draws_each_cohort_from_all_clients_and_pays_for_each_round(tmp_path) -> None:
    whole = run(tmp_path / "whole", *L2)
    said = json.loads((whole / "privacy.json").read_text())
    plan = build(composed(f"run.directory={tmp_path / 'x'}", *L2)).plan
    assert (said["rounds_per_epoch"], said["epochs"], said["geometry"]) == (1, 5, "l2")
    assert said["epsilon"] == plan.spent(5).epsilon
    assert "5 of 5 planned epochs started, each of 1 round with" in said["paragraph"]
    epsilons = [row["epsilon"] for row in metrics(whole)]
    assert epsilons == [plan.spent(rounds).epsilon for rounds in range(1, 6)]
    cut(tmp_path / "r", *L2, after=3)
    assert_equal(run(tmp_path / "r", *L2, "run.resume=true"), whole)
