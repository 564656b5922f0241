"""False alarms that are counted, and the power that is stated beforehand."""

from dataclasses import replace

import pytest

from experiments.audit import calibration, power, residual
from experiments.audit.calibration import Alarms, false_alarms
from experiments.audit.digits import Setup
from experiments.audit.further import f_dp_row
from experiments.audit.levels import Levels
from experiments.audit.matrix import SURE
from experiments.audit.one_run import OneRunSetup, play_one_run, stated_mu
from experiments.audit.power import many_run_powers, one_run_control_powers, one_run_powers, residual_powers
from experiments.audit.residual import play_noises, residual_rows
from experiments.audit.row import Verdict
from experiments.audit.sabotage import SABOTAGES
from experiments.audit.trials import one_run_trial
from fedmf.audit.residual import VARIANCE

pytestmark = pytest.mark.long

ATTACKED = Setup("optimal", 1.0, 1.5, 0.02, 4, 3, 2, seed=0)
ONE_RUN = OneRunSetup("optimal", 2.0, 1e-5, 2048, 200, seed=0)


def probability(powers, test, factor):
    (power_of_row,) = (row for row in powers if row.test == test)
    return power_of_row.probabilities[power.FACTORS.index(factor)]


def test_a_few_honest_streams_give_no_alarm(monkeypatch):
    for module, count in ((calibration.coupled, 2), (calibration.residual, 2)):
        monkeypatch.setattr(module, "SCENES", module.SCENES[:count])
    found = false_alarms(4, level=1e-6, workers=1, seed=0)
    assert [alarms.trials for alarms in found] == [5, 1, 4, 4, 4, 4]
    assert all(alarms.keeps_its_level for alarms in found)
    assert {alarms.alarms for alarms in found if alarms.level is None or alarms.level < 1e-3} == {0}


def test_a_broken_pipeline_gives_alarms(monkeypatch):
    for module in (calibration.coupled, calibration.residual):
        monkeypatch.setattr(module, "SCENES", module.SCENES[:2])
    with SABOTAGES["no clipping"].patches():
        pairs, *_ = false_alarms(1, level=1e-6, workers=1, seed=0)
    assert pairs.alarms == 1
    assert not pairs.keeps_its_level


@pytest.mark.parametrize(("alarms", "keeps"), [(0, True), (50, True), (70, True), (90, False)])
def test_so_many_alarms_of_a_thousand_are_a_surprise(alarms, keeps):
    assert Alarms("", 1000, alarms, 0.05).keeps_its_level is keeps


@pytest.fixture
def few_factors(monkeypatch):
    """Look at three factors only."""
    monkeypatch.setattr(power, "FACTORS", (0.5, 0.7, 1.0))


def test_the_power_of_residuals_is_what_the_pipeline_shows():
    """Ten audits at a factor that about half of them find: all of them or none have a chance below 1 in 200."""
    scene = replace(residual.SCENES[0], dimension=32)
    stated = probability(residual_powers(scene, 7), VARIANCE, 0.9)
    assert 0.3 < stated < 0.6
    broken = replace(SABOTAGES["noise halved"], plan=lambda plan: plan.with_noise_multiplier(0.9))
    found = 0
    for seed in range(10):
        rows = residual_rows(scene, play_noises(scene, 0, 7, broken, seed), broken)
        found += any(row.test == VARIANCE and row.verdict is Verdict.refuted for row in rows)
    assert 0 < found < 10


def test_a_row_that_attacks_finds_less_noise_more_surely_and_the_right_noise_hardly_ever(few_factors):
    powers = many_run_powers(ATTACKED, 2000, Levels(0.95))
    assert probability(powers, "many runs, halved noise", 0.5) > 0.99
    assert probability(powers, "many runs, mu-GDP", 0.7) > probability(powers, "many runs, stated law", 0.7)
    for power_of_row in powers:
        assert power_of_row.probabilities[-1] <= 0.05


def test_the_power_of_one_run_is_what_the_pipeline_shows(few_factors):
    """Halved noise is caught by the row on mu for certain, and so it is in the pipeline."""
    powers = one_run_powers(ONE_RUN, Levels(0.95), repeats=20)
    assert probability(powers, "one run, f-DP", 0.5) == 1
    assert probability(powers, "one run, f-DP", 1.0) <= 0.05
    right = play_one_run(replace(ONE_RUN, sabotage=SABOTAGES["noise halved"]))
    assert f_dp_row(ONE_RUN, right, Levels(0.95)).verdict is Verdict.refuted


def test_at_the_size_of_the_slow_audit_one_run_need_not_find_half_of_the_noise_and_f_dp_must():
    """At the levels of that audit, which attacks nothing else; in a default one, which does, neither must."""
    slow, default = Levels(0.95, attacks=1, one_runs=1), Levels(0.95, attacks=38, one_runs=2)
    single = OneRunSetup("optimal", 2.0, 1e-5, 4096, 400, seed=0)
    epsilon, mu = one_run_control_powers(single, 0.5, slow)
    assert 0.2 < epsilon < 0.3 < SURE <= mu
    for power_of_row in one_run_control_powers(replace(single, canaries=16384, guesses=656), 0.5, default):
        assert 0.94 < power_of_row < 0.98


def test_the_power_of_one_run_is_that_of_the_count_from_which_its_rows_refute():
    """At the levels of a default audit, where the bound on mu alone refutes from 341 right guesses, and not from 367."""
    default, single = (
        Levels(0.95, attacks=38, one_runs=2),
        OneRunSetup("optimal", 2.0, 1e-5, 8192, 400, seed=0),
    )
    rows = {
        "one run": lambda right: one_run_trial(single, right, default).as_row(),
        "one run, f-DP": lambda right: f_dp_row(single, right, default),
    }
    least = power.least_right(single, stated_mu(single), default)
    assert least == {"one run": 369, "one run, f-DP": 367}
    for test, row in rows.items():
        verdicts = [row(least[test] - short).verdict for short in (0, 1)]
        assert verdicts == [Verdict.refuted, Verdict.nothing_found]
