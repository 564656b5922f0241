"""A run that is extended costs what all its epochs cost together, and continues only where that is allowed."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from fedmf.accounting import Ledger, privacy_spent
from fedmf.checks import rounded_up
from fedmf.errors import PrivacyBudgetExhausted, SettingError
from fedmf.mechanisms import design_run, of_run
from fedmf.mechanisms.schedules import rates
from plans import small_plan, stated

ANY = {"max_epsilon": 1e9}  # epsilon that any extension may reach
PUBLISHED = {"keep_probability": 0.01, "noise_multiplier": 0.05, "linf_norm": 0.005935076377073027}


def ledger_of(plan, epochs):
    ledger = Ledger()
    for _ in range(epochs):
        ledger = plan.start_epoch(ledger)
    return ledger


def extended(plan, after, epochs, momentum=0.0, schedule="constant"):
    """The plan gone on with, its added epochs fitted as a run of their own."""
    rounds = plan.participation.rounds_per_epoch
    shares = None if schedule == "constant" else rates(schedule, rounds * epochs)
    return plan.extended(
        after, design_run(plan.factorization.family, of_run(rounds, epochs, momentum, shares))
    )


def test_ten_epochs_and_six_more_cost_the_published_number_of_sixteen():
    """3.681863: the oracle's figure of sixteen epochs at delta 1e-5, from 40-digit arithmetic."""
    plan = small_plan(**PUBLISHED, **ANY, epochs=10)
    assert plan.check_extension(ledger_of(plan, 10), 6).epsilon == pytest.approx(3.681863, abs=1e-6)


@pytest.mark.parametrize(
    ("gamma", "target"),
    [(0.1, {}), (0.1, {"accountant": "tight"}), (0.1, {"adjacency": "replace"}), (1.0, {})],
    ids=str,
)
def test_the_cost_is_the_accountants_of_all_epochs_under_each_relation(gamma, target):
    """Also where events differ by rounding, or accountant=tight would refuse a run that another machine began."""
    plan = small_plan(epochs=3, keep_probability=gamma, **target, **ANY)
    whole = privacy_spent(plan.epoch_event, 5, delta=1e-5, precision=plan.precision, **target)
    assert plan.check_extension(ledger_of(plan, 3), 2) == whole
    assert whole.epsilon > plan.spent(3).epsilon
    rounded = replace(plan.epoch_event, noise_multiplier=plan.noise_multiplier * (1 + 1e-12))
    assert plan.check_extension(Ledger((rounded,) * 3), 2).epsilon == pytest.approx(whole.epsilon, rel=1e-9)
    free = small_plan(noise_multiplier=0.0, l2_norm=None)
    assert free.check_extension(ledger_of(free, 2), 9).epsilon == math.inf


@pytest.mark.parametrize("limits", [
    {"epsilon": 3.0, "noise_multiplier": None}, {"noise_multiplier": 1.0}, {"noise_multiplier": 1.0, "max_epsilon": 6.2},
])  # fmt: skip
def test_more_than_any_limit_allows_is_refused_with_the_new_epsilon_and_what_to_allow(limits):
    plan = small_plan(epochs=4, **limits)
    ledger = ledger_of(plan, 4 if "max_epsilon" not in limits else 1)
    new = privacy_spent(
        plan.epoch_event, len(ledger.entries) + 2, delta=1e-5, precision=plan.precision
    ).epsilon
    if "max_epsilon" in limits:
        plan = replace(plan, privacy=replace(plan.privacy, max_epsilon=new * 0.99))
    with pytest.raises(PrivacyBudgetExhausted, match=re.escape(f"to {rounded_up(new)}")) as refused:
        plan.check_extension(ledger, 2)
    allowed = float(re.search(r"max_epsilon=([\d.]+[\d])\.$", str(refused.value))[1])
    assert new <= allowed <= new * 1.001
    plan = replace(plan, privacy=replace(plan.privacy, max_epsilon=allowed))
    assert plan.check_extension(ledger, 2).epsilon == new
    plan.start_epoch(plan.start_epoch(ledger))  # and the epochs may begin


