"""The level that decides: of all attacks together, and of all other rows that are left to chance."""

import json
import logging
import math
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import experiments.audit.__main__ as command
from experiments.audit import power, residual
from experiments.audit.digits import Setup
from experiments.audit.further import f_dp_row
from experiments.audit.jobs import run_jobs
from experiments.audit.law import Count
from experiments.audit.levels import Levels
from experiments.audit.matrix import Code, exit_code
from experiments.audit.one_run import OneRunSetup
from experiments.audit.power import many_run_control_power, one_run_control_powers
from experiments.audit.row import Verdict
from experiments.audit.sabotage import HALF_NOISE, NONE
from experiments.audit.scene import stated_of
from experiments.audit.settings import AuditSettings, for_a_night
from experiments.audit.trials import NARROW, attacks_on, many_run_trial, one_run_trial
from experiments.settings.compose import compose
from fedmf.audit import residuals
from fedmf.audit.bounds import one_run_lower_bound
from fedmf.audit.residual import FALSE_ALARM, PAIRS
from fedmf.mechanisms import FAMILIES

pytestmark = pytest.mark.long

ALONE, SHARED = Levels(0.95), Levels(0.95, attacks=38, one_runs=2, parts=18)
ONE_ALONE = Levels(0.95, attacks=0, one_runs=1)
MANY = Setup("optimal", 1.0, 1.5, 0.02, cohort_size=2, rounds_per_epoch=3, epochs=2, seed=0)
ONE = OneRunSetup("optimal", 2.0, 1e-5, 16384, 656, seed=0)
TINY = (
    *("mechanisms=[independent]", "cohort_size=2", "rounds_per_epoch=1", "epochs=1", "runs=20", "delta=0.05"),
    *("canaries=64", "guesses=16", "pairs=0", "residual_runs=2", "workers=1"),
)


def settings(tmp_path, *overrides):
    return compose("audit", [f"directory={tmp_path / 'audit'}", "output=json", *overrides], AuditSettings)


@pytest.fixture
def tiny_audit(monkeypatch):
    """Leave two scenes, and fewer draws of the exact epsilon."""
    monkeypatch.setattr(command.residual, "SCENES", residual.SCENES[:2])
    monkeypatch.setattr(command.residual, "WIDE_RUNS", 1)
    monkeypatch.setattr("experiments.audit.further.DRAWS", 20_000)
    logging.getLogger("server").setLevel(logging.WARNING)


def many_run(hits, levels):
    found = Count(hits, 1000, 40, 1000)
    return many_run_trial(MANY, "many runs", "for the stated law", found, levels).as_row()


def one_run(right, levels):
    return one_run_trial(ONE, right, levels).as_row()


def f_dp(right, levels):
    return f_dp_row(ONE, right, levels)


