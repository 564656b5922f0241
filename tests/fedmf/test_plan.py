import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedmf.accounting import EpochEvent, Ledger, privacy_spent
from fedmf.checks import rounded_up
from fedmf.errors import PrivacyBudgetExhausted, SettingError
from fedmf.mechanisms import design, of_run, prefix_sum, restarted
from fedmf.plan import Compression, PrivacyTarget, make_bounds, make_plan
from plans import small_plan, stated


@pytest.mark.parametrize("family", ["independent", "sqrt_toeplitz", "optimal", "binary_tree", "blt"])
@pytest.mark.parametrize("value_type", ["float32", "int8"])
def test_sigma_is_the_multiplier_times_the_largest_column_norm_times_the_radius(family, value_type):
    plan = small_plan(family=family, l2_norm=0.7, noise_multiplier=1.3, value_type=value_type)
    radius = 0.7 * (1.002 if value_type == "int8" else 1)
    for epoch in range(2):
        _, encoder = plan.factorization.epochs[epoch].materialize()
        columns = np.linalg.norm(encoder, axis=0).max()
        assert plan.sigma_in(epoch) == pytest.approx(1.3 * columns * radius, rel=1e-6)
    assert stated(plan).sigma_by_epoch == (plan.sigma_in(0), plan.sigma_in(1))
    assert plan.sigma == max(plan.sigma_in(0), plan.sigma_in(1))
    if family == "blt":  # its sensitivity is another in every epoch: that of the first would be seen
        assert plan.sigma_in(0) > 1.01 * plan.sigma_in(1)
    if family in ("sqrt_toeplitz", "binary_tree"):
        assert columns > 1.2  # leaving the sensitivity out would be seen


def test_what_is_accounted_is_what_is_enforced():
    plan = small_plan(keep_probability=0.3, l2_norm=0.7, linf_norm=0.1, noise_multiplier=1.3)
    assert plan.epoch_event == EpochEvent(1.3, 0.3, 0.1 / 0.7)
    assert plan.epoch_event.ratio == pytest.approx(49)
    found = privacy_spent(EpochEvent(1.3, 0.3, 0.1 / 0.7), 2, delta=1e-5, precision=plan.precision)
    assert plan.spent() == found
    rounded = small_plan(keep_probability=0.3, l2_norm=0.7, linf_norm=0.1, value_type="int8")
    assert rounded.epoch_event.linf_over_l2 == pytest.approx(0.1 / (0.7 * 1.002))
    own = rounded.client_plan
    assert (own.bounds, own.keep_probability, own.seed) == (rounded.bounds, 0.3, rounded.seed)
    assert (own.bounds.l2_norm, own.bounds.linf_norm, own.rotation.padded) == (0.7, 0.1, 64)
    assert rounded.rotation is own.rotation  # its signs are drawn once


def test_linf_bound_is_the_formula_with_rotation_and_the_l2_bound_without():
    rotated = small_plan(dimension=650, clients=200, cohort_size=64, rounds_per_epoch=3)
    assert rotated.bounds.linf_norm == pytest.approx(math.sqrt(2 * math.log(1024 * 64) / 1024))
    assert small_plan(rotation="identity", l2_norm=0.7).bounds.linf_norm == 0.7
    for beyond in (5.0, math.inf):
        plan = small_plan(linf_norm=beyond, l2_norm=0.7)
        assert (plan.bounds.linf_norm, plan.linf_over_l2) == (0.7, 1.0)


@pytest.mark.parametrize(("rounds", "epochs"), [(2, 2), (4, 3)])
def test_a_factorization_for_another_number_of_rounds_or_epochs_is_refused(rounds, epochs):
    wrong = restarted(design("optimal", prefix_sum(rounds)), epochs)
    with pytest.raises(SettingError, match=rf"{epochs} epochs of {rounds} rounds.*has 2 epochs of 4"):
        replace(small_plan(), factorization=wrong)


@pytest.mark.parametrize("wrong", [
    {"l2_norm": None, "linf_norm": 0.1}, {"l2_norm": 0.0, "linf_norm": None}, {"l2_norm": 1e-30, "linf_norm": None},
    {"l2_norm": float("nan"), "linf_norm": None}, {"l2_norm": 1.0, "linf_norm": -1.0},
])  # fmt: skip
def test_bounds_that_bound_nothing_are_refused(wrong):
    with pytest.raises(SettingError, match=r"^l2_norm|^linf_norm"):
        make_bounds(**wrong, dimension=10, cohort_size=2, compression=Compression(0.5))


def test_int8_needs_bounds_and_noise_needs_an_l2_bound():
    with pytest.raises(SettingError, match="int8"):
        small_plan(l2_norm=None, noise_multiplier=0, value_type="int8")
    with pytest.raises(SettingError, match="l2_norm=None leaves"):
        small_plan(l2_norm=None)


