"""Residuals: no false alarm on the law itself, and each departure from it found by the row that is named for it."""

import numpy as np
import pytest
from scipy.stats import binom, chi2, kstest

from audited_laws import banded_statement, named, noise, refuted, tree_statement
from fedmf.audit import Stated, residual, residuals
from fedmf.errors import SettingError

STATED = banded_statement(3, 2)
HONEST = 1000


@pytest.fixture(scope="module")
def honest():
    """The findings of 1000 honest audits of 3 runs each, by row: p-values corrected for the tests of the row."""
    rng = np.random.default_rng(0)
    found = [residuals(noise(STATED, rng, runs=3, dimension=8), STATED) for _ in range(HONEST)]
    assert {len(findings) for findings in found} == {len(residual.TESTS)}
    return {test: np.array([named(findings, test).observed for findings in found]) for test in residual.TESTS}


def most(level):
    """How many of the honest audits may fall below a level, one time in 10^5 more."""
    return binom.ppf(1 - 1e-5, HONEST, level)


def test_a_thousand_honest_audits_give_no_false_alarm_and_few_at_a_level_where_some_are_due(honest):
    overall = len(residual.TESTS) * np.min(list(honest.values()), axis=0)
    assert np.all(overall > residual.FALSE_ALARM)
    assert np.count_nonzero(overall <= 0.05) <= most(0.05)


@pytest.mark.parametrize("test", residual.TESTS)
def test_each_row_falls_below_a_level_as_often_as_it_says_or_less(honest, test):
    for level in (0.01, 0.1, 0.3):
        assert np.count_nonzero(honest[test] <= level) <= most(level)
    if test != residual.GRID:  # which allows for arithmetic of other pipelines, on purpose
        assert np.count_nonzero(honest[test] <= 0.3) >= 0.05 * HONEST  # and not for want of looking


def test_the_p_value_of_all_variances_is_uniform(honest):
    assert kstest(honest[residual.VARIANCE], "uniform").pvalue > 1e-3


def test_variances_are_those_of_a_slow_twin():
    releases = noise(STATED, np.random.default_rng(1), runs=4, dimension=5)
    strategy = np.eye(3) + 0.5 * np.eye(3, k=-1)
    total, by_coordinate = 0.0, [0.0] * 5
    for run, epoch, coordinate in np.ndindex(4, 2, 5):
        for value in strategy @ releases[run, epoch, :, coordinate] / 1.5:
            total += value**2
            by_coordinate[coordinate] += value**2
    found = residuals(releases, STATED)
    expected = 2 * min(chi2.cdf(total, 120), chi2.sf(total, 120))
    assert named(found, residual.VARIANCE).observed == pytest.approx(expected, rel=1e-9)
    expected = min(2 * min(chi2.cdf(each, 24), chi2.sf(each, 24)) for each in by_coordinate)
    assert named(found, residual.BY_COORDINATE).observed == pytest.approx(min(1, 5 * expected), rel=1e-9)


def test_repeated_rows_are_those_of_a_slow_twin():
    releases = noise(STATED, np.random.default_rng(2), runs=2, dimension=30)
    rows = STATED.whitened(releases).reshape(-1, 30)
    best = max(
        (abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b), i, j)
        for i, a in enumerate(rows)
        for j, b in enumerate(rows)
        if i < j
    )
    found = named(residuals(releases, STATED), residual.REPEATED)
    places = [(run, epoch, step) for run, epoch, step in np.ndindex(2, 2, 3)]
    words = [f"run {r + 1}, epoch {e + 1}, round {s + 1}" for r, e, s in places]
    assert found.where == f"{words[best[1]]} and {words[best[2]]}"
    assert found.tests == 12 * 11 // 2


def test_rows_are_compared_across_blocks_of_them(monkeypatch):
    releases = noise(STATED, np.random.default_rng(3), runs=3, dimension=30)
    whole = named(residuals(releases, STATED), residual.REPEATED)
    monkeypatch.setattr(residual, "_BLOCK", 4)
    assert named(residuals(releases, STATED), residual.REPEATED) == whole


def unwhitened(values):
    return np.stack(
        [
            np.stack([e.sigma * e.noising @ v for e, v in zip(STATED.epochs, run, strict=True)])
            for run in values
        ]
    )


def drawn(runs=50, dimension=64, seed=4):
    return np.random.default_rng(seed).normal(size=(runs, 2, 3, dimension))


def factor(values):
    return 0.958 * values


def round_without_noise(values):
    values[:, :, 1:] = 0
    return values


def one_row(values):
    values[:, :, 1:] = values[:, :, :1]
    return values


def bare_coordinate(values):
    values[..., 7] = 0
    return values


def bare_entry(values):
    values[:, 1, 2, 5] = 0
    return values


def quiet_run(values):
    values[17] *= 0.5
    return values


def repeated_epoch(values):
    values[:, 1] = values[:, 0]
    return values


def repeated_run(values):
    values[9] = values[3]
    return values


def row_of_another_place(values):
    values[40, 1, 2] = values[2, 0, 1]
    return values


def twins(values):
    values[..., 11] = values[..., 30]
    return values


def neighbours(values):
    return 0.98 * values + np.sqrt(1 - 0.98**2) * np.roll(values, 1, axis=-1)


def signs_of_its_own(values):
    """A row of the first epoch once more in the second, each entry with a sign of its own: no correlation is left."""
    signs = np.random.default_rng(5).choice([-1.0, 1.0], size=values[:, 1].shape)
    values[:, 1] = signs * values[:, 0]
    return values


def shifted(values):
    return values + 0.06