@pytest.mark.parametrize(
    ("row", "most", "by_itself", "share"),
    [(many_run, 1000, ALONE, 0.025 / 38), (one_run, 656, ONE_ALONE, 0.0125), (f_dp, 656, ALONE, 0.025 / 38)],
)
def test_a_bound_that_exceeds_the_statement_by_itself_only_refutes_nothing_and_says_so(
    row, most, by_itself, share
):
    """The least count that refutes by itself is not enough for one of forty; a clearly larger one is."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        refutes = row(middle, by_itself).verdict is Verdict.refuted
        low, high = (low, middle) if refutes else (middle + 1, high)
    alone, shared, clear = row(low, by_itself), row(low, SHARED), row(most, SHARED)
    assert (alone.verdict, shared.verdict, clear.verdict) == (
        *(Verdict.refuted, Verdict.nothing_found, Verdict.refuted),
    )
    assert (
        shared.observed == alone.observed
    )  # the headline is the bound by itself, and says at what confidence
    assert "at 95 %" in shared.observed
    assert NARROW in shared.note
    assert NARROW not in alone.note
    assert NARROW not in clear.note
    assert (alone.false_alarm, shared.false_alarm) == pytest.approx((0.05, share))
    assert exit_code([shared], []) is Code.nothing_found
    assert exit_code([clear], []) is Code.refuted


def test_an_audit_of_forty_attacks_at_their_limit_is_refuted_once_in_twenty_at_most():
    """Guesses as right as the statement allows, 400 honest audits; each row for itself would refute most of them."""
    rate, rng = 1 / (1 + math.exp(-2.0)), np.random.default_rng(0)
    right = rng.binomial(300, rate, (400, SHARED.attacks + SHARED.one_runs)).tolist()
    bound = cache(partial(one_run_lower_bound, guesses=300, canaries=300, delta=0.0))

    def refuted(shares):
        audits = [zip(audit, shares, strict=True) for audit in right]
        return np.mean(
            [any(bound(count, confidence=1 - share) > 2.0 for count, share in audit) for audit in audits]
        )

    assert (
        refuted([SHARED.attack] * SHARED.attacks + [SHARED.one_run] * SHARED.one_runs) < 0.08
    )  # 3 deviations above
    assert refuted([1 - SHARED.confidence] * 40) > 0.5


def test_all_attacks_of_an_audit_share_one_level_and_all_other_rows_another(tmp_path, tiny_audit):
    asked = settings(tmp_path, *TINY)
    levels = command.levels_of(asked)
    rows = [row for found in run_jobs(command.honest_jobs(asked, levels), 1) for row in found.rows]
    attacks = [row for row in rows if row.is_attack]
    assert (len(attacks), levels.attacks, levels.one_runs) == (20, 19, 1)
    assert math.fsum(row.false_alarm for row in attacks) == pytest.approx(0.05)
    others = math.fsum(row.false_alarm for row in rows if not row.is_attack)
    assert "exact epsilon" in {row.test for row in rows}
    assert 0.9 * FALSE_ALARM <= others <= FALSE_ALARM * (1 + 1e-9)


def test_the_default_audit_has_forty_attacks_and_eighteen_other_parts(tmp_path):
    assert command.levels_of(settings(tmp_path)) == SHARED


def test_what_is_not_played_takes_no_share(tmp_path):
    asked = settings(tmp_path, "runs=0", "canaries=0")
    assert command.levels_of(asked) == Levels(0.95, attacks=0, one_runs=0, parts=14)
    assert command.levels_of(settings(tmp_path, "residual_runs=0")).parts == 4


def test_a_sabotage_is_caught_at_the_level_that_decides_and_its_power_is_that_one():
    (law,) = attacks_on(replace(MANY, sabotage=HALF_NOISE)).values()
    powers = [many_run_control_power(MANY, law, 300, levels) for levels in (ALONE, SHARED)]
    assert powers[1] < powers[0] - 0.1
    single = OneRunSetup("optimal", 2.0, 1e-5, 8192, 400, seed=0)
    alone, shared = (one_run_control_powers(single, 0.5, levels) for levels in (ONE_ALONE, SHARED))
    assert shared[0] < alone[0] - 0.1


@pytest.mark.parametrize("kind", ["controls", "sabotage"])
def test_sabotages_are_played_at_the_levels_of_the_audit(tmp_path, tiny_audit, kind):
    asked = settings(tmp_path, *TINY)
    levels = command.levels_of(asked)
    if kind == "controls":
        jobs = command.control_jobs(asked, levels)
    else:
        jobs = command.sabotage_jobs(asked, HALF_NOISE, levels)
    judged = [job.finish for job in jobs if hasattr(job.finish, "sabotage") or hasattr(job.finish, "levels")]
    assert {getattr(judge, "level", levels.part) for judge in judged} == {levels.part}
    assert {getattr(judge, "levels", levels) for judge in judged} == {levels}
    assert len(judged) > 1
    assert levels.part == pytest.approx(FALSE_ALARM / 6)


def test_false_alarms_are_counted_at_the_level_of_the_audit(tmp_path, tiny_audit, monkeypatch, capsys):
    monkeypatch.setattr(command.coupled, "SCENES", command.coupled.SCENES[:1])
    asked = settings(tmp_path, "calibration=1", "runs=0", "canaries=0", "workers=1")
    command.audit(asked)
    document = json.loads(capsys.readouterr().out)
    part = command.levels_of(asked).part
    assert part == pytest.approx(FALSE_ALARM / 4)
    levels = [found["level"] for found in document["false_alarms"]]
    assert levels[0] is None
    assert levels[1:] == pytest.approx([2 * part, part, 0.05, 2 * part, 0.1], rel=1e-9)


@pytest.mark.parametrize("thorough", ["false", "true"])
def test_no_attack_of_a_default_or_thorough_audit_is_too_small_for_its_share(tmp_path, thorough):
    """Had every claim been right each would refute; so that exit code 3 is left to those who play less."""
    asked = settings(tmp_path, f"thorough={thorough}")
    asked = for_a_night(asked, FAMILIES) if asked.thorough else asked
    levels = command.levels_of(asked)
    for setup in command.one_runs(asked, NONE):
        assert one_run_trial(setup, setup.guesses, levels).decisive > setup.epsilon
    half = Count(
        asked.runs // 4, asked.runs // 4, 0, asked.runs // 4
    )  # the learned attack counts half of the runs
    for setup in command.many_runs(asked, NONE):
        assert many_run_trial(setup, "many runs, learned", "", half, levels).decisive > setup.epsilon


def test_two_coordinates_that_are_correlated_are_found_from_the_runs_that_the_table_says():
    """At 0.3: 50 runs hardly ever find it, 200 do; the row of the audit agrees, in the noise of coordinates 5 and 42."""
    scene, level = replace(residual.SCENES[0], dimension=64), SHARED.part
    stated = stated_of(scene)
    place = power.CORRELATIONS.index(0.3)
    few, many = (power.correlation_powers(scene, runs, level, seed=0)[place] for runs in (50, 200))
    assert few < 0.1 < 0.99 < many
    found = []
    for runs in (50, 200):
        z = np.random.default_rng(runs).standard_normal((runs, scene.epochs, scene.rounds_per_epoch, 64))
        z[..., 42] = 0.3 * z[..., 5] + (1 - 0.3**2) ** 0.5 * z[..., 42]
        sums = np.stack(
            [epoch.sigma * np.linalg.inv(epoch.whitening) @ z[:, e] for e, epoch in enumerate(stated.epochs)],
            1,
        )
        found.append({one.test: one for one in residuals(sums, stated, false_alarm=level)}[PAIRS])
    assert [one.refutes for one in found] == [False, True]
    assert found[1].where == "coordinate 5 and coordinate 42"
