"""Faults of noise that has the right variance everywhere: rows that return moved, few digits, one coordinate, tiles."""

import numpy as np
import pytest
from scipy.stats import kstest

from audited_laws import banded_statement, named, noise, refuted
from fedmf.audit import Stated, residual, residuals
from fedmf.audit.grid import grid_tests
from fedmf.audit.shifts import closest_shift, own_reversal, own_shift

FLAT = Stated.of_strategy(np.eye(3), sigma=2.0, l2_norm=1.0, epochs=2)
BANDED = banded_statement(3, 2)


def drawn(stated=FLAT, seed=0, runs=50, d=64):
    return noise(stated, np.random.default_rng(seed), runs=runs, dimension=d)


def rolled(values):
    values[:, 0, 2] = np.roll(values[:, 0, 0], 7, axis=-1)


def backwards(values):
    values[:, 0, 2] = values[:, 0, 0, ::-1]


def palindromes(values):
    values[:, 0, 2, 40:] = values[:, 0, 2, :24][:, ::-1]


def overlapping(values):
    values[:, 1, 1, :48] = values[:, 0, 0, 16:]


def of_another_run(values):
    values[31, 1, 1] = np.roll(values[4, 0, 2], 5)


def with_signs(values):
    values[:, :, 2] = values[:, :, 0] * np.random.default_rng(5).choice([-1, 1], values[:, :, 0].shape)


def reused_in_a_coordinate(values):
    values[:, :, 2, 0] = values[:, :, 0, 0]


def half_and_half(values):
    values[..., ::2] *= 0.95
    values[..., 1::2] *= (2 - 0.95**2) ** 0.5


def float16(values):
    values[:] = values.astype(np.float16)


def bfloat16(values):
    bits = values.astype(np.float32).view(np.uint32)
    values[:] = ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


# Faults of one coordinate over the rounds, or within a row, are dependences of few numbers too.
ALSO = {reused_in_a_coordinate: {residual.DIRECTIONS}}


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (rolled, residual.SHIFTED),
        (backwards, residual.SHIFTED),
        (palindromes, residual.SHIFTED),
        (overlapping, residual.SHIFTED),
        (of_another_run, residual.SHIFTED),
        (with_signs, residual.MAGNITUDES),
        (reused_in_a_coordinate, residual.IN_COORDINATE),
        (float16, residual.GRID),
        (bfloat16, residual.GRID),
    ],
)
def test_a_fault_that_leaves_every_variance_right_is_found_by_the_row_named_for_it(fault, test):
    values = drawn()
    assert refuted(residuals(values, FLAT)) == set()
    fault(values)
    also = ALSO.get(fault, set())
    assert refuted(residuals(values, FLAT)) == {test} | also


def test_scales_that_differ_by_coordinate_and_cancel_are_found_by_their_spread():
    values = drawn(d=256)
    half_and_half(values)
    assert refuted(residuals(values, FLAT)) == {residual.SPREAD}


def test_a_row_that_is_tiled_is_found_whatever_the_period():
    stated = Stated.of_strategy(np.eye(1), sigma=1.0, l2_norm=1.0)
    for d, period in ((40_000, 20_000), (40_000, 13_000), (1024, 100)):
        values = drawn(stated, runs=2, d=d)
        assert refuted(residuals(values, stated)) == set()
        values[..., :] = values[..., np.arange(d) % period]
        assert residual.SHIFTED in refuted(residuals(values, stated))


def test_a_rolled_row_is_named_with_its_shift_and_places():
    values = drawn()
    of_another_run(values)
    found = named(residuals(values, FLAT), residual.SHIFTED)
    assert found.where == "run 5, epoch 1, round 3 and run 32, epoch 2, round 2, moved by 5 coordinates"


