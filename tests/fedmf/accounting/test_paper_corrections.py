"""Where the printed paper slips (Chen et al. 2024): each slip recomputed, and shown not to be ours."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from experiments.reproduce.cited_numbers import printed_sum as printed
from fedmf.accounting import EpochEvent, privacy_spent, rdp, rdp_per_coordinate
from oracles import ORACLE
from plans import small_plan


def test_the_sum_starts_at_two_and_as_printed_it_does_not_vanish_with_growing_noise():
    order, t, gamma = 5, 0.0164, 0.01
    ours = rdp_per_coordinate(order, t, gamma)
    assert math.log(printed(order, t, gamma, 2)) / (order - 1) == pytest.approx(ours, rel=1e-9, abs=0)
    assert (math.log(printed(order, t, gamma, 1)) / (order - 1)) / ours == pytest.approx(
        2837, rel=1e-2, abs=0
    )
    assert math.log(printed(order, 1e-12, gamma, 1)) > 1e-3


def test_the_last_display_has_the_order_where_the_count_belongs():
    order, t, gamma = 5, 0.3, 0.1
    slip = math.log(printed(order, t, gamma, 2, exponent=order)) / (order - 1)
    assert slip / rdp_per_coordinate(order, t, gamma) == pytest.approx(24.04, abs=0.01)


def normal(x, mean):
    return math.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)


def second_order(first, second, gamma):
    """Renyi divergence of order 2 of one sparsified coordinate with means `first` and `second`, sigma = 1."""

    def integrand(x):
        p = (1 - gamma) * normal(x, 0) + gamma * normal(x, first)
        return p * p / ((1 - gamma) * normal(x, 0) + gamma * normal(x, second))

    return math.log(quad(integrand, -12, 14, epsabs=0, epsrel=1e-12)[0])


def test_the_theorem_is_false_for_rows_that_differ_by_delta_2():
    """K = 4, d = 7: g = (1,1,1,1,0,0,0) against (.5,.5,.5,.5,1,1,1), both norms and the distance within 2."""
    gamma = 0.01
    bound = rdp(EpochEvent(0.5, gamma, 0.5), 2.0)  # kappa_2 = 2, kappa_inf = sigma = 1
    true = 4 * second_order(1.0, 0.5, gamma) + 3 * second_order(0.0, 1.0, gamma)
    assert bound == pytest.approx(6.873e-4, rel=1e-4, abs=0)
    assert true == pytest.approx(7.556e-4, rel=1e-4, abs=0)
    assert true > bound


def test_the_gaussian_curve_has_its_factor_one_half():
    sigma, order = 1.7, 3.0
    exact = quad(
        lambda x: normal(x, 1 / sigma) ** order * normal(x, 0) ** (1 - order), -15, 15, epsrel=1e-12
    )[0]
    assert rdp(EpochEvent(sigma, 1.0, 1.0), order) == pytest.approx(
        math.log(exact) / (order - 1), rel=1e-9, abs=0
    )
    assert rdp(EpochEvent(sigma, 1.0, 1.0), order) == order / (2 * sigma * sigma)


def test_the_error_of_the_mean_grows_with_the_dimension_and_the_mean_is_unbiased():
    rng, n, d, gamma, sigma, draws = np.random.default_rng(5), 3, 40, 0.2, 0.3, 4000
    masked = (rng.random((draws, n, d)) < gamma) / math.sqrt(d)
    noisy = masked.sum(axis=1) + sigma * rng.standard_normal((draws, d))
    errors = noisy / (gamma * n) - 1 / math.sqrt(d)
    expected = d * sigma**2 / (n * gamma) ** 2 + (1 - gamma) / (n * gamma)
    measured = (errors**2).sum(axis=1)
    # Seeded; six standard errors leave a false alarm of 2e-9.
    assert abs(measured.mean() - expected) < 6 * measured.std() / math.sqrt(draws)
    assert abs(measured.mean() - (sigma**2 / (n * gamma) ** 2 + (1 - gamma) / (n * gamma))) > 0.5  # without d
    assert np.abs(errors.mean(axis=0)).max() < 6 * errors.std(axis=0).max() / math.sqrt(draws)


def test_noise_goes_on_the_sum_also_where_less_than_one_client_is_kept():
    plan = small_plan(clients=80, cohort_size=20, keep_probability=0.01, noise_multiplier=0.5)
    assert plan.mean_noise_std == pytest.approx(0.5 / 0.2)  # noise on the mean would be gamma n = 0.2 of it


@pytest.mark.parametrize("row", ORACLE["shared_mask_and_replacement"])
def test_shared_and_public_masks_void_the_amplification(row):
    """A mask known from a second client's large update is a mixture of "kept" and "not kept" seen in the clear."""
    order, t, gamma = row["alpha"], row["kappa_over_sigma"] ** 2, row["gamma"]
    shared = math.log(1 - gamma + gamma * math.exp(order * (order - 1) * t / 2)) / (order - 1)
    assert shared == pytest.approx(row["shared_limit"], rel=1e-9, abs=0)
    assert order * t / 2 == pytest.approx(row["public_mask"])
    covered = rdp_per_coordinate(order, t, gamma)
    times = {(2, 0.01): 99, (4, 0.01): 1482}.get((order, gamma))
    if times:
        assert shared / covered == pytest.approx(times, rel=6e-3, abs=0)
    assert shared > 9 * covered


def test_a_k_fold_loss_profile_may_report_too_little():
    """Worst for Renyi is not worst for hockey-sticks: one coordinate says epsilon 0, an even split 15."""
    gamma, delta, total = 1e-3, 1.2e-3, 100.0

    def hockey_stick(epsilon, means):
        """delta of coordinates with these means, by Monte Carlo over none or one of them kept (gamma^2 neglected)."""
        rng = np.random.default_rng(3)
        found = 0.0
        for kept in range(len(means)):
            x = rng.standard_normal((200_000, len(means)))
            x[:, kept] += means[kept]
            ratio = np.prod(
                [1 - gamma + gamma * np.exp(m * x[:, j] - m * m / 2) for j, m in enumerate(means)], axis=0
            )
            found += gamma * np.maximum(0.0, 1 - math.exp(epsilon) / ratio).mean()
        return found

    assert hockey_stick(0.0, [math.sqrt(total)]) < delta
    half = math.sqrt(total / 2)
    assert hockey_stick(14.5, [half, half]) > delta > hockey_stick(16.0, [half, half])
    assert privacy_spent(EpochEvent(0.1, gamma, 1.0), 1, delta=delta).epsilon > 15.3
