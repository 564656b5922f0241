"""Residuals and masks: no false alarm on the law itself, and each departure from it found by the test that is named for it.

Faults of the product are put into it in tests/audit; here are the departures that one part of a test alone would see.
"""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom, chi2

from fedmf.audit import Stated, mask_laws, masks, residual, residuals, unmixed
from fedmf.audit.finding import cosine_p
from fedmf.errors import SettingError
from oracles import banded_statement, named, noise, refuted, tree_statement

STATED = banded_statement(3, 2)
ENTRIES = 0.1 * 0.5 ** np.arange(4)
HONEST = 1000


def bits(rng, gamma=0.2, runs=5, epochs=2, rounds=3, n=4, dimension=64):
    return rng.random((runs, epochs, rounds, n, dimension)) < gamma


@pytest.mark.parametrize(
    ("tests", "audit", "reached", "bounds"),
    [
        (
            residual.TESTS,
            lambda rng: residuals(noise(STATED, rng, runs=20, dimension=2), STATED),
            (0.3, 0.05),
            {residual.GRID, residual.DIRECTIONS},
        ),
        (masks.TESTS, lambda rng: mask_laws(bits(rng, runs=4, n=2, dimension=32), 0.2), (0.5, 0.02), set()),
    ],
    ids=["residuals", "masks"],
)
def test_a_thousand_honest_audits_give_no_false_alarm_and_few_at_a_level_where_some_are_due(
    tests, audit, reached, bounds
):
    """A test may fall below a level as often as that states, one time in 10^5 more; all but bounds reach a level at times."""
    rng = np.random.default_rng(0)
    found = [audit(rng) for _ in range(HONEST)]
    assert {len(findings) for findings in found} == {len(tests)}
    observed = {test: np.array([named(findings, test).observed for findings in found]) for test in tests}
    together = len(tests) * np.min(list(observed.values()), axis=0)
    assert np.all(together > residual.FALSE_ALARM)
    levels = [(level, one) for level in (0.01, 0.1, 0.3) for one in observed.values()]
    for level, values in [(0.05, together), *levels]:
        assert np.count_nonzero(values <= level) <= binom.ppf(1 - 1e-5, HONEST, level)
    level, share = reached
    for test in set(tests) - bounds:
        assert np.count_nonzero(observed[test] <= level) >= share * HONEST


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
    rows = STATED.whitened(noise(STATED, np.random.default_rng(2), runs=1, dimension=30)).reshape(-1, 30)
    best = max(
        abs(a @ np.roll(b[::way], shift)) / np.linalg.norm(a) / np.linalg.norm(b)
        for a, b in combinations(rows, 2)
        for shift in range(30)
        for way in (1, -1)
    )
    found = next(residual._repeated(rows))
    assert found[0] == pytest.approx(float(cosine_p(best, 30)), rel=1e-6)
    assert found[2] == 6 * 5 * 30


def test_masks_at_a_shift_are_counted_as_a_slow_twin_does():
    """All pairs of masks of a run, all shifts, forwards and backwards, by run and over the runs: the smallest p-value."""
    found = bits(np.random.default_rng(9), gamma=0.4, runs=2, epochs=2, rounds=1, n=2, dimension=23)
    found[:, 0, 0, 1] = np.roll(found[:, 1, 0, 0], 3, axis=-1)
    rows, p_values = found.reshape(2, 4, 23), []
    for one, other in combinations(range(4), 2):
        for shift, backwards in product(range(23), (False, True)):
            partner = [(shift - j if backwards else j + shift) % 23 for j in range(23)]
            counts = [int((rows[run, one] & rows[run, other][partner]).sum()) for run in range(2)]
            for count, size in (*((count, 23) for count in counts), (sum(counts), 46)):
                p_values.append(2 * min(binom.cdf(count, size, 0.16), binom.sf(count - 1, size, 0.16)))
    parts = [part for part in masks._pairs(found.astype(float), 0.4) if part[1].startswith("mask")]
    assert sum(part[2] for part in parts) == len(p_values) == 6 * 46 * 3
    assert min(parts)[0] == pytest.approx(min(p_values), rel=1e-9)


def put(place, new):
    """Return a fault that puts `new(values)` in a place of the values."""

    def fault(values):
        values[place] = new(values)
        return values

    return fault


def unwhitened(values):
    runs = [[e.sigma * e.noising @ v for e, v in zip(STATED.epochs, run, strict=True)] for run in values]
    return np.array(runs)


def uniform(values):
    return np.random.default_rng(3).random(values.shape)


def moved(found):
    return np.array([np.roll(masks_of[0], 5 + 2 * run, axis=-1) for run, masks_of in enumerate(found)])


