"""The audit: the parts that an attack stands on, and small audits of the real pipeline."""

import math
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm

from client.settings import TrainingSettings
from experiments.audit.digits import Setup, Stage, blank_weights, dealt_digits
from experiments.audit.law import Law, Rule, choose_rule, count, own_mask, shared_mask
from experiments.audit.one_run import OneRunSetup, play_one_run
from experiments.audit.pipeline import Filter, Pipeline, known
from experiments.audit.sabotage import HALF_NOISE, NONE, SHARED_MASK, SharedMaskKey
from experiments.audit.table import operating_curve
from experiments.audit.trials import Scores, Trial, attacks_on
from fedmf.accounting import gaussian_epsilon
from fedmf.audit.bounds import epsilon_lower_bound
from fedmf.mechanisms import design, prefix_sum
from fedmf.plan import Compression, Participation, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey

SECRET = SecretKey.reproducible(3)
HONEST = Setup("optimal", 0.1, 1.5, 0.02, cohort_size=3, rounds_per_epoch=2, epochs=2, seed=0)


def build_plan(family, noise_multiplier=1.0, keep_probability=1.0, rounds=4):
    compression = Compression(keep_probability, "identity")
    return make_plan(
        dimension=6,
        participation=Participation(3 * rounds, 3, rounds, 2),
        compression=compression,
        bounds=make_bounds(l2_norm=1.0, linf_norm=0.5, dimension=6, cohort_size=3, compression=compression),
        privacy=PrivacyTarget(delta=0.01, noise_multiplier=noise_multiplier),
        factorization=design(family, prefix_sum(rounds)),
        seed=PublicSeed(0),
    )


def pipeline_of(plan, fault=NONE):
    import torch

    return Pipeline(plan, torch.nn.Linear(6, 1, bias=False), TrainingSettings(0.1, device="cpu"), fault)


@pytest.mark.parametrize(
    ("kept_in", "kept_out"), [own_mask(0.3), own_mask(0.3, 2), shared_mask(0.3, 2), own_mask(1.0)]
)
def test_score_is_the_log_likelihood_ratio(kept_in, kept_out):
    law = Law(kept_in, kept_out, np.array([[5.0, 5.0], [0.7, 1.1]]), 3, noise=0.8)
    x = np.random.default_rng(0).normal(size=(1, 2, 3))
    expected = 0.0
    for epoch, coordinate in np.ndindex(2, 3):
        density = [
            math.fsum(
                weight * norm.pdf(x[0, epoch, coordinate], k * law.shifts[1, epoch], 0.8)
                for k, weight in enumerate(weights)
            )
            for weights in (kept_in, kept_out)
        ]
        expected += math.log(density[0] / density[1])
    assert law.score(x, np.array([1]))[0] == pytest.approx(expected, rel=1e-9)


def test_made_up_runs_follow_the_law():
    """A likelihood ratio's mean over "out" is 1: E_out[e^score] = sum of p_in."""
    law = Law(*own_mask(0.2, 2), np.array([[0.3, 0.2]]), 4)
    scores = law.scores(40_000, present=False, rng=np.random.default_rng(1))
    assert np.exp(scores).mean() == pytest.approx(1, abs=5 * np.exp(scores).std() / 200)
    draws = law.simulate(np.zeros(40_000, int), present=True, rng=np.random.default_rng(2))
    assert draws[:, 0].mean() == pytest.approx(0.3 * 0.6, abs=5 * draws[:, 0].std() / 400)


def test_rules_count_both_kinds_of_mistake():
    scores, present = np.array([3.0, 1.0, -1.0, -3.0, 2.0]), np.array([True, True, True, False, False])
    found = count(Rule(1, 0.5), scores, present)
    assert (found.true_positives, found.members, found.false_positives, found.non_members) == (2, 3, 1, 2)
    found = count(Rule(-1, 0.5), scores, present)
    assert (found.true_positives, found.members, found.false_positives, found.non_members) == (1, 2, 1, 3)


