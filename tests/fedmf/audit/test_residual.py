"""Residuals: no false alarm on the law itself, and each departure from it found by the test that is named for it."""

import numpy as np
import pytest
from scipy.stats import binom, chi2, kstest

from fedmf.audit import Stated, residual, residuals
from fedmf.audit.finding import cosine_p
from fedmf.errors import SettingError
from oracles import banded_statement, check_levels, noise, refuted, tree_statement

STATED = banded_statement(3, 2)


def test_a_thousand_honest_audits_give_no_false_alarm_and_few_at_a_level_where_some_are_due():
    rng = np.random.default_rng(0)
    check_levels(
        residual.TESTS,
        lambda: residuals(noise(STATED, rng, runs=20, dimension=2), STATED),
        reached=(0.3, 0.05),
        bounds=(residual.GRID, residual.DIRECTIONS),
        overall=residual.FALSE_ALARM,
    )


def test_variances_are_those_of_a_slow_twin():
    releases = noise(STATED, np.random.default_rng(1), runs=4, dimension=5)
    strategy, by_coordinate = np.eye(3) + 0.5 * np.eye(3, k=-1), [0.0] * 5
    for run, epoch, coordinate in np.ndindex(4, 2, 5):
        for value in strategy @ releases[run, epoch, :, coordinate] / 1.5:
            by_coordinate[coordinate] += value**2
    p_values = {
        where: (p_value, tests) for p_value, where, tests in residual._variance(STATED.whitened(releases))
    }
    total = sum(by_coordinate)
    assert p_values[""][0] == pytest.approx(2 * min(chi2.cdf(total, 120), chi2.sf(total, 120)), rel=1e-9)
    expected = min(2 * min(chi2.cdf(each, 24), chi2.sf(each, 24)) for each in by_coordinate)
    ((found, tests),) = [each for where, each in p_values.items() if where.startswith("coordinate")]
    assert (found, tests) == (pytest.approx(expected, rel=1e-9), 5)


def test_the_largest_cosine_of_rows_at_all_shifts_is_that_of_a_slow_twin():
    releases = noise(STATED, np.random.default_rng(2), runs=1, dimension=30)
    rows = STATED.whitened(releases).reshape(-1, 30)
    best = max(
        abs(a @ np.roll(b[::way], shift)) / np.linalg.norm(a) / np.linalg.norm(b)
        for i, a in enumerate(rows)
        for b in rows[i + 1 :]
        for shift in range(30)
        for way in (1, -1)
    )
    found = next(residual._repeated(rows))
    assert found[0] == pytest.approx(float(cosine_p(best, 30)), rel=1e-6)
    assert found[2] == 6 * 5 * 30


def drawn(runs=60, dimension=64, seed=4):
    return np.random.default_rng(seed).normal(size=(runs, 2, 3, dimension))


def put(place, new):
    """Return a fault that puts `new(values)` in a place of the values."""

    def fault(values):
        values[place] = new(values)
        return values

    return fault


def permuted_with_signs(values):
    order = np.random.default_rng(5).permutation(64)
    return values[:, 0, 1, order] * np.random.default_rng(6).choice([-1.0, 1.0], 64)


def one_direction(values):
    lost = np.random.default_rng(7).normal(size=64)
    return values - (values @ lost)[..., None] * lost / (lost @ lost)


ALL = np.s_[:]
FAULTS = {
    "factor": (residual.VARIANCE, put(ALL, lambda v: 0.958 * v)),
    "rounds without noise": (residual.VARIANCE, put(np.s_[:, :, 1:], lambda v: 0)),
    "a coordinate without": (residual.VARIANCE, put(np.s_[..., 7], lambda v: 0)),
    "an entry without": (residual.VARIANCE, put(np.s_[:, 1, 2, 5], lambda v: 0)),
    "a quiet run": (residual.VARIANCE, put(17, lambda v: v[17] / 2)),
    "scales that cancel": (
        residual.VARIANCE,
        put(ALL, lambda v: v * np.resize([0.9, 1.19**0.5], v.shape[-1])),
    ),
    "one row": (residual.CORRELATION, put(np.s_[:, :, 1:], lambda v: v[:, :, :1])),
    "a repeated epoch": (residual.CORRELATION, put(np.s_[:, 1], lambda v: v[:, 0])),
    "a repeated run": (residual.CORRELATION, put(9, lambda v: v[3])),
    "twins": (residual.CORRELATION, put(np.s_[..., 11], lambda v: v[..., 30])),
    "a row permuted with signs": (residual.CORRELATION, put(np.s_[:, 1, 2], permuted_with_signs)),
    "a row of another place": (residual.REPEATED, put((40, 1, 2), lambda v: v[2, 0, 1])),
    "a row moved": (residual.REPEATED, put(np.s_[:, 1, 2], lambda v: np.roll(v[:, 0, 1], 11, axis=-1))),
    "a row backwards": (residual.REPEATED, put(np.s_[:, 1, 2], lambda v: v[:, 0, 1, ::-1])),
    "tiles": (residual.REPEATED, put(np.s_[..., 32:], lambda v: v[..., :32])),
    "one direction": (residual.DIRECTIONS, one_direction),
    "uniform": (residual.TAILS, lambda v: np.random.default_rng(6).uniform(-(3**0.5), 3**0.5, v.shape)),
    "an outlier": (residual.TAILS, put((0, 0, 0, 0), lambda v: 9.0)),
}


