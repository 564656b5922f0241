"""accountant=tight: the smaller of two bounds, chosen by name, for what it is proved for."""

import itertools
import math
import time

import numpy as np
import pytest

from fedmf.accounting import (
    EpochEvent,
    Ledger,
    calibrate_noise_multiplier,
    gaussian_epsilon,
    privacy_spent,
)
from fedmf.accounting.quadratic_variation import certified_gaussian_epsilon
from fedmf.accounting.tight import quadratic_variation_epsilon
from fedmf.errors import NotCoveredError, PrivacyBudgetExhausted, SettingError
from oracles import add, coordinate, power, remove

pytestmark = pytest.mark.long

PAPER = 0.0059351
SPARSE = EpochEvent(0.0860827, 0.01, PAPER)  # epsilon 2 over 16 epochs by Renyi divergence


def tight(event, epochs=16, delta=1e-5):
    return privacy_spent(event, epochs, delta=delta, accountant="tight")


def test_it_saves_what_was_published_for_the_papers_setting():
    found = tight(SPARSE)
    assert found.epsilon == found.epsilon_tight == pytest.approx(1.8428, abs=1e-4)
    assert found.epsilon_rdp == pytest.approx(2.0, abs=1e-4)
    assert found.accountant == "tight"


def test_the_renyi_accountant_stays_the_default_and_knows_nothing_of_it():
    by_default, by_name = privacy_spent(SPARSE, 16, delta=1e-5), tight(SPARSE)
    assert by_default.accountant == "rdp"
    assert by_default.epsilon_tight is None
    assert by_default.epsilon == by_default.epsilon_rdp == by_name.epsilon_rdp
    assert by_default.order == by_name.order


@pytest.mark.parametrize("gamma", [1e-200, 2.0**-32, 1e-3, 0.3, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("linf", [1e-9, PAPER, 0.4, 0.77, 1.0])
def test_it_is_never_above_the_renyi_bound_and_never_odd(gamma, linf):
    for z, epochs in itertools.product((1e-9, 1e-3, 0.5, 30.0, 1e11), (1, 10**6)):
        found = tight(EpochEvent(z, gamma, linf), epochs)
        assert 0 <= found.epsilon <= found.epsilon_rdp * (1 + 1e-12)
        assert found.epsilon_tight <= found.epsilon_rdp


def test_where_the_theorem_gives_nothing_usable_it_is_the_renyi_bound():
    for event in (EpochEvent(1e-200, 0.5, 1.0), EpochEvent(1e-4, 0.5, 1.0), EpochEvent(1e-150, 0.1, 1e-150)):
        found = tight(event, 3)
        assert found.epsilon == found.epsilon_rdp
    assert quadratic_variation_epsilon(SPARSE, 16, 1e-5) < 2
    assert tight(SPARSE, delta=5e-324).epsilon == privacy_spent(SPARSE, 16, delta=5e-324).epsilon
    assert tight(EpochEvent(0.0, 0.5, 1.0)).epsilon == math.inf
    assert tight(SPARSE, 0).epsilon == 0


def test_without_sparsification_it_is_the_exact_gaussian():
    found = tight(EpochEvent(5.0, 1.0, 0.3))
    assert found.epsilon == found.epsilon_tight == found.epsilon_exact == gaussian_epsilon(4 / 5, 1e-5)
    near = tight(EpochEvent(5.0 * (1 - 1e-9), 1 - 1e-9, 0.3)).epsilon
    assert near == pytest.approx(found.epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_it_is_above_the_curve_that_no_accountant_can_go_below(epsilon):
    """K coordinates at kappa_inf in each of E epochs are one profile among those allowed."""
    for gamma in (0.003, 0.1):
        kw = {"keep_probability": gamma, "linf_over_l2": 1 / 60, "epochs": 4, "delta": 1e-5}
        z = calibrate_noise_multiplier(epsilon=epsilon, accountant="tight", **kw)
        profile = power(coordinate((1 / 60 / z) ** 2, gamma), 4 * 3600, buckets=500)
        assert 1e-7 < add(profile, epsilon) <= 1e-5
        assert remove(profile, epsilon) <= 1e-5


@pytest.mark.parametrize(("gamma", "linf"), [(0.01, PAPER), (0.3, 0.05), (0.05, 0.9), (0.001, 0.3)])
def test_it_falls_with_noise_and_grows_with_epochs_and_with_the_keep_probability(gamma, linf):
    slack = 1 + 1e-4  # the search of the free numbers is a grid
    scale = gamma if linf < 0.01 else math.sqrt(gamma)
    noise = [tight(EpochEvent(scale * z, gamma, linf), 4).epsilon for z in np.geomspace(0.5, 50, 12)]
    epochs = [tight(EpochEvent(10 * scale, gamma, linf), n).epsilon for n in (1, 2, 3, 10, 30, 100)]
    kept = [tight(EpochEvent(5 * scale, g, linf), 4).epsilon for g in (gamma, 2 * gamma, 3 * gamma, 1.0)]
    assert all(after <= before * slack for before, after in itertools.pairwise(noise))
    for growing in (epochs, kept):
        assert all(before <= after * slack for before, after in itertools.pairwise(growing))


@pytest.mark.parametrize("gamma", [0.3, 0.01, 0.003, 1e-4])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0])
def test_calibration_meets_its_target_from_below_in_little_time(gamma, epsilon):
    wanted = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "keep_probability": gamma,
        "linf_over_l2": PAPER,
        "epochs": 16,
    }
    started = time.process_time()
    z = calibrate_noise_multiplier(**wanted, accountant="tight")
    assert time.process_time() - started < 2
    found = tight(EpochEvent(z, gamma, PAPER)).epsilon
    assert epsilon * (1 - 1e-4) <= found <= epsilon
    assert z <= calibrate_noise_multiplier(**wanted)
    if (gamma, epsilon) == (0.01, 2.0):  # seven per cent of noise are saved at the paper's setting
        assert z / calibrate_noise_multiplier(**wanted) == pytest.approx(0.930, abs=1e-3)


