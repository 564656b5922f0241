"""What is said of a plan: the statement, whose dictionary and paragraph say the same and hide nothing, and the warnings, each at its boundary."""

import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import block_diag

from fedmf.accounting import EpochEvent, Ledger
from fedmf.checks import rounded_up
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
from fedmf.statement import Conduct, write_statement
from plans import small_plan, stated

SPARSE = {"noise_multiplier": 0.05, "keep_probability": 0.01, "l2_norm": 1.0, "linf_norm": 0.006}
PLAIN = {"noise_multiplier": 5.0, "keep_probability": 1.0, "l2_norm": 1.0}
NONE = {"noise_multiplier": 0.0, "keep_probability": 0.1, "l2_norm": None}


def plan(settings=SPARSE, **changes):
    return small_plan(
        clients=3400, cohort_size=100, rounds_per_epoch=34, epochs=16, **{**settings, **changes}
    )


def statement(settings=SPARSE, *, epochs=16, adjacency="zero_out", accountant="rdp", delta=1e-5, **conduct):
    return stated(plan(settings, adjacency=adjacency, accountant=accountant, delta=delta), epochs, **conduct)


def test_it_holds_everything_a_reader_needs():
    said = statement().to_dict()
    assert {*said, "clipping"} == {field.name for field in dataclasses.fields(statement())}
    assert said["epsilon"] == pytest.approx(3.6819, abs=1e-3)
    assert json.loads(json.dumps(said)) == said


def test_epsilon_is_that_of_the_epochs_that_began_and_not_of_those_planned():
    whole, cut = statement(epochs=16), statement(epochs=3)
    assert cut.epsilon == plan().spent(3).epsilon < whole.epsilon == plan().spent(16).epsilon
    assert f"epsilon = {rounded_up(cut.epsilon)}" in cut.paragraph()
    assert cut.epsilon_rdp == plan().spent(3).epsilon_rdp


def test_the_paragraph_states_the_same_figures():
    text = statement(participation_observed=15).paragraph()
    for figure in (
        "epsilon = 3.68", "delta = 1e-05", "one client", "zero-out",
        "optimal", f"sigma = {plan().sigma:.4g}", "noise multiplier 0.05",
        "probability 0.01", "L2 norm 1", "0.006", "34 rounds", "100 of 3400", "16 of 16", "at most 15 epochs",
        "from the operating system", "ONE run", "one lattice whatever the data are",
    ):  # fmt: skip
        assert figure in text, figure


def test_the_tight_bound_is_named_as_ours_with_its_proof_and_the_renyi_number():
    said = statement(accountant="tight")
    assert said.epsilon == said.epsilon_tight < said.epsilon_rdp == statement().epsilon
    text = said.paragraph()
    for words in (
        "accountant tight", f"epsilon = {rounded_up(said.epsilon)}", "this project's own and not refereed",
        "docs/theory.md", f"by Renyi divergence {rounded_up(said.epsilon_rdp)}",
    ):  # fmt: skip
        assert words in text, words
    assert "theory.md" not in statement().paragraph()
    for accountant in ("rdp", "tight"):
        exact = statement(PLAIN, accountant=accountant)
        assert exact.epsilon == exact.epsilon_exact
        assert "exact value" in exact.paragraph()
    assert "exact value" not in statement().paragraph()


def test_a_run_without_noise_is_said_not_to_be_private_everywhere():
    said = statement(NONE)
    assert not said.private
    assert said.to_dict()["epsilon"] is None
    assert "NOT private" in said.paragraph().split(".")[0]
    assert any("NOT private" in warning for warning in said.warnings)
    assert "without clipping" in said.paragraph()
    assert statement(NONE, epochs=0).to_dict()["epsilon"] is None


def test_a_seeded_run_is_labelled_before_its_epsilon():
    said = statement(reproducible=True)
    assert said.secrets == "reproducible, NOT private"
    assert said.private is False
    assert statement().private is True
    assert said.epsilon == statement().epsilon
    assert any("public seed" in warning for warning in said.warnings)
    text = said.paragraph()
    assert text.index("NOT private") < text.index("epsilon")


def test_a_large_delta_draws_a_warning():
    assert not statement().warnings
    assert "at least 1/N" in statement(delta=1 / 3400).warnings[0]
    assert "above 1/(10 N)" in statement(delta=0.11 / 3400).warnings[0]
    assert not statement(delta=0.099 / 3400).warnings


def test_an_epsilon_above_ten_draws_a_warning_and_above_twenty_nothing_is_called_private():
    for noise, private, words in (
        (0.05, True, None),
        (0.02, True, "is above 10: weak"),
        (0.012, False, "above 20: no"),
    ):
        said = statement({**SPARSE, "noise_multiplier": noise})
        assert said.private is private
        assert [words in warning for warning in said.warnings] == ([] if words is None else [True])
        assert said.paragraph().startswith("epsilon = " if private else "No privacy is claimed: epsilon = ")


