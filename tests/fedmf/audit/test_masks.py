"""Masks: read off sums exactly, no false alarm on the law, and each way to share one found by its test."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom

from audited_laws import dealt, masks as drawn, named, refuted
from fedmf.audit import mask_laws, masks, unmixed
from fedmf.errors import SettingError

HONEST = 1000
CLIENTS = dealt()
ENTRIES = 0.1 * 0.5 ** np.arange(4)


@pytest.fixture(scope="module")
def honest():
    """The p-values of 1000 honest audits of 4 runs each, corrected for the tests of their kind."""
    rng = np.random.default_rng(0)
    found = [mask_laws(drawn(rng, runs=4, n=2, dimension=32), 0.2) for _ in range(HONEST)]
    return {test: np.array([named(findings, test).observed for findings in found]) for test in masks.TESTS}


def test_a_thousand_honest_audits_give_no_false_alarm_and_few_at_a_level_where_some_are_due(honest):
    overall = len(masks.TESTS) * np.min(list(honest.values()), axis=0)
    assert np.all(overall > 1e-6)
    assert np.count_nonzero(overall <= 0.05) <= binom.ppf(1 - 1e-5, HONEST, 0.05)


@pytest.mark.parametrize("test", masks.TESTS)
def test_each_test_falls_below_a_level_as_often_as_it_states_or_less(honest, test):
    for level in (0.01, 0.1, 0.3):
        assert np.count_nonzero(honest[test] <= level) <= binom.ppf(1 - 1e-5, HONEST, level)
    assert np.count_nonzero(honest[test] <= 0.5) >= 0.02 * HONEST


def test_masks_are_read_off_a_sum_of_digits_for_every_subset_of_clients():
    shown = (np.arange(16) >> np.arange(4)[:, None]) & 1  # all 16 subsets, one a coordinate
    total = (shown * ENTRIES[:, None]).sum(axis=0)
    error = np.random.default_rng(1).uniform(-0.3, 0.3, 16) * ENTRIES[-1]
    found = unmixed(total + error, ENTRIES, tolerance=0.31 * ENTRIES[-1])
    np.testing.assert_array_equal(found, shown.astype(bool))


@pytest.mark.parametrize("wrong", [4.4, 0.4, -1, 16, np.nan])
def test_a_difference_that_is_no_sum_of_masked_vectors_shows_no_masks(wrong):
    assert unmixed(np.array([wrong, 0, 0, 0]) * ENTRIES[-1], ENTRIES, tolerance=0.1 * ENTRIES[-1]) is None


def test_entries_and_tolerances_that_tell_nothing_are_an_error():
    for entries, tolerance in ((ENTRIES, ENTRIES[-1]), (ENTRIES, np.nan), ([3.0, 1.0], 0.1)):
        with pytest.raises(SettingError, match="half of the last entry"):
            unmixed(np.zeros(4), entries, tolerance=tolerance)


def put(place, new):
    """Return a fault that puts `new(masks)` in a place of the masks."""

    def fault(found):
        found[place] = new(found)

    return fault


def one_of_a_client_in_all_epochs(found):
    for client in range(12):
        (first,), (second,) = (np.argwhere(CLIENTS[epoch] == client) for epoch in (0, 1))
        found[:, 1, second[0], second[1]] = found[:, 0, first[0], first[1]]


def one_epoch_of_others_at_other_places(found):
    """Each mask of the second epoch is one of the first, but of another client and from another round or place."""
    orders = (np.roll(np.arange(12), turn) for turn in range(1, 12))
    turned = next(order for order in orders if np.all(CLIENTS[0].ravel()[order] != CLIENTS[1].ravel()))
    found[:, 1] = found[:, 0].reshape(len(found), 12, -1)[:, turned].reshape(found[:, 1].shape)


def one_moved(found):
    for client in range(1, 4):
        found[:, :, :, client] = np.roll(found[:, :, :, 0], client, axis=-1)


def fixed_size(found):
    """13 of 64 coordinates: as close to 0.2 as can be."""
    return np.random.default_rng(3).random(found.shape).argsort(axis=-1) < 13


def more_than_stated(found):
    return found | (np.random.default_rng(4).random(found.shape) < 0.02)


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (put(np.s_[:, :, :, 3], lambda found: found[:, :, :, 2]), masks.CORRELATION),
        (put(np.s_[:, :, 2, 0], lambda found: found[:, :, 0, 1]), masks.CORRELATION),
        (put(np.s_[:, 1], lambda found: found[:, 0]), masks.CORRELATION),
        (put(np.s_[:, 0, 2, 1], lambda found: found[:, 0, 0, 1, ::-1]), masks.CORRELATION),
        (put(np.s_[:], lambda found: found[0]), masks.CORRELATION),
        (one_of_a_client_in_all_epochs, masks.CORRELATION),
        (one_epoch_of_others_at_other_places, masks.CORRELATION),
        (one_moved, masks.CORRELATION),
        (put(np.s_[:], fixed_size), masks.SHARE),
        (put(np.s_[:], more_than_stated), masks.SHARE),
        (put(np.s_[..., 5], lambda found: True), masks.SHARE),
    ],
)
def test_each_way_to_share_a_mask_is_found_by_its_test(fault, test):
    found = drawn(np.random.default_rng(5), runs=30)
    assert refuted(mask_laws(found, 0.2)) == set()
    fault(found)
    assert test in refuted(mask_laws(found, 0.2))


def test_masks_that_are_moved_otherwise_in_each_run_are_found_in_one_of_them():
    found = drawn(np.random.default_rng(5), runs=10, dimension=256)
    for run in range(len(found)):
        found[run, 1] = np.roll(found[run, 0], 5 + 2 * run, axis=-1)
    assert masks.CORRELATION in refuted(mask_laws(found, 0.2))


def test_a_mask_of_another_run_at_another_place_is_found():
    found = drawn(np.random.default_rng(5), runs=10, dimension=256)
    found[4, 1, 2, 0] = found[7, 0, 1, 3]
    row = named(mask_laws(found, 0.2), masks.CORRELATION)
    assert row.refutes
    assert row.where == "run 4 and a later one"


def test_masks_at_a_shift_are_counted_as_a_slow_twin_does():
    """All pairs of masks of a run, all shifts, forwards and backwards, by run and over the runs: the smallest p-value."""
    found = drawn(np.random.default_rng(9), gamma=0.4, runs=2, epochs=2, rounds=1, n=2, dimension=23)
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


@pytest.mark.parametrize(
    ("given", "gamma", "words"),
    [
        (np.zeros((1, 2, 3, 4)), 0.2, "must be 0 or 1"),
        (np.full((1, 2, 3, 4, 5), 0.5), 0.2, "must be 0 or 1"),
        (np.zeros((1, 2, 3, 4, 5)), 1.0, "keep_probability is 1"),
    ],
)
def test_masks_that_do_not_fit_are_an_error(given, gamma, words):
    with pytest.raises(SettingError, match=words):
        mask_laws(given, gamma)