def test_the_rule_chosen_finds_most_of_what_a_gaussian_gives_away():
    """Half of the exact epsilon from 2000 runs, and no more than all of it."""
    law = Law(*own_mask(1.0), np.array([[2.0]]), 1)
    rng = np.random.default_rng(0)
    bound = partial(epsilon_lower_bound, delta=0.02, confidence=0.95)
    rule = choose_rule(law, runs=2000, bound=bound, rng=rng)
    present = rng.integers(2, size=2000).astype(bool)
    scores = np.where(
        present, law.scores(2000, present=True, rng=rng), law.scores(2000, present=False, rng=rng)
    )
    exact = gaussian_epsilon(2.0, 0.02)
    assert 0.45 * exact < count(rule, scores, present).bounded(bound) < exact


@pytest.mark.parametrize("family", ["optimal", "independent", "binary_tree"])
def test_filter_is_the_best_unbiased_one(family):
    plan = build_plan(family, noise_multiplier=0.7)
    used = Filter.of(plan, 0)
    noising = plan.sigma * plan.factorization.epochs[0].stream.materialize_noising()
    covariance = used.weights @ noising @ noising.T @ used.weights.T
    np.testing.assert_allclose(np.diag(covariance), 1, rtol=1e-6)
    np.testing.assert_allclose(np.diag(used.weights), used.gains, rtol=1e-6)
    if family != "binary_tree":  # square C: what one client moves is its column's norm, which is accounted
        encoder = plan.factorization.epochs[0].stream.materialize_strategy()
        np.testing.assert_allclose(used.gains, np.linalg.norm(encoder, axis=0) / plan.sigma, rtol=1e-5)
        assert used.gains.max() == pytest.approx(1 / plan.noise_multiplier, rel=1e-5)


def test_attacker_reads_the_sums_off_the_models():
    """Without noise the sums are what the clients sent, whatever the server optimizer made of them."""
    plan = build_plan("optimal", noise_multiplier=0.0)
    vectors = np.random.default_rng(0).uniform(-0.3, 0.3, size=(12, 6)).astype("f4")
    asked = {}

    def examples_of(client, number):
        asked.setdefault(number, []).append(client)
        return known(vectors[client])

    sums = pipeline_of(plan).run(SECRET, examples_of).reshape(8, 6)
    for number, clients in asked.items():
        np.testing.assert_allclose(sums[number - 1], vectors[clients].sum(axis=0), atol=2e-5)
    assert sorted(asked) == list(range(1, 9))