@pytest.mark.parametrize("d", [8, 9, 64])
def test_the_bound_on_a_row_and_itself_is_never_below_how_often_that_happens(d):
    rows = np.random.default_rng(1).normal(size=(50_000, d))
    for shift in range(1, d // 2 + 1, max(1, d // 8)):
        cosines = np.abs((rows * np.roll(rows, shift, axis=1)).sum(axis=1) / (rows * rows).sum(axis=1))
        for share in (0.5, 0.1, 1e-2, 1e-3):
            bound = own_shift(np.quantile(cosines, [1 - share]), np.array([shift]), d)[0]
            assert bound >= 0.9 * share
            assert bound <= 40 * share


@pytest.mark.parametrize(("d", "shift"), [(8, 2), (64, 7), (60, 20)])
def test_the_bound_on_a_row_and_itself_is_the_printed_formula_at_its_best_z(d, shift):
    z, cosine = np.linspace(1e-4, 0.9999, 20_000), 0.8
    common = np.gcd(d, shift)
    formula = 2 * (1 - 2 * cosine * z + z * z) ** (d / 2) * (1 - z ** (d / common)) ** -common
    bound = own_shift(np.array([cosine]), [shift], d)[0]
    assert bound == pytest.approx(formula.min(), rel=0.02)


def test_a_row_that_is_tiled_is_named_among_others_and_one_of_zeros_is_no_error(monkeypatch):
    rows = np.random.default_rng(6).normal(size=(6, 60))
    rows[3, 20:] = rows[3, np.arange(20, 60) % 20]
    rows[5] = 0
    found = closest_shift(rows)
    assert found[2:] == ("moved by 20 coordinates", (3, 3))
    monkeypatch.setattr("fedmf.audit.shifts._NUMBERS", 60)  # block by block
    assert closest_shift(rows) == found


def test_a_pair_of_correlated_coordinates_is_found_from_two_hundred_runs_and_not_from_fifty():
    """What docs/audit.md says of a correlation of .3."""
    for runs, expected in ((50, set()), (200, {residual.PAIRS})):
        values = drawn(runs=runs, d=256)
        values[..., 42] = 0.3 * values[..., 5] + (1 - 0.3**2) ** 0.5 * values[..., 42]
        assert refuted(residuals(values, FLAT)) == expected


def test_the_closest_shift_is_that_of_a_slow_twin():
    rows = np.random.default_rng(2).normal(size=(5, 30))
    rows[3] += 0.8 * np.roll(rows[1], 11)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    best = max(
        (abs(float(np.roll(units[a], k) @ units[b])), a, b, k)
        for a in range(5)
        for b in range(a + 1, 5)
        for k in range(30)
    )
    p_value, tests, shift, pair = closest_shift(rows)
    assert (pair, shift) == (best[1:3], f"moved by {best[3]} coordinates")
    assert tests == 2 * 10 * 30 + 5 * (15 + 30)
    assert p_value == pytest.approx(float(residual.exact.correlation(np.array(best[0]), 30)), rel=1e-6)


def test_the_closest_row_read_backwards_is_that_of_a_slow_twin():
    rows = np.random.default_rng(2).normal(size=(5, 30))
    rows[3] += 2.0 * np.roll(rows[1][::-1], 11)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    best = max(
        (abs(sum(units[a][(k - j) % 30] * units[b][j] for j in range(30))), a, b, k)
        for a in range(5)
        for b in range(a + 1, 5)
        for k in range(30)
    )
    p_value, _, shift, pair = closest_shift(rows)
    assert (pair, shift) == (best[1:3], f"read backwards, moved by {best[3]} coordinates")
    assert p_value == pytest.approx(float(residual.exact.correlation(np.array(best[0]), 30)), rel=1e-6)


@pytest.mark.parametrize("d", [2, 8, 9])
def test_the_law_of_a_row_and_itself_read_backwards_is_exact(d):
    rows = np.random.default_rng(1).normal(size=(20_000, d))
    for shift in range(1 if d == 2 else 0, d):
        turned = rows[:, (shift - np.arange(d)) % d]
        cosines = (rows * turned).sum(axis=1) / (rows * rows).sum(axis=1)
        assert kstest(own_reversal(cosines, shift, d), "uniform").pvalue > 1e-4
    assert own_reversal(np.array([1.0]), 0, 2) == [
        1
    ]  # both coordinates stay where they are, whatever the row is


def test_float32_numbers_are_no_rounded_noise_whatever_they_were_added_to():
    for offset in (0.0, 100.0):
        releases = (drawn(BANDED, 3) + offset).astype(np.float32)
        found = named(residuals(releases, BANDED, known=offset), residual.GRID)
        assert not found.refutes


def test_numbers_known_to_no_better_than_their_last_place_are_not_counted():
    values = np.random.default_rng(4).normal(size=1000).astype(np.float16).astype(np.float64)
    assert min(p for p, _ in grid_tests("values", values, 0.0)) < 1e-100
    assert [p for p, _ in grid_tests("values", values, 1e-2)] == [1.0, 1.0]