@pytest.mark.parametrize(("conduct", "warning", "uncovered"), [
    ({"accepts_copy": True}, "had accept_copy=true", None),
    ({"leaves_out_unready": True}, None, "unready_nodes=without"),
    ({"unprotected_metrics": True}, "Unprotected metrics", "unprotected metrics"),
    ({"optimized_metric": "accuracy"}, None, "choosing settings by the accuracy"),
    ({"uncovered": ("The vocabulary was learnt.",)}, "The vocabulary was learnt.", None),
])  # fmt: skip
def test_what_a_session_allowed_and_what_was_learnt_otherwise_is_a_warning_or_not_covered(
    conduct, warning, uncovered
):
    said, usual = statement(**conduct), statement()
    assert said.epsilon == usual.epsilon
    for words, found, before in (
        (warning, said.warnings, usual.warnings),
        (uncovered, said.not_covered, usual.not_covered),
    ):
        added = set(found) - set(before)
        assert ([words in text for text in added] == [True]) if words else not added
        assert all(text in said.paragraph() for text in added)


def test_the_unit_the_adjacency_and_the_radius_that_were_accounted_are_stated():
    run = plan(value_type="int8", adjacency="replace")
    said = stated(run, 1, unit_of_privacy="one client of 50 examples")
    assert (said.l2_norm, said.linf_norm) == (1.0 * 1.002, 0.006)
    assert "for one client of 50 examples, under replacement adjacency" in said.paragraph()
    assert "zero-out" not in said.paragraph()
    with pytest.raises(AssertionError, match="twice in an epoch"):
        statement(epochs=2, participation_observed=3)


def test_epsilon_is_that_of_the_ledger_where_epochs_began_with_other_noise():
    run = plan()
    less = dataclasses.replace(run.epoch_event, noise_multiplier=run.noise_multiplier / 2)
    ledger = Ledger((run.epoch_event, less))
    said = write_statement(run, ledger, Conduct(reproducible=False))
    assert said.epsilon == run.spent_on(ledger).epsilon > 1.2 * run.spent(2).epsilon
    assert "1 of 2 started epochs began otherwise than stated, with a noise multiplier down to 0.025" in (
        said.paragraph()
    )


# warnings


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
    expected = 1.0 / (0.5 * 3) * short.factorization.per_round_error[3] / 4
    assert noise_of_run(short) == pytest.approx(expected)
    assert noise_of_run(short) != pytest.approx(noise_of_run(whole), rel=0.05)
    assert noise_of_run(small_plan(max_epsilon=first / 2)) == 0  # refused elsewhere


def noisy(ratio, **given):
    """Return a plan of which the noise over the signal is `ratio`."""
    plan = small_plan(**given)
    plan = replace(plan, noise_multiplier=plan.noise_multiplier * ratio / noise_of_run(plan))
    assert noise_of_run(plan) == pytest.approx(ratio)
    return plan


def test_noise_at_the_limit_is_passed_over_and_above_it_is_said():
    given = {"dimension": 400, "keep_probability": 1.0}
    assert about_noise(noisy(MOST_NOISE * 0.999, **given)) is None
    sentence = about_noise(noisy(MOST_NOISE * 1.5, **given))
    assert "the noise moves the last model 0.075 times as far" in sentence
    assert "1.5 times as far over all 400 parameters" in sentence
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
    assert about_noise(noisy(0.03, dimension=edge - 1)) is None
    sentence = about_noise(noisy(0.03, dimension=edge + 1))
    assert "runs of models with so many parameters above 0.02 ended near chance" in sentence
    assert "fewer trained parameters" in sentence
    assert about_noise(noisy(MOST_NOISE_OF_LARGE * 0.999, dimension=100_000)) is None


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


def about_clients(clients, cohort_size, rounds):
    """Return the warnings about a run without noise of so many clients."""
    figures = {"clients": clients, "cohort_size": cohort_size, "rounds_per_epoch": rounds}
    return [*about_cost(EpochEvent(0.0, 1.0, 1.0), epsilon=math.inf, delta=1e-9, **figures)]


@pytest.mark.parametrize(
    ("clients", "cohort_size", "rounds", "unasked"),
    [(100, 25, 3, None), (100, 24, 3, 28), (101, 25, 3, 26), (4, 3, 1, None), (8, 1, 5, 3), (7, 7, 1, None)],
)
def test_up_to_a_quarter_of_the_clients_may_stay_unasked(clients, cohort_size, rounds, unasked):
    found = [sentence for sentence in about_clients(clients, cohort_size, rounds) if "unasked" in sentence]
    assert [f"leaves {unasked} of {clients} clients" in sentence for sentence in found] == [True] * bool(
        unasked
    )


def test_a_plan_names_everything_that_speaks_against_it():
    plan = small_plan(clients=100, cohort_size=2, rounds_per_epoch=4, delta=0.01, noise_multiplier=3.0)
    noise, delta, unasked, cohort = misgivings(plan)
    assert "along any one direction" in noise
    assert "at least 1/N" in delta
    assert "leaves 92 of 100" in unasked
    assert "cohort_size is 2: each round releases the sum of two updates" in cohort
    (alone,) = about_clients(None, 1, None)
    assert "one client's update" in alone
    assert about_clients(None, 3, None) == about_clients(None, None, None) == []
    for norm in (1.0, None):
        assert misgivings(small_plan(clients=12, delta=0.5, noise_multiplier=0.0, l2_norm=norm)) == ()
    (epsilon,) = misgivings(small_plan(clients=12, delta=0.1 / 12, noise_multiplier=0.01))
    assert "above 20: no privacy is claimed" in epsilon
    assert len(misgivings(small_plan(clients=12, delta=0.11 / 12, noise_multiplier=0.01))) == 2