def test_same_secret_same_run_other_secret_other_run():
    pipeline = pipeline_of(build_plan("optimal"))
    runs = [
        pipeline.run(SecretKey.reproducible(seed), lambda client, number: known(np.zeros(6, "f4")))
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.abs(runs[0] - runs[2]).max() > 0.1


def test_halved_noise_is_half_of_the_same_noise():
    plan = build_plan("optimal")
    full, half = (
        pipeline_of(plan, fault).run(SECRET, lambda client, number: known(np.zeros(6, "f4")))
        for fault in (NONE, HALF_NOISE)
    )
    np.testing.assert_allclose(half, full / 2, atol=1e-5)


def test_a_shared_mask_drops_the_same_coordinates_of_all():
    """Nine copies of one vector: with one mask a sum's entry is 0 or three times the vector's, every time."""
    plan = build_plan("independent", noise_multiplier=0.0, keep_probability=0.5)
    vector = np.full(6, 0.4, "f4")
    kept = {
        fault: np.rint(pipeline_of(plan, fault).run(SECRET, lambda client, number: known(vector)) / 0.4)
        for fault in (NONE, SHARED_MASK)
    }
    assert set(np.unique(kept[SHARED_MASK])) == {0, 3}
    assert set(np.unique(kept[NONE])) == {0, 1, 2, 3}


def test_a_shared_mask_key_stays_shared_in_later_epochs_and_hides_itself():
    key = SharedMaskKey(SECRET.reveal()).ratchet()
    assert key.mask_key("a", 1) == key.mask_key("b", 1) != key.mask_key("b", 2)
    assert SECRET.mask_key("a", 1) != SECRET.mask_key("b", 1)
    assert key.derive("noise row", 0) == SECRET.ratchet().derive("noise row", 0)
    assert "hidden" in repr(key)


def test_real_clients_train_and_leave_the_blank_weights_alone():
    from client.models import build
    from client.parameters import flat_parameters
    from client.training import Trainer

    data = dealt_digits(6)
    blank = blank_weights(data)
    model = build("logistic", input_shape=(8, 8), classes=10, seed=0)
    start = flat_parameters(model)
    trainer = Trainer(model, TrainingSettings(0.5, batch_size=1000, device="cpu"))
    update = trainer.update(start, data[0].x, data[0].y, order=np.random.default_rng(0))
    assert not update[blank].any()
    assert np.count_nonzero(update) > 550
    assert len(blank) == 40


@pytest.mark.parametrize(
    "setup",
    [
        HONEST,
        Setup("independent", 1.0, 1.5, 0.02, 3, 2, 2, seed=1),
        Setup("optimal", 0.1, 1.5, 0.02, 3, 2, 2, seed=0, companions=True),
        Setup("optimal", 0.1, 1.5, 0.02, 3, 2, 2, seed=0, sabotage=SHARED_MASK, companions=True),
    ],
    ids=lambda setup: setup.name,
)
def test_observations_follow_the_law_that_the_attacker_assumes(setup):
    """Means and variances over 40 runs, 2 epochs, 40 coordinates; 5 standard errors: false alarm below 1e-4."""
    law = attacks_on(setup)["for a shared mask" if setup.sabotage is SHARED_MASK else "for the stated law"]
    runs = Stage(setup).play(0, 40)
    copies = np.arange(len(law.kept_in))
    for present, weights in ((True, law.kept_in), (False, law.kept_out)):
        seen = runs.observations[runs.present == present]
        kept_mean = weights @ copies
        kept_variance = weights @ copies**2 - kept_mean**2
        shift = law.shifts[0, 0]  # of "optimal" and "independent" all columns have one norm
        mean, variance = shift * kept_mean, 1 + shift**2 * kept_variance
        assert seen.mean() == pytest.approx(mean, abs=5 * (variance / seen.size) ** 0.5)
        assert seen.var() == pytest.approx(variance, rel=0.25)


@pytest.mark.parametrize("keep_probability", [1.0, 0.1])
def test_with_hardly_any_noise_the_attacker_sees_each_kept_copy(keep_probability):
    """For canaries of every round, whichever other round of the second epoch is theirs."""
    setup = Setup("optimal", keep_probability, 1e5, 0.02, 3, 2, 2, seed=3, companions=True)
    stage = Stage(setup)
    runs = stage.play(0, 8)
    steps = {tuple(stage.steps[canary]) for canary in runs.canaries}
    assert {first for first, _ in steps} == {0, 1}
    assert any(first != second for first, second in steps)
    copies = runs.observations / stage.shifts[runs.canaries][:, :, None]
    np.testing.assert_allclose(copies, np.rint(copies), atol=0.1)
    assert copies.max() <= 3.1
    if keep_probability == 1:
        expected = np.broadcast_to(2 + runs.present[:, None, None], copies.shape)
        np.testing.assert_array_equal(np.rint(copies), expected)


def test_one_run_tells_more_than_chance_and_more_with_half_the_noise():
    right = [
        play_one_run(OneRunSetup("optimal", 2.0, 1e-5, 512, 100, seed=0, sabotage=fault))
        for fault in (NONE, HALF_NOISE)
    ]
    assert 60 < right[0] < right[1] < 100


def test_operating_curve_goes_from_nothing_to_everything():
    false, true = operating_curve(Scores(np.array([3.0, 2.0, 1.0]), np.array([True, False, True])))
    np.testing.assert_allclose(false, [0, 0, 1, 1])
    np.testing.assert_allclose(true, [0, 0.5, 0.5, 1])


@pytest.mark.parametrize(
    ("fault", "bound", "verdict"),
    [
        (NONE, 1.4, "below the statement"),
        (NONE, 1.6, "EXCEEDS the statement"),
        (HALF_NOISE, 1.4, "NOT CAUGHT"),
        (SHARED_MASK, 1.6, "caught"),
    ],
)
def test_the_verdict_turns_where_the_bound_passes_the_stated_epsilon(fault, bound, verdict):
    trial = Trial("many runs", "optimal", 0.1, fault, "", 1.5, 0.02, 9, 9, 9, 9, 0.1, bound, 4.0, 0.95, 0.05)
    assert trial.verdict == verdict
    assert trial.is_right == (not verdict[:3].isupper())
