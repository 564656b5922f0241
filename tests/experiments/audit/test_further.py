"""Rows that use the runs in other ways: what each finds, what it must not find, and what it says of itself."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from experiments.audit.digits import Runs, Setup, build_stage, play
from experiments.audit.exact import ExactEpsilon
from experiments.audit.further import (
    beside_exact,
    exact_row,
    f_dp_row,
    fitted_trial,
    further_rows,
    learned_row,
    mu_row,
    with_fitted_noise,
)
from experiments.audit.law import Law, best_rule, count, own_mask
from experiments.audit.levels import Levels
from experiments.audit.one_run import (
    OneRunSetup,
    estimates,
    make_one_run_plan,
    play_one_run,
    quotas,
    right_guesses,
    stated_mu,
)
from experiments.audit.row import Verdict
from experiments.audit.sabotage import HALF_NOISE, NONE, SABOTAGES
from experiments.audit.trials import attack, judge, stated_law
from fedmf.accounting import gaussian_epsilon
from fedmf.audit.bounds import epsilon_lower_bound
from fedmf.audit.gaussian_bounds import mu_lower_bound

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    """Of the exact epsilon; its interval stays exact and gets wider."""
    monkeypatch.setattr("experiments.audit.further.DRAWS", 20_000)


ALONE = Levels(0.95)
DENSE = Setup("optimal", 1.0, 1.5, 0.02, cohort_size=2, rounds_per_epoch=3, epochs=2, seed=0)
MASKED = replace(DENSE, keep_probability=0.1)


def made_up(setup, runs, seed=0, **changes):
    """Runs of the setup's law, or of a changed one, in pairs; the canary's own round is all there is."""
    law = replace(stated_law(setup), **changes)
    rng = np.random.default_rng(seed)
    canaries = np.repeat(np.arange(runs // 2) % len(law.shifts), 2)
    present = np.arange(runs) % 2 == 0
    seen = [law.simulate(canaries, present=kind, rng=rng) for kind in (True, False)]
    observations = np.where(present[:, None, None], *seen)
    rounds = setup.rounds_per_epoch
    sums = np.random.default_rng(seed + 1).standard_normal((runs, setup.epochs, rounds, law.coordinates))
    own = build_stage(setup).steps[canaries]
    copies = observations / stated_law(setup).shifts[canaries][:, :, None]
    np.put_along_axis(sums, own[:, :, None, None], copies[:, :, None], axis=2)
    return Runs(observations, sums, canaries, present)


def test_mu_row_refutes_a_smaller_noise_that_the_headline_does_not():
    """At .75 of the noise; the same runs, and the same level."""
    runs = made_up(DENSE, 2000, noise=0.75)
    row = mu_row(DENSE, runs, ALONE)
    assert row.verdict is Verdict.refuted
    assert {trial.as_row().verdict for trial, _ in attack(DENSE, runs, ALONE)} == {Verdict.nothing_found}
    assert row.false_alarm == pytest.approx(0.05)


def test_mu_row_claims_the_mu_of_the_stated_epsilon_and_passes_the_stated_law():
    row = mu_row(DENSE, made_up(DENSE, 2000), ALONE)
    assert row.verdict is Verdict.nothing_found
    assert gaussian_epsilon(float(row.limit.removeprefix("mu ")), 0.02) == pytest.approx(1.5, abs=2e-3)
    assert float(row.observed.split()[3].rstrip(",")) > 0.5  # of .809: most of what there is


def test_mu_row_says_the_bound_of_its_counts_at_its_level():
    row = mu_row(DENSE, made_up(DENSE, 400), Levels(0.9))
    hits, members, alarms, others = map(int, re.findall(r"(\d+)/(\d+) right, (\d+)/(\d+)", row.observed)[0])
    bound = mu_lower_bound(hits, members, alarms, others, confidence=0.9)
    assert row.observed.startswith(f"mu at least {bound:.3f}, ")
    assert row.false_alarm == pytest.approx(0.1)


@pytest.mark.parametrize("noise", [0.3, 0.6, 1.0, 1.8])
@pytest.mark.parametrize("setup", [DENSE, MASKED], ids=["dense", "masked"])
def test_fitted_noise_is_the_noise(setup, noise):
    """200 runs of 80 observations: one standard error is .6 %."""
    fitted = with_fitted_noise(stated_law(setup), made_up(setup, 200, noise=noise))
    assert fitted.noise == pytest.approx(noise, rel=0.03)


def test_fitted_row_finds_less_noise_where_the_stated_laws_rule_finds_nothing():
    """At .6 and gamma .1: the attack is at its best only if it knows the noise."""
    runs = made_up(MASKED, 3000, noise=0.6)
    row = fitted_trial(MASKED, runs, ALONE).as_row()
    assert row.verdict is Verdict.refuted
    assert "noise 0.6" in row.note or "noise 0.59" in row.note
    assert attack(MASKED, runs, ALONE)[0][0].lower_bound < 1.5
    assert fitted_trial(MASKED, made_up(MASKED, 3000), ALONE).as_row().verdict is Verdict.nothing_found


def test_fitted_row_counts_no_run_that_it_was_fitted_on():
    """The first tenth holds runs that would be claimed wrongly each time; none of them is in the counts."""
    runs = made_up(MASKED, 400, noise=0.3)
    turned = runs.present.copy()
    turned[:40] = ~turned[:40]
    row = fitted_trial(MASKED, replace(runs, present=turned), ALONE).as_row()
    assert "/180 right" in row.observed
    assert "first 40 runs" in row.note


def test_exact_row_says_how_much_the_conversion_hides():
    row = exact_row(MASKED, ALONE)
    low, high = (float(word.strip("[],")) for word in row.observed.split()[-2:])
    assert 1.0 < low < high < 1.3
    assert row.verdict is Verdict.nothing_found


def test_exact_row_refutes_a_statement_below_what_the_law_gives_away(monkeypatch):
    """A stated epsilon of 1.5 that was calibrated to 3: the accountant's mistake that this row is for."""
    monkeypatch.setattr(
        "experiments.audit.further.stated_law", lambda setup: stated_law(replace(MASKED, epsilon=3.0))
    )
    assert exact_row(replace(MASKED, seed=9), ALONE).verdict is Verdict.refuted