def test_the_target_allows_what_a_run_that_ended_early_left_of_it():
    plan = small_plan(epochs=4, epsilon=3.0, noise_multiplier=None)
    assert plan.check_extension(ledger_of(plan, 2), 2).epsilon == pytest.approx(3.0, rel=1e-6)
    with pytest.raises(PrivacyBudgetExhausted, match="above epsilon=3"):
        plan.check_extension(ledger_of(plan, 2), 3)


@pytest.mark.parametrize("digits", [1, 3, 4])
def test_a_bound_is_never_written_smaller_and_at_most_one_last_digit_larger(digits):
    values = np.exp(np.random.default_rng(0).uniform(np.log(1e-12), np.log(1e7), 2000)).tolist()
    for value in (*values, 5.71640, 9.9996, 0.1 + 0.2, 1e-5, 999.95, 8 - 1e-12, 8 + 1e-12):
        assert value <= float(rounded_up(value, digits)) <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-12)
    for value in (8.0, 0.5, 1e-4, 5.716, 1234.0, 100000.0, 0.0):
        assert float(rounded_up(value)) == value


def test_added_epochs_are_the_event_that_is_accounted():
    """Noise is z times the largest column norm of the added epoch's own C, and clients are bounded as before."""
    plan = small_plan(epochs=2, epsilon=3.0, noise_multiplier=None, momentum=0.9)
    longer = extended(plan, 2, 3, momentum=0.9)
    assert longer.epoch_event == plan.epoch_event
    assert longer.client_plan == plan.client_plan
    for epoch, factorization in enumerate(longer.factorization.epochs):
        columns = np.linalg.norm(factorization.stream.materialize_strategy(), axis=0)
        assert longer.sigma_in(epoch) == pytest.approx(plan.noise_multiplier * columns.max() * 1.0, rel=1e-6)
    assert [epoch.fingerprint for epoch in longer.factorization.epochs[:2]] == [
        epoch.fingerprint for epoch in plan.factorization.epochs
    ]
    assert longer.participation.epochs_of_parts == (2, 3)


def test_a_schedule_runs_anew_over_the_added_epochs_and_stays_where_it_was_before():
    who = small_plan(epochs=4).participation
    shorter = who.extended(3, 2)  # a budget had ended it
    assert [shorter.progress(rounds) for rounds in range(12)] == [
        who.progress(rounds) for rounds in range(12)
    ]
    assert [shorter.progress(rounds) for rounds in range(12, 20)] == [done / 8 for done in range(8)]
    assert shorter.epochs == 5
    assert shorter.extended(5, 1).epochs_of_parts == (3, 2, 1)


@pytest.mark.parametrize("after", [0, 5, 9])
def test_a_part_cannot_follow_where_the_one_before_did_not_end(after):
    with pytest.raises(SettingError, match=f"after is {after}"):
        small_plan(epochs=4).participation.extended(after, 1)
    with pytest.raises(SettingError, match="after is 4"):
        small_plan(epochs=4).participation.extended(4, 2).extended(4, 1)


def test_the_statement_covers_both_parts_and_says_what_the_choice_to_go_on_rests_on():
    plan = small_plan(epochs=2, epsilon=3.0, noise_multiplier=None)
    longer = extended(plan, 2, 2)
    said = stated(longer, 4)
    assert said.epsilon == longer.spent(4).epsilon > 3.0
    assert plan.precision < longer.precision  # what rounding costs is counted for all epochs
    assert (said.parts, said.epochs, said.epochs_planned, said.participation_planned) == ((2, 2), 4, 4, 4)
    assert len(said.sigma_by_epoch) == 4
    text = said.paragraph()
    for words in (f"epsilon = {rounded_up(said.epsilon)}", "ended after 2 epochs", "extended by 2 epochs", "all 4 started epochs",
                  "never leads to more than 4", "under no outcome runs more than 4 epochs"):  # fmt: skip
        assert words in text, words
    alone = stated(plan).paragraph()
    assert "extended" not in alone
    assert "no outcome" not in alone
