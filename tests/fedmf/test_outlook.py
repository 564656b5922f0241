"""What speaks against a plan: each sentence at its boundary, and the noise against dense matrices."""

import math

import numpy as np
import pytest
from scipy.linalg import block_diag

from fedmf.accounting import EpochEvent
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.workload import Workload, materialize
from fedmf.outlook import (
    LONGEST_NOISE,
    MOST_NOISE,
    MOST_NOISE_OF_LARGE,
    about_cost,
    about_noise,
    misgivings,
    noise_of_run,
)
from plans import small_plan


def reach_by_hand(beta, eta):
    """What momentum SGD makes of a mean of ones in every round."""
    velocity = model = 0.0
    for rate in eta:
        velocity = beta * velocity + 1
        model += rate * velocity
    return model


@pytest.mark.parametrize("family", ["optimal", "independent", "blt"])
@pytest.mark.parametrize(("beta", "schedule"), [(0.0, "constant"), (0.9, "constant"), (0.7, "cosine")])
def test_the_noise_over_the_signal_is_that_of_the_dense_matrices(family, beta, schedule):
    plan = small_plan(
        family=family, momentum=beta, schedule=schedule, keep_probability=0.25, noise_multiplier=1.3
    )
    whole = materialize(Workload(8, beta, np.asarray(rates(schedule, 8))))
    epochs = plan.factorization.epochs
    noise = block_diag(*(epoch.sensitivity * epoch.stream.materialize_noising() for epoch in epochs))
    per_coordinate = 1.3 * np.linalg.norm((whole @ noise)[-1]) / (0.25 * 3)
    signal = reach_by_hand(beta, np.asarray(rates(schedule, 8)))
    assert noise_of_run(plan) == pytest.approx(per_coordinate / signal, rel=1e-5)
    plans = [small_plan(), small_plan(l2_norm=0.01), small_plan(value_type="int8"), small_plan(dimension=900)]
    assert len({noise_of_run(plan) for plan in plans}) == 1


def test_a_run_that_max_epsilon_ends_early_has_the_noise_of_its_last_round():
    whole = small_plan(epochs=3)
    first = whole.spent(1).epsilon
    short = small_plan(epochs=3, max_epsilon=first * 1.01)
    assert short.affordable_epochs == 1
    run = short.factorization
    expected = 1.0 / (0.5 * 3) * run.per_round_error[3] / 4
    assert noise_of_run(short) == pytest.approx(expected)
    assert noise_of_run(short) != pytest.approx(noise_of_run(whole), rel=0.05)
    assert noise_of_run(small_plan(max_epsilon=first / 2)) == 0  # refused elsewhere


def plan_of(ratio, **given):
    """Return a plan of which the noise over the signal is `ratio`."""
    plan = small_plan(**given)
    plan = plan.with_noise_multiplier(plan.noise_multiplier * ratio / noise_of_run(plan))
    assert noise_of_run(plan) == pytest.approx(ratio)
    return plan


def test_noise_at_the_limit_is_passed_over_and_above_it_is_said():
    given = {"dimension": 400, "keep_probability": 1.0}
    assert about_noise(plan_of(MOST_NOISE * 0.999, **given)) is None
    sentence = about_noise(plan_of(MOST_NOISE * 1.5, **given))
    assert "in every direction 0.075 times" in sentence
    assert "1.5 times over all 400 parameters" in sentence
    assert sentence.endswith(
        "What helps: more clients in an epoch, a smaller noise multiplier (which costs epsilon)."
    )
    calibrated = small_plan(**given, epsilon=0.5, noise_multiplier=None)
    assert about_noise(calibrated).endswith("What helps: more clients in an epoch, a larger epsilon.")
    given |= {"epochs": 3, "noise_multiplier": 3.0}
    short = small_plan(**given, max_epsilon=small_plan(**given).spent(1).epsilon * 1.01)
    assert "a larger max_epsilon" in about_noise(short)


def test_a_large_model_is_warned_of_at_less_noise_when_it_is_long():
    edge = math.ceil((LONGEST_NOISE / 0.03) ** 2)
    assert about_noise(plan_of(0.03, dimension=edge - 1)) is None
    sentence = about_noise(plan_of(0.03, dimension=edge + 1))
    assert "runs of models with so many above 0.02 ended near chance" in sentence
    assert "fewer trained parameters" in sentence
    assert about_noise(plan_of(MOST_NOISE_OF_LARGE * 0.999, dimension=100_000)) is None


def test_what_is_said_to_help_leaves_less_noise():
    given = {"epsilon": 1.0, "noise_multiplier": None}
    for better in (
        {"epsilon": 4.0},
        {"clients": 24, "cohort_size": 6},
        {"clients": 24, "rounds_per_epoch": 8},
    ):
        assert noise_of_run(small_plan(**{**given, **better})) < 0.8 * noise_of_run(small_plan(**given))
    few = given | {"dimension": 30_000, "keep_probability": 0.0005, "epochs": 4}
    assert noise_of_run(small_plan(**few | {"keep_probability": 0.005})) < 0.9 * noise_of_run(
        small_plan(**few)
    )
    assert "a larger keep_probability" in about_noise(small_plan(**few))


def said(clients, cohort_size, rounds):
    """Return the warnings about a run without noise of so many clients."""
    figures = {"clients": clients, "cohort_size": cohort_size, "rounds_per_epoch": rounds}
    return [*about_cost(EpochEvent(0.0, 1.0, 1.0), epsilon=math.inf, delta=1e-9, **figures)]


@pytest.mark.parametrize(
    ("clients", "cohort_size", "rounds", "unasked"),
    [(100, 25, 3, None), (100, 24, 3, 28), (101, 25, 3, 26), (4, 3, 1, None), (8, 1, 5, 3), (7, 7, 1, None)],
)
def test_up_to_a_quarter_of_the_clients_may_stay_unasked(clients, cohort_size, rounds, unasked):
    found = [sentence for sentence in said(clients, cohort_size, rounds) if "unasked" in sentence]
    assert [f"leaves {unasked} of {clients} clients" in sentence for sentence in found] == [True] * bool(
        unasked
    )


def test_a_plan_names_everything_that_speaks_against_it():
    plan = small_plan(clients=100, cohort_size=2, rounds_per_epoch=4, delta=0.01, noise_multiplier=3.0)
    noise, delta, unasked, cohort = misgivings(plan)
    assert "in every direction" in noise
    assert "at least 1/N" in delta
    assert "leaves 92 of 100" in unasked
    assert "cohort_size is 2: each round releases the sum of two updates" in cohort
    (alone,) = said(None, 1, None)
    assert "one client's update" in alone
    assert said(None, 3, None) == said(None, None, None) == []
    for norm in (1.0, None):
        assert misgivings(small_plan(clients=12, delta=0.5, noise_multiplier=0.0, l2_norm=norm)) == ()
    (epsilon,) = misgivings(small_plan(clients=12, delta=0.1 / 12, noise_multiplier=0.01))
    assert "above 20: no privacy is claimed" in epsilon
    assert len(misgivings(small_plan(clients=12, delta=0.11 / 12, noise_multiplier=0.01))) == 2