@pytest.mark.parametrize("wrong", [
    {}, {"epsilon": 1.0, "noise_multiplier": 1.0}, {"epsilon": 0.0}, {"noise_multiplier": -1.0},
    {"epsilon": 1.0, "adjacency": "remove"}, {"epsilon": 1.0, "max_epsilon": 0.0}, {"epsilon": 1.0, "geometry": "l1"},
    {"noise_multiplier": 1e-101},
])  # fmt: skip
def test_impossible_privacy_targets_are_refused(wrong):
    with pytest.raises(
        SettingError,
        match=r"^(max_)?epsilon|^noise_multiplier|^adjacency|^geometry is 'l1'; it must be one of l2, linf",
    ):
        PrivacyTarget(delta=1e-5, **wrong)


def test_none_is_no_value_of_a_setting_that_needs_one():
    for name, make in (
        ("delta", partial(PrivacyTarget, delta=None, epsilon=1.0)),
        ("adjacency", partial(PrivacyTarget, delta=1e-5, epsilon=1.0, adjacency=None)),
        ("keep_probability", partial(Compression, None)),
    ):
        with pytest.raises(SettingError, match=f"{name} is None; it must"):
            make()


def test_one_factorization_is_restarted_every_epoch():
    plan = small_plan()
    same = ("dimension", "participation", "compression", "bounds", "privacy", "seed")
    given = {name: getattr(plan, name) for name in same}
    alone = make_plan(**given, factorization=design("optimal", prefix_sum(4)))
    assert alone.factorization.is_restart_of_one
    assert alone.factorization.workloads == of_run(4, 2)
    assert not plan.factorization.is_restart_of_one


def test_epsilon_is_the_same_whatever_the_noise_is_fitted_to():
    """Columns of C are unit and epochs independent for every workload: the accountant needs to know neither."""
    base = small_plan(epochs=4)
    event, spent = base.epoch_event, base.spent()
    for momentum, family in ((0.9, "optimal"), (0.0, "independent"), (0.5, "blt")):
        other = small_plan(epochs=4, momentum=momentum, family=family)
        assert other.epoch_event == event
        assert other.spent().epsilon - 2 * other.precision == pytest.approx(
            spent.epsilon - 2 * base.precision, rel=1e-8
        )


def test_affordable_epochs_are_those_that_may_begin():
    plan = small_plan(epochs=5)
    assert plan.affordable_epochs == 5
    for affordable in (1, 3):
        short = replace(plan, privacy=replace(plan.privacy, max_epsilon=plan.spent(affordable).epsilon))
        ledger = Ledger()
        for _ in range(affordable):
            ledger = short.start_epoch(ledger)
        with pytest.raises(PrivacyBudgetExhausted):
            short.start_epoch(ledger)
        assert short.affordable_epochs == affordable
    with pytest.raises(PrivacyBudgetExhausted, match=r"from 0 to inf.* with max_epsilon=null"):
        small_plan(noise_multiplier=0.0, max_epsilon=1e9).start_epoch(Ledger())


KINDS = [("zero_out", "rdp"), ("replace", "rdp"), ("zero_out", "tight")]


@pytest.mark.parametrize(("adjacency", "accountant"), KINDS)
def test_a_plan_calibrates_reports_and_limits_under_its_own_adjacency_and_accountant(adjacency, accountant):
    """An epsilon under another relation, or of another bound, would be a smaller or larger number with this name."""
    target, sparse = (
        {"adjacency": adjacency, "accountant": accountant},
        {"keep_probability": 0.1, "linf_norm": 0.05},
    )
    assert small_plan(
        **target, **sparse, epsilon=5.0, noise_multiplier=None
    ).spent().epsilon == pytest.approx(5, rel=1e-4)
    sparse["noise_multiplier"] = 0.5  # where the three numbers differ
    plan = small_plan(**target, **sparse)
    event, ledger = plan.epoch_event, Ledger((plan.epoch_event,))
    others = [privacy_spent(event, 2, delta=1e-5, adjacency=kind[0], accountant=kind[1]) for kind in KINDS]
    assert len({other.epsilon for other in others}) == 3
    once, twice = (
        privacy_spent(event, epochs, delta=1e-5, precision=plan.precision, **target) for epochs in (1, 2)
    )
    assert (plan.spent(), plan.spent(1), plan.spent_on(ledger)) == (twice, once, once)
    assert ledger.spent(delta=1e-5, **target).epsilon < once.epsilon  # of real numbers
    enough = small_plan(**target, **sparse, max_epsilon=twice.epsilon * (1 + 1e-9))
    assert len(enough.start_epoch(ledger).entries) == 2
    said = f"from {rounded_up(once.epsilon)} to {rounded_up(twice.epsilon)}"
    with pytest.raises(PrivacyBudgetExhausted, match=said):
        small_plan(**target, **sparse, max_epsilon=twice.epsilon * (1 - 1e-6)).start_epoch(ledger)


def test_an_epoch_that_differs_by_rounding_is_recorded_as_the_one_before_and_any_other_as_it_is():
    plan = small_plan()
    again = replace(plan, noise_multiplier=plan.noise_multiplier * (1 + 1e-12))
    ledger = again.start_epoch(plan.start_epoch(Ledger()))
    assert ledger.entries == (plan.epoch_event,) * 2
    for factor in (1 + 1e-6, 1 - 1e-7):  # the last digit of a calibration: less noise is never stated as more
        other = replace(plan, noise_multiplier=plan.noise_multiplier * factor)
        assert other.start_epoch(ledger).entries[-1] == other.epoch_event