def test_beside_exact_refutes_between_the_exact_epsilon_and_the_stated_one(monkeypatch):
    trial = attack(MASKED, made_up(MASKED, 200), ALONE)[0][0]
    exact = ExactEpsilon(1.1, 1.05, 1.15, 1 - 1e-6)
    monkeypatch.setattr("experiments.audit.further.exact_epsilon_of", lambda setup, error: exact)
    verdicts = [
        beside_exact(MASKED, replace(trial, decisive=bound, best=4.0), ALONE).verdict
        for bound in (1.0, 1.12, 1.2)
    ]
    assert verdicts == [Verdict.nothing_found, Verdict.nothing_found, Verdict.refuted]
    row = beside_exact(MASKED, trial, ALONE)
    assert row.false_alarm == pytest.approx(0.05)
    assert row.test == "many runs, exact epsilon"


def test_the_law_is_refuted_where_the_statement_is_not_yet():
    """At .8 of the noise and gamma .1; the exact epsilon is what the accountant's slack would hide."""
    trial = fitted_trial(MASKED, made_up(MASKED, 6000, noise=0.8), ALONE)
    assert trial.as_row().verdict is Verdict.nothing_found
    assert beside_exact(MASKED, trial, ALONE).verdict is Verdict.refuted
    honest = fitted_trial(MASKED, made_up(MASKED, 6000), ALONE)
    assert beside_exact(MASKED, honest, ALONE).verdict is Verdict.nothing_found


@pytest.mark.parametrize(
    ("mechanism", "sabotage"),
    [("optimal", "a coordinate without noise"), ("independent", "one noise row for all rounds")],
)
def test_learned_row_finds_what_nobody_told_it_in_the_real_pipeline(mechanism, sabotage):
    """In 160 runs, of which the headline's rule makes nothing."""
    setup = replace(DENSE, mechanism=mechanism, epochs=1, sabotage=SABOTAGES[sabotage])
    runs = play(setup, 0, 160)
    assert learned_row(setup, runs, ALONE).verdict is Verdict.refuted
    assert attack(setup, runs, ALONE)[0][0].as_row().verdict is not Verdict.refuted


