"""The statement: dictionary and paragraph say the same, and hide nothing."""

import dataclasses
import json

import pytest

from fedmf.accounting import Ledger
from fedmf.checks import rounded_up
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
    run = plan(settings, adjacency=adjacency, accountant=accountant, delta=delta)
    return stated(run, epochs, **conduct)


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