def unwhitened(values):
    runs = [[e.sigma * e.noising @ v for e, v in zip(STATED.epochs, run, strict=True)] for run in values]
    return np.array(runs)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_departure_from_the_law_is_found_by_its_test(fault):
    test, broken = FAULTS[fault]
    assert refuted(residuals(unwhitened(drawn()), STATED)) == set()
    assert test in refuted(residuals(unwhitened(broken(drawn())), STATED))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_noise_of_few_bits_is_found_and_float32_is_not_few(dtype):
    stated = Stated.of_strategy(np.eye(3), sigma=1, l2_norm=1, epochs=2)
    found = residuals(drawn().astype(dtype).astype(float), stated)
    assert refuted(found) == ({residual.GRID} if dtype is np.float16 else set())


def test_eigenvalues_of_honest_matrices_are_seldom_as_small_as_their_bound_states():
    rng = np.random.default_rng(8)
    found = np.array(
        [[p for p, _, _ in residual._directions(rng.normal(size=(20, 1, 1, 3)))] for _ in range(2000)]
    )
    for level in (0.01, 0.1, 0.3):
        assert np.all(np.count_nonzero(found <= level, axis=0) <= binom.ppf(1 - 1e-5, 2000, level))
    assert kstest(found[:, 0], "uniform").statistic < 0.9  # a bound that is reached at times


def test_the_stated_correlation_is_tested_though_each_round_has_its_variance_also_of_a_tree():
    independent = np.random.default_rng(9).normal(size=(50, 2, 3, 64))
    sizes = np.array([np.linalg.norm(epoch.noising, axis=1) * epoch.sigma for epoch in STATED.epochs])
    assert residual.CORRELATION in refuted(residuals(independent * sizes[..., None], STATED))
    stated, _ = tree_statement(4)
    rng = np.random.default_rng(10)
    assert refuted(residuals(noise(stated, rng, runs=30, dimension=64), stated)) == set()
    wrong = Stated.of_strategy(np.eye(4), sigma=1.0, l2_norm=1.0)
    assert residual.CORRELATION in refuted(residuals(noise(stated, rng, runs=30, dimension=64), wrong))


def test_what_clients_are_known_to_have_sent_is_taken_away_and_values_that_overflow_refute():
    releases = noise(STATED, np.random.default_rng(11), runs=20, dimension=16)
    sums = np.random.default_rng(12).normal(0, 3, (2, 3, 16))
    assert refuted(residuals(releases + sums, STATED, known=sums)) == set()
    assert refuted(residuals(releases + sums, STATED)) != set()
    releases[0, 0, 0, 0] = 1e308
    assert residual.VARIANCE in refuted(residuals(releases, STATED))


@pytest.mark.parametrize(
    ("releases", "given", "words"),
    [
        (np.zeros((2, 3, 4)), {}, "must be \\(runs, 2 epochs, 3 rounds, d\\)"),
        (np.zeros((1, 3, 2, 4)), {}, "2 epochs, 3 rounds"),
        (np.full((1, 2, 3, 4), np.nan), {}, "not finite"),
        (np.zeros((1, 2, 3, 4)), {"false_alarm": 0}, "false_alarm"),
    ],
)
def test_releases_that_do_not_fit_are_an_error(releases, given, words):
    with pytest.raises(SettingError, match=words):
        residuals(releases, STATED, **given)