def test_the_ledger_starts_one_more_epoch_with_it():
    ledger = Ledger((SPARSE,) * 15)
    between = (tight(SPARSE).epsilon + 2.0) / 2
    assert ledger.check_next(SPARSE, between, delta=1e-5, accountant="tight").epsilon < between
    with pytest.raises(PrivacyBudgetExhausted):
        ledger.check_next(SPARSE, between, delta=1e-5)


def test_what_it_is_not_proved_for_is_refused():
    other = EpochEvent(0.09, 0.01, PAPER)
    with pytest.raises(NotCoveredError, match="2 different kinds of epochs"):
        Ledger((SPARSE, other)).spent(delta=1e-5, accountant="tight")
    with pytest.raises(NotCoveredError, match="zero_out only"):
        privacy_spent(SPARSE, 1, delta=1e-5, adjacency="replace", accountant="tight")
    with pytest.raises(SettingError, match="delta"):
        privacy_spent(SPARSE, 1, delta=1.5, accountant="tight")
    plain = (EpochEvent(5.0, 1.0, 1.0), EpochEvent(4.0, 1.0, 1.0))  # one Gaussian
    found = Ledger(plain).spent(delta=1e-5, accountant="tight")
    assert found.epsilon == found.epsilon_exact


def test_the_three_formulas_each_win_somewhere():
    """A at moderate lam, B where masks hide nothing, C where rare large masks dominate: none is dead code."""
    assert quadratic_variation_epsilon(EpochEvent(1.0, 0.999, 1.0), 1, 1e-5) == pytest.approx(
        gaussian_epsilon(1.0, 1e-5), rel=1e-6
    )
    only_c = EpochEvent(0.0167, 0.001, PAPER)
    assert quadratic_variation_epsilon(only_c, 16, 1e-5) < 0.97


def test_what_is_returned_is_what_was_certified_and_never_the_float_of_the_search(monkeypatch):
    monkeypatch.setattr("fedmf.accounting.tight.certified_epsilon", lambda *_: 1.75)
    quadratic_variation_epsilon.cache_clear()
    assert quadratic_variation_epsilon(SPARSE, 16, 1e-5) == 1.75  # the search itself comes to 1.8428
    monkeypatch.setattr("fedmf.accounting.tight.certified_epsilon", lambda *_: math.inf)
    quadratic_variation_epsilon.cache_clear()
    formula_b = certified_gaussian_epsilon(16 / SPARSE.noise_multiplier**2, 1e-5)
    assert quadratic_variation_epsilon(SPARSE, 16, 1e-5) == pytest.approx(formula_b)
    quadratic_variation_epsilon.cache_clear()