ALL = np.s_[:]
OF_NOISE = {
    "factor": (residual.VARIANCE, put(ALL, lambda v: 0.958 * v)),
    "a coordinate without": (residual.VARIANCE, put(np.s_[..., 7], lambda v: 0)),
    "an entry without": (residual.VARIANCE, put(np.s_[:, 1, 2, 5], lambda v: 0)),
    "a quiet run": (residual.VARIANCE, put(17, lambda v: v[17] / 2)),
    "a repeated epoch": (residual.CORRELATION, put(np.s_[:, 1], lambda v: v[:, 0])),
    "a repeated run": (residual.CORRELATION, put(9, lambda v: v[3])),
    "twins": (residual.CORRELATION, put(np.s_[..., 11], lambda v: v[..., 30])),
    "a row of another place": (residual.REPEATED, put((40, 1, 2), lambda v: v[2, 0, 1])),
    "a row backwards": (residual.REPEATED, put(np.s_[:, 1, 2], lambda v: v[:, 0, 1, ::-1])),
    "tiles": (residual.REPEATED, put(np.s_[..., 32:], lambda v: v[..., :32])),
    "one direction": (residual.DIRECTIONS, lambda v: v - v.mean(axis=-1, keepdims=True)),
    "uniform": (residual.TAILS, lambda v: 12**0.5 * (uniform(v) - 0.5)),
    "an outlier": (residual.TAILS, put((0, 0, 0, 0), lambda v: 9.0)),
    "few bits": (residual.GRID, None),
}


@pytest.mark.parametrize("fault", OF_NOISE)
def test_each_departure_from_the_law_of_the_noise_is_found_by_its_test(fault):
    test, broken = OF_NOISE[fault]
    drawn, stated = np.random.default_rng(4).normal(size=(60, 2, 3, 64)), STATED
    if broken is None:
        stated = Stated.of_strategy(np.eye(3), sigma=1, l2_norm=1, epochs=2)
        assert refuted(residuals(drawn.astype(np.float32).astype(float), stated)) == set()
        assert refuted(residuals(drawn.astype(np.float16).astype(float), stated)) == {test}
    else:
        assert refuted(residuals(unwhitened(drawn), stated)) == set()
        assert test in refuted(residuals(unwhitened(broken(drawn)), stated))


OF_MASKS = {
    "of another client": (masks.CORRELATION, put(np.s_[:, :, :, 3], lambda found: found[:, :, :, 2])),
    "of another round": (masks.CORRELATION, put(np.s_[:, :, 2, 0], lambda found: found[:, :, 0, 1])),
    "of another epoch": (masks.CORRELATION, put(np.s_[:, 1], lambda found: found[:, 0])),
    "backwards": (masks.CORRELATION, put(np.s_[:, 0, 2, 1], lambda found: found[:, 0, 0, 1, ::-1])),
    "of another run": (masks.CORRELATION, put(ALL, lambda found: found[0])),
    "moved": (masks.CORRELATION, put(np.s_[:, :, :, 1], lambda v: np.roll(v[:, :, :, 0], 1, axis=-1))),
    "moved by another step in each run": (masks.CORRELATION, put(np.s_[:, 1], moved)),
    "of another run at another place": (
        masks.CORRELATION,
        put((4, 1, 2, 0), lambda found: found[7, 0, 1, 3]),
    ),
    "51 of 256 coordinates, always": (masks.SHARE, put(ALL, lambda v: uniform(v).argsort(axis=-1) < 51)),
    "more than stated": (masks.SHARE, put(ALL, lambda found: found | (uniform(found) < 0.02))),
    "one coordinate always": (masks.SHARE, put(np.s_[..., 5], lambda found: True)),
}


@pytest.mark.parametrize("fault", OF_MASKS)
def test_each_way_to_share_a_mask_is_found_by_its_test(fault):
    test, broken = OF_MASKS[fault]
    found = bits(np.random.default_rng(5), runs=10, dimension=256)
    assert refuted(mask_laws(found, 0.2)) == set()
    assert test in refuted(mask_laws(broken(found), 0.2))


def test_masks_are_read_off_a_sum_of_digits_for_every_subset_of_clients():
    shown = (np.arange(16) >> np.arange(4)[:, None]) & 1  # all 16 subsets, one a coordinate
    total = (shown * ENTRIES[:, None]).sum(axis=0)
    error = np.random.default_rng(1).uniform(-0.3, 0.3, 16) * ENTRIES[-1]
    found = unmixed(total + error, ENTRIES, tolerance=0.31 * ENTRIES[-1])
    np.testing.assert_array_equal(found, shown.astype(bool))
    for wrong in (4.4, 0.4, -1, 16, np.nan):  # a difference that is no sum of masked vectors shows none
        assert unmixed(np.array([wrong, 0, 0, 0]) * ENTRIES[-1], ENTRIES, tolerance=0.1 * ENTRIES[-1]) is None


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
    for value in (1e308, np.nan, np.inf):
        releases[0, 0, 0, 0] = value
        assert residual.VARIANCE in refuted(residuals(releases, STATED))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: residuals(np.zeros((2, 3, 4)), STATED), "must be \\(runs, 2 epochs, 3 rounds, d\\)"),
        (lambda: residuals(np.zeros((1, 2, 3, 4)), STATED, false_alarm=0), "false_alarm"),
        (lambda: mask_laws(np.full((1, 2, 3, 4, 5), 0.5), 0.2), "must be 0 or 1"),
        (lambda: mask_laws(np.zeros((1, 2, 3, 4, 5)), 1.0), "keep_probability is 1"),
        (lambda: unmixed(np.zeros(4), ENTRIES, tolerance=ENTRIES[-1]), "half of the last entry"),
        (lambda: unmixed(np.zeros(4), [3.0, 1.0], tolerance=0.1), "half of the last entry"),
    ],
)
def test_what_does_not_fit_is_an_error(call, words):
    with pytest.raises(SettingError, match=words):
        call()
