"""The optimum as deployed: what fewer buffers lose, and what rounding to float32 costs."""

import logging

import numpy as np
import pytest

from fedmf.choices import SCHEDULES
from fedmf.errors import SettingError
from fedmf.mechanisms import design, lower_bound, momentum, prefix_sum
from fedmf.mechanisms.families import optimal
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.schedules import rates
from fedmf.mechanisms.streams.recurrence import (
    RecurrentStream,
    StrategyForm,
    column_norms,
    rounded_with_cost,
    strategy_form,
    tables_of,
)
from workloads import falling


def test_fewer_buffers_lose_more():
    losses = [design("optimal", prefix_sum(200), buffers=r).root_loss for r in range(1, 6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > 1.01 * losses[-1]


def test_sensitivity_is_that_of_the_rounded_tables():
    """Unit columns in float64, but the float32 tables that are deployed have slightly longer ones."""
    mechanism = design("optimal", prefix_sum(300))
    _, C = mechanism.materialize()
    norms = np.linalg.norm(C, axis=0)
    assert 0 < norms.max() - 1 < 1e-5
    assert mechanism.sensitivity == pytest.approx(norms.max(), rel=1e-13)


def test_no_unit_column_survives_a_changed_table():
    """The control: a table off by a thousandth is seen in the sensitivity."""
    mechanism = design("optimal", prefix_sum(30))
    tables = mechanism.stream.tables.copy()
    tables[10, -1, -1] *= np.float32(0.999)
    changed = column_norms(strategy_form(tables), 30).max()
    assert changed > 1.0005


def test_scaled_strategies_cost_the_same():
    workload = momentum(20, 0.5)
    form = strategy_form(design("optimal", workload).stream.tables)
    doubled = StrategyForm(form.F, 2 * form.g, form.lam, 2 * form.c)
    plain, scaled = (
        rounded_with_cost(tables_of(form), workload),
        rounded_with_cost(tables_of(doubled), workload),
    )
    assert scaled.sensitivity == pytest.approx(2 * plain.sensitivity, rel=1e-6)
    np.testing.assert_allclose(scaled.per_round_error, plain.per_round_error, rtol=1e-6)
    noises = [
        fitted.sensitivity * RecurrentStream(20, fitted.tables).materialize_noising()
        for fitted in (plain, scaled)
    ]
    np.testing.assert_allclose(*noises, atol=1e-5)


@pytest.mark.parametrize(("rounds", "buffers"), [(10, 0), (10, -1), (10, 11), (100, 65), (1, 2)])
def test_senseless_numbers_of_buffers_are_refused(rounds, buffers):
    with pytest.raises(SettingError, match=f"buffers is {buffers}"):
        design("optimal", prefix_sum(rounds), buffers=buffers)


def test_missing_the_loss_is_said(monkeypatch, caplog):
    monkeypatch.setattr(optimal, "MOST_BUFFERS", 1)
    with caplog.at_level(logging.WARNING):
        fitted = optimal.fit(prefix_sum(64))
    assert "1 buffers leave the loss" in caplog.text
    assert fitted.tables.shape == (64, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beta", "name"),
    [(beta, name) for beta in (0.0, 0.5, 0.9, 0.99) for name in (*SCHEDULES, "steep")],
)
def test_long_epochs_are_certified_with_few_buffers(beta, name):
    workload = momentum(2000, beta, falling(2000, 1e-4) if name == "steep" else rates(name, 2000))
    mechanism = design("optimal", workload)
    assert fixed_point.certified(workload).upper ** 2 <= fixed_point.certified(workload).lower ** 2 * (
        1 + 1e-6
    )
    assert mechanism.root_loss**2 <= 1.0001 * lower_bound(mechanism.workload) ** 2
    assert mechanism.stream.buffers <= (6 if beta >= 0.9 else 8)


@pytest.mark.slow
def test_the_longest_epochs_take_at_most_eight_buffers():
    mechanism = design("optimal", prefix_sum(65536))
    assert fixed_point.certified(prefix_sum(65536)).upper == pytest.approx(1091.4083, rel=1e-6)
    assert mechanism.root_loss**2 <= 1.0001 * lower_bound(mechanism.workload) ** 2
    assert mechanism.stream.buffers <= 8