def test_learned_row_finds_that_rounds_have_no_noise_since_the_canary_is_in_all_rounds():
    setup = replace(DENSE, epochs=1, sabotage=SABOTAGES["no noise in two of three rounds"])
    runs = play(setup, 0, 240)
    assert learned_row(setup, runs, ALONE).verdict is Verdict.refuted
    first = build_stage(replace(setup, sabotage=NONE)).steps[runs.canaries, 0] == 0
    spared = Runs(runs.observations[first], runs.sums[first], runs.canaries[first], runs.present[first])
    assert learned_row(setup, spared, ALONE).verdict is not Verdict.refuted  # what was audited before


@pytest.mark.parametrize("setup", [DENSE, MASKED], ids=["dense", "masked"])
def test_learned_row_passes_the_stated_law(setup):
    assert learned_row(setup, made_up(setup, 1000), ALONE).verdict is Verdict.nothing_found


def test_learned_row_counts_the_half_that_it_did_not_learn_from():
    """A label that is in the first half's features alone helps nobody."""
    runs = made_up(DENSE, 400)
    runs.observations[:200, :, 0] = np.where(runs.present[:200, None], 50.0, -50.0)
    row = learned_row(DENSE, runs, ALONE)
    assert "/100 right" in row.observed
    assert row.verdict is Verdict.nothing_found
    runs.observations[200:, :, 0] = np.where(runs.present[200:, None], 50.0, -50.0)
    assert learned_row(DENSE, runs, ALONE).verdict is Verdict.refuted
    runs = made_up(DENSE, 400)  # in the second half alone, and against what the first half teaches
    runs.observations[200:, :, 0] = np.where(runs.present[200:, None], -50.0, 50.0)
    assert learned_row(DENSE, runs, ALONE).verdict is Verdict.nothing_found


@pytest.mark.parametrize("kind", ["uneven", "even"])
def test_a_bound_over_canaries_of_unequal_risk_needs_each_in_as_many_runs_in_as_out(kind):
    """Two canaries, e^epsilon FPR each: with the riskier one mostly in, an honest mechanism would be refuted."""
    epsilon, rng, trials, refuted = 0.5, np.random.default_rng(0), 400, 0
    false = np.array([0.02, 0.55])
    for _ in range(trials):
        share = np.array([0.5, 0.5] if kind == "even" else [0.1, 0.9])
        members, others = rng.multinomial(500, share), rng.multinomial(500, share[::-1])
        if kind == "even":
            members = others = np.array([250, 250])
        hits = rng.binomial(members, false * math.exp(epsilon)).sum()
        alarms = rng.binomial(others, false).sum()
        refuted += epsilon_lower_bound(hits, 500, alarms, 500, delta=1e-9, confidence=0.95) > epsilon
    assert (refuted / trials < 0.05) == (kind == "even")


@pytest.mark.parametrize(
    ("bound", "best", "verdict"),
    [
        (1.6, 1.6, Verdict.refuted),
        (1.5, 4.0, Verdict.nothing_found),
        (0.2, 1.5, Verdict.inconclusive),
    ],
)
def test_a_row_is_inconclusive_where_even_a_test_without_mistakes_would_refute_nothing(bound, best, verdict):
    assert judge(bound, 1.5, best) is verdict


def test_too_few_runs_are_inconclusive_in_every_row():
    runs = made_up(DENSE, 30)
    trials = [trial for trial, _ in attack(DENSE, runs, ALONE)]
    rows = [trial.as_row() for trial in trials] + further_rows(DENSE, runs, trials, ALONE)
    assert {row.test: row.verdict for row in rows} == {
        "many runs": Verdict.inconclusive,
        "many runs, learned": Verdict.inconclusive,
        "many runs, mu-GDP": Verdict.nothing_found,  # perfect guesses of 30 runs would show mu above .8
    }


def test_masked_pipelines_get_the_rows_of_masks_and_controls_no_row_of_the_law():
    runs = made_up(MASKED, 100)
    trials = [trial for trial, _ in attack(MASKED, runs, ALONE)]
    tests = [row.test for row in further_rows(MASKED, runs, trials, ALONE)]
    assert tests == ["many runs, learned", "many runs, fitted noise", *["many runs, exact epsilon"] * 3, "exact epsilon"]  # fmt: skip
    broken = replace(MASKED, sabotage=HALF_NOISE)
    rows = further_rows(broken, runs, trials[:1], ALONE)
    assert [row.test for row in rows] == ["many runs, learned", "many runs, fitted noise", *["many runs, exact epsilon"] * 2]  # fmt: skip


