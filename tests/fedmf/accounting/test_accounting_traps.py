"""The known ways to get this accounting wrong, each with the test that catches it."""

import math

import numpy as np
import pytest

from fedmf.accounting import (
    EpochEvent,
    Ledger,
    privacy_spent,
    rdp,
    rdp_per_coordinate,
)
from fedmf.accounting.conversion import GRID, best_order
from fedmf.mechanisms.streams.recurrence import RecurrentStream, StrategyForm, tables_of
from oracles import ORACLE


def asymmetric_strategy(rng, rounds, scale=1.0):
    """A stream whose lower-triangular C has very different row and column norms."""
    form = StrategyForm(
        F=rng.uniform(0.1, 0.4, (rounds, 2, 2)),
        g=scale * rng.uniform(0.2, 1.0, (rounds, 2)),
        lam=rng.uniform(0.2, 1.0, (rounds, 2)) * np.linspace(1.0, 3.0, rounds)[:, None],
        c=scale * rng.uniform(0.5, 1.5, rounds),
    )
    return RecurrentStream(rounds, tables_of(form))


def exact_divergence(stream, order, sigma):
    """Renyi divergence of A SUM + B Z at gamma = 1 if one client of norm 1 comes in its worst round."""
    decoder = np.tril(np.ones((stream.rounds, stream.rounds))) @ stream.materialize_noising()
    covariance = sigma**2 * decoder @ decoder.T
    shifts = np.tril(np.ones((stream.rounds, stream.rounds)))
    return max(order / 2 * shift @ np.linalg.solve(covariance, shift) for shift in shifts.T)


@pytest.mark.parametrize("order", [2, 3.5, 5])
def test_double_count_or_wrong_start_of_the_sum_epsilon_vanishes_as_sigma_grows(order):
    gamma = 0.01
    for z in (1e3, 1e6):
        # F - 1 = binom(a, 2) gamma^2 t + O(t^2), whatever K is.
        assert rdp(EpochEvent(z, gamma, 0.01), order) == pytest.approx(
            order / 2 * gamma**2 / z**2, rel=1e-4, abs=0
        )


def test_cancellation_at_tiny_keep_probability_and_signal():
    rows = [
        row for row in ORACLE["rdp_epoch"] if row["gamma"] == 1e-4 and row["kappainf"] / row["sigma"] < 2e-4
    ]
    assert len(rows) == 2
    for row in rows:
        event = EpochEvent(row["sigma"] / row["kappa2"], row["gamma"], row["kappainf"] / row["kappa2"])
        assert rdp(event, row["alpha"]) == pytest.approx(float(row["floor"]), rel=1e-9, abs=0)


@pytest.mark.parametrize("scale", [1.0, 2.0, 0.01])
def test_squared_or_forgotten_column_norm_scaling_b_c_and_sigma_changes_nothing(scale):
    """z = sigma/c: (B/2, 2C, 2 sigma) leaves epsilon and the law of the output as they were."""
    stream = asymmetric_strategy(np.random.default_rng(0), 6, scale)
    c = stream.sensitivity
    noise = c * stream.materialize_noising()
    plain = asymmetric_strategy(np.random.default_rng(0), 6)
    np.testing.assert_allclose(noise, plain.sensitivity * plain.materialize_noising(), rtol=1e-5)
    sigma = 1.3 * scale
    claimed = rdp(EpochEvent(sigma / c, 1.0, 1.0), 4.0)
    assert claimed == pytest.approx(exact_divergence(stream, 4.0, sigma), rel=1e-6, abs=0)


def test_row_norms_instead_of_column_norms_an_asymmetric_c():
    """The exact divergence of the release, over the worst round of one client, is that of the column norm."""
    stream = asymmetric_strategy(np.random.default_rng(1), 5)
    c = stream.sensitivity
    exact = exact_divergence(stream, 4.0, sigma=1.3)
    assert rdp(EpochEvent(1.3 / c, 1.0, 1.0), 4.0) == pytest.approx(exact, rel=1e-6, abs=0)
    rows = np.linalg.norm(stream.materialize_strategy(), axis=1).max()
    assert rdp(EpochEvent(1.3 / rows, 1.0, 1.0), 4.0) != pytest.approx(exact, rel=0.01, abs=0)


def test_k_below_one_is_clamped():
    event = EpochEvent(0.5, 0.5, 1.0)
    assert event.ratio == 1.0
    assert rdp(event, 2.0) == rdp_per_coordinate(2.0, 4.0, 0.5) > 0
    just_below = EpochEvent(0.5, 0.5, math.nextafter(1.0, 0.0))
    assert just_below.ratio >= 1
    assert rdp(just_below, 2.0) == pytest.approx(rdp(event, 2.0), rel=1e-12, abs=0)


def test_epoch_count_a_partial_epoch_counts_whole():
    event = EpochEvent(0.05, 0.01, 0.006)
    stopped_in_the_third = Ledger((event,) * 2).record(event)
    assert stopped_in_the_third.spent(delta=1e-5).epsilon == privacy_spent(event, 3, delta=1e-5).epsilon


def test_not_a_number_at_a_high_order_is_never_the_minimum():
    event = EpochEvent(0.1, 1e-3, 1e-3)  # K = 10^6
    curve = [rdp(event, order) for order in GRID]
    assert not np.isnan(curve).any()
    assert (np.diff(curve) >= 0).all()

    def broken(order):
        return math.nan if order > 30 or order < 2 else rdp(event, order)

    epsilon, order = best_order(broken, 1e-5)
    assert math.isfinite(epsilon)
    assert 2 <= order <= 30
    assert best_order(lambda _: math.nan, 1e-5) == (math.inf, None)
