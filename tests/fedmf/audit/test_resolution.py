"""Values known to an error only: whatever the error is, no honest stream is accused for it, and faults are still found."""

import numpy as np
import pytest
from scipy.stats import binom

from audited_laws import banded_statement, named, noise, refuted
from fedmf.audit import Stated, exact, grid, residual, residuals, resolution, shifts

pytestmark = pytest.mark.long

STATED = banded_statement(3, 2)
SIGMA = 1.5
HONEST = 100


def rounded(values, step, rng):
    """Rounded to multiples of twice the error, as a number of few digits is."""
    return 2 * step * np.rint(values / (2 * step))


def towards_zero(values, step, rng):
    return values - np.sign(values) * np.minimum(step, np.abs(values))


def away_from_zero(values, step, rng):
    return values + np.sign(values) * step


def the_same(values, step, rng):
    """An error of what is known, which is the same in all runs, epochs and rounds."""
    return values + step * np.sign(np.sin(1 + np.arange(values.shape[-1])))


def upwards(values, step, rng):
    return values + step


def at_random(values, step, rng):
    return values + rng.uniform(-step, step, values.shape)


def backwards(values, step, rng):
    """Every row towards its own reversal, every second row towards the one before."""
    drawn = np.sign(values[..., ::-1]) * step
    drawn[:, :, 1::2] = np.sign(values[:, :, :1]) * step
    return values + drawn


ERRORS = (rounded, towards_zero, away_from_zero, the_same, upwards, at_random, backwards)


@pytest.mark.parametrize("wrong", ERRORS)
@pytest.mark.parametrize("step", [0.05])
def test_honest_streams_with_errors_within_the_resolution_are_accused_no_more_often_than_stated(wrong, step):
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(HONEST):
        releases = wrong(noise(STATED, rng, runs=6, dimension=16), step * SIGMA, rng)
        alarms += bool(refuted(residuals(releases, STATED, resolution=step, false_alarm=0.05)))
    assert alarms <= binom.ppf(1 - 1e-5, HONEST, 0.05)


@pytest.mark.parametrize("wrong", ERRORS)
@pytest.mark.parametrize("step", [1e-6, 1e-3, 0.05])
def test_the_p_value_of_every_row_is_the_largest_that_values_within_the_resolution_have(wrong, step):
    rng = np.random.default_rng(1)
    for runs, dimension in ((4, 5), (30, 12), (3, 64)):
        releases = noise(STATED, rng, runs=runs, dimension=dimension)
        if runs == 30:
            releases[0, 0, 0, 0] = 7 * SIGMA  # so that the largest value is what its row tells
        exactly = residuals(wrong(releases, step * SIGMA, rng), STATED)
        for finding in residuals(releases, STATED, resolution=step):
            if finding.test != residual.GRID:  # counts values of its own choice
                assert finding.observed >= named(exactly, finding.test).observed * (1 - 1e-6), finding.test


@pytest.mark.parametrize("dimension", [64, 1000])
def test_a_stream_is_not_accused_for_a_smallest_value_that_is_below_the_resolution(dimension):
    stated = Stated.of_strategy(np.eye(6), sigma=2.0, l2_norm=1.0)
    releases = noise(stated, np.random.default_rng(2), runs=50, dimension=dimension)
    assert refuted(residuals(releases, stated, resolution=2e-3)) == set()


def test_an_error_far_below_the_resolution_of_every_row_changes_none():
    releases = noise(STATED, np.random.default_rng(3), runs=20, dimension=12)
    exactly = residuals(releases, STATED)
    for finding in residuals(releases, STATED, resolution=1e-12):
        assert finding.observed == pytest.approx(named(exactly, finding.test).observed, rel=1e-5)


def test_the_resolution_is_that_of_releases_and_grows_in_the_values_that_are_made_of_them():
    """A banded C of -1 beside 1 makes of two errors one of twice their size: a mean of them, not of one."""
    stated = Stated.of_strategy(np.eye(2) - np.eye(2, k=-1), sigma=1.0, l2_norm=1.0)
    releases = noise(stated, np.random.default_rng(4), runs=300, dimension=40)
    releases += 0.05 * np.array([[-1.0], [1.0]])
    assert residual.MEAN in refuted(residuals(releases, stated))
    assert residual.MEAN in refuted(residuals(releases, stated, resolution=0.02))
    assert residual.MEAN not in refuted(residuals(releases, stated, resolution=0.05))


@pytest.mark.parametrize("bits", grid.BITS)
def test_values_rounded_to_the_coarsest_error_that_is_counted_are_no_grid(bits):
    """Multiples of a 32nd of a unit: of four million of them more lie near a unit than the limit allows."""
    values = np.random.default_rng(5).uniform(1, 2, 4_000_000)
    error = 2.0 ** (1 - bits) / 64
    values = 2 * error * np.rint(values / (2 * error))
    (p_value,) = (p for p, name in grid.grid_tests("values", values, error) if f" {bits} " in name)
    assert p_value > 1e-3
    unit = 64 * error
    coarse = unit * np.rint(values / unit)
    (p_value,) = (p for p, name in grid.grid_tests("values", coarse, error) if f" {bits} " in name)
    assert p_value < 1e-100


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (np.tile(np.random.default_rng(7).normal(size=8), 8), "moved by"),
        (np.sin(1 + np.abs(np.arange(64) - 31.5) ** 1.5), "read backwards"),
    ],
)
def test_a_row_that_is_like_itself_is_so_only_as_far_as_it_is_known(row, words):
    rng = np.random.default_rng(8)
    row = (row + 0.3 * rng.normal(size=64))[None]
    error = 0.1
    p_value, _, name, _ = shifts.closest_shift(row, error)
    assert name.startswith(words)
    for _ in range(20):
        exactly, _, name, _ = shifts.closest_shift(row + rng.choice([-error, error], size=row.shape))
        assert name.startswith(words)
        assert p_value >= exactly


def test_pieces_are_exact_without_an_error_and_bound_what_lies_within_it():
    values = np.abs(np.random.default_rng(6).normal(size=50))
    assert resolution.chi_square(values @ values, 50, 0.0) == exact.chi_square(values @ values, 50)
    assert resolution.turned([3.0, 0.0], 4, 0.0).tolist() == [0.0, 0.0]
    assert resolution.turned([3.0, 0.0], 4, 0.1).tolist() == [pytest.approx(2**0.5 * 0.2 / 3), 1.0]
    assert resolution.sides(np.array([0.5, 1.0, 1.04, -1.2]), 1.0, 0.1).tolist() == [-1, 0, 0, 1]
    assert exact.least(0.01, 50, 0.01) >= exact.least(0.02, 50)
    assert exact.largest(2.5, 50, 0.1) >= max(exact.largest(2.4, 50), exact.largest(2.6, 50))
    assert shifts.own_reversal(np.array(0.3), 1, 20, 0.1) == pytest.approx(
        float(shifts.own_reversal(np.array(0.2), 1, 20))
    )