def test_best_rule_takes_the_bound_that_it_is_given():
    """Of two thresholds, one with few false alarms and one with many hits, each bound prefers another."""
    law, rng = Law(*own_mask(1.0), np.array([[1.0]]), 1), np.random.default_rng(0)
    scores = [law.scores(20_000, present=present, rng=rng) for present in (True, False)]
    rates = {}
    for name, bound in (
        ("epsilon", partial(epsilon_lower_bound, delta=0.02, confidence=0.95)),
        ("members", lambda tp, n, fp, m: tp / n - fp / m),
    ):
        rule = best_rule(*scores, runs=2000, bound=bound)
        found = count(rule, np.concatenate(scores), np.repeat([True, False], 20_000))
        rates[name] = found.false_positives / found.non_members
    assert rates["epsilon"] < 0.15 < 0.25 < rates["members"]


@pytest.mark.parametrize(("correct", "verdict"), [(513, Verdict.nothing_found), (590, Verdict.refuted)])
def test_f_dp_row_holds_the_stated_mu_against_the_guesses(correct, verdict):
    """590 of 656: more than mu .5 allows, and not enough for the bound in epsilon and delta."""
    setup = OneRunSetup("optimal", 2.0, 1e-5, 16384, 656, seed=0)
    row = f_dp_row(setup, correct, ALONE)
    assert row.verdict is verdict
    assert row.limit == f"mu {stated_mu(setup):.3f}"
    assert gaussian_epsilon(stated_mu(setup), 1e-5) == pytest.approx(2.0, rel=1e-6)


def test_each_round_has_its_share_of_the_guesses():
    assert quotas(656) == [82] * 8
    assert sum(quotas(659)) == 659
    assert max(quotas(659)) - min(quotas(659)) == 1


def test_every_estimate_of_a_round_is_in_units_of_a_canary():
    """Without noise each is what was sent."""
    plan = make_one_run_plan(OneRunSetup("optimal", 2.0, 1e-5, 512, 128, seed=0))
    for step in (0, 3, 7):
        rows = np.zeros((8, 3))
        rows[step] = sent = np.array([0.0, 1.0, 0.4])
        found = estimates(plan, rows, step)
        assert len(found) > 8
        np.testing.assert_allclose(found, np.broadcast_to(sent, found.shape), atol=1e-12)


def test_guesses_are_the_extremes_of_a_round():
    estimates, coins = np.array([0.1, 3.0, -2.0, 0.4, 2.0]), np.array([0, 1, 1, 0, 0])
    assert right_guesses(estimates, coins, 2) == 1  # out of -2: wrong; in of 3: right
    assert right_guesses(estimates, coins, 3) == 1  # in of 2 too: wrong
    assert right_guesses(estimates, coins, 0) == 0


def test_every_round_is_guessed_so_that_one_without_noise_is():
    """Of all guesses half lie in rounds without noise and are right; ranked by size alone, hardly any would."""
    rng, mu = np.random.default_rng(0), 0.5
    coins = rng.integers(2, size=(8, 2048))
    noise = np.where(np.arange(8) < 4, 1.0, 0.0)[:, None]
    estimates = mu * coins + noise * rng.standard_normal(coins.shape)
    by_round = sum(
        right_guesses(*pair, quota) for *pair, quota in zip(estimates, coins, quotas(656), strict=True)
    )
    assert by_round > 0.5 * 656 + 0.7 * 328
    assert right_guesses(estimates.ravel(), coins.ravel(), 656) < 0.82 * 656


@pytest.mark.parametrize(
    ("sabotage", "expected"),
    [("no noise in two of three rounds", 5 / 8), ("one noise row for all rounds", 0.99), (None, 0.0)],
)
@pytest.mark.parametrize("mechanism", ["optimal", "independent"])
def test_one_run_finds_what_is_exact_in_the_real_pipeline(mechanism, sabotage, expected):
    """512 canaries, 128 guesses: where a round's estimate is exact its guesses are right; others are by chance, or better."""
    setup = OneRunSetup(mechanism, 2.0, 1e-5, 512, 128, seed=0, sabotage=SABOTAGES.get(sabotage, NONE))
    right = play_one_run(setup)
    assert right >= 128 * (expected + 0.5 * (1 - expected))
    if sabotage is None:
        assert right < 110