def uniform(values):
    return np.random.default_rng(6).uniform(-np.sqrt(3), np.sqrt(3), values.shape)


def outlier(values):
    values[0, 0, 0, 0] = 9.0
    return values


FAULTS = [
    (factor, residual.VARIANCE),
    (round_without_noise, residual.BY_ROUND),
    (one_row, residual.ROUNDS),
    (bare_coordinate, residual.BY_COORDINATE),
    (bare_entry, residual.BY_ENTRY),
    (quiet_run, residual.BY_RUN),
    (repeated_epoch, residual.EPOCHS),
    (repeated_run, residual.RUNS),
    (row_of_another_place, residual.REPEATED),
    (twins, residual.PAIRS),
    (neighbours, residual.COORDINATES),
    (signs_of_its_own, residual.MAGNITUDES),
    (shifted, residual.MEAN),
    (uniform, residual.TAILS),
    (outlier, residual.TAILS),
]


@pytest.mark.parametrize(("fault", "test"), FAULTS)
def test_each_departure_from_the_law_is_found_by_its_row(fault, test):
    releases = unwhitened(fault(drawn(dimension=64 if fault is not factor else 256)))
    for resolution in (0.0, 1e-4):  # float32 leaves far less
        found = residuals(releases, STATED, resolution=resolution)
        assert test in refuted(found), [finding.sentence for finding in found]


def test_pairs_of_rounds_are_those_of_one_epoch_or_of_two():
    found = residuals(unwhitened(repeated_epoch(drawn())), STATED)
    assert (named(found, residual.ROUNDS).tests, named(found, residual.EPOCHS).tests) == (6, 9)
    assert residual.ROUNDS not in refuted(found)


def test_a_row_that_returns_is_named_with_both_of_its_places():
    found = named(residuals(unwhitened(row_of_another_place(drawn())), STATED), residual.REPEATED)
    assert found.where == "run 3, epoch 1, round 2 and run 41, epoch 2, round 3"


def test_noise_that_is_not_correlated_as_stated_is_found_though_each_round_has_its_variance():
    """Independent rows of the right size in place of C^-1 Z."""
    releases = noise(STATED, np.random.default_rng(7), runs=50, dimension=64)
    sizes = np.linalg.norm(STATED.epochs[0].noising, axis=1) * 1.5
    independent = np.random.default_rng(8).normal(size=releases.shape) * sizes[:, None]
    np.testing.assert_allclose(independent.std(axis=(0, 1, 3)), releases.std(axis=(0, 1, 3)), rtol=0.05)
    assert residual.ROUNDS in refuted(residuals(independent, STATED))


def test_noise_of_a_tree_is_whitened_too():
    stated, _ = tree_statement(4)
    releases = noise(stated, np.random.default_rng(9), runs=50, dimension=64)
    assert refuted(residuals(releases, stated)) == set()
    assert residual.VARIANCE in refuted(residuals(0.958 * releases, stated))


def test_what_clients_are_known_to_have_sent_is_taken_away():
    releases = noise(STATED, np.random.default_rng(10), runs=20, dimension=12)
    known = np.random.default_rng(11).normal(size=(2, 3, 12))
    assert refuted(residuals(releases + known, STATED, known=known)) == set()
    assert refuted(residuals(releases + known, STATED)) != set()


def test_coordinates_of_which_nothing_is_known_are_left_out():
    releases = noise(STATED, np.random.default_rng(12), runs=20, dimension=12)
    releases[..., :4] += 5.0
    assert refuted(residuals(releases, STATED, coordinates=np.arange(4, 12))) == set()
    assert refuted(residuals(releases, STATED)) != set()


def test_a_value_that_float32_made_zero_is_no_alarm():
    releases = noise(STATED, np.random.default_rng(13), runs=20, dimension=12)
    releases[0, 0, 0, 0] = 0.0
    assert residual.TAILS in refuted(residuals(releases, STATED))
    assert refuted(residuals(releases, STATED, resolution=1e-6)) == set()


def test_wide_rows_are_compared_at_all_powers_of_two_a_block_of_noise_among_them():
    stated = Stated.of_strategy(np.eye(1), sigma=1.0, l2_norm=1.0)
    values = np.random.default_rng(14).normal(size=(1, 1, 1, 70_000))
    assert refuted(residuals(values, stated)) == set()
    values[..., 1 << 15 : 1 << 16] = values[..., : 1 << 15]  # one block of noise twice
    found = residuals(values, stated)
    assert named(found, residual.COORDINATES).where == "coordinates 32768 apart"
    assert residual.COORDINATES in refuted(found)


def test_a_single_run_of_one_round_and_coordinate_has_few_rows_and_no_error():
    stated = Stated.of_strategy(np.eye(1), sigma=1.0, l2_norm=1.0)
    found = residuals(np.array([[[[0.3]]]]), stated)
    assert {f.test for f in found} == {
        residual.VARIANCE, residual.BY_RUN, residual.BY_ROUND, residual.BY_COORDINATE, residual.BY_ENTRY, residual.SPREAD,
        residual.MEAN, residual.TAILS, residual.GRID,
    }  # fmt: skip
    assert refuted(found) == set()


def test_releases_that_cannot_be_looked_at_are_refused():
    with pytest.raises(SettingError, match="for one run add an axis"):
        residuals(np.zeros((2, 3, 4)), STATED)
    with pytest.raises(SettingError, match="not finite"):
        residuals(np.full((1, 2, 3, 4), np.inf), STATED)
    with pytest.raises(SettingError, match="false_alarm is 0"):
        residuals(np.zeros((1, 2, 3, 4)), STATED, false_alarm=0)
