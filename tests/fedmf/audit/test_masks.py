"""Masks: read off sums exactly, no false alarm on the law, and each way to share one found by its test."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom

from fedmf.audit import mask_laws, masks, unmixed
from fedmf.errors import SettingError
from oracles import check_levels, named, refuted

RNG = np.random.default_rng(0)
CLIENTS = [RNG.permutation(12).reshape(3, 4) for _ in range(2)]  # of each epoch and round
ENTRIES = 0.1 * 0.5 ** np.arange(4)


def drawn(rng, gamma=0.2, runs=5, epochs=2, rounds=3, n=4, dimension=64):
    return rng.random((runs, epochs, rounds, n, dimension)) < gamma


def test_a_thousand_honest_audits_give_no_false_alarm_and_few_at_a_level_where_some_are_due():
    rng = np.random.default_rng(0)
    check_levels(
        masks.TESTS, lambda: mask_laws(drawn(rng, runs=4, n=2, dimension=32), 0.2), reached=(0.5, 0.02)
    )


def test_masks_are_read_off_a_sum_of_digits_for_every_subset_of_clients():
    shown = (np.arange(16) >> np.arange(4)[:, None]) & 1  # all 16 subsets, one a coordinate
    total = (shown * ENTRIES[:, None]).sum(axis=0)
    error = np.random.default_rng(1).uniform(-0.3, 0.3, 16) * ENTRIES[-1]
    found = unmixed(total + error, ENTRIES, tolerance=0.31 * ENTRIES[-1])
    np.testing.assert_array_equal(found, shown.astype(bool))
    for wrong in (4.4, 0.4, -1, 16, np.nan):  # a difference that is no sum of masked vectors shows none
        sums = np.array([wrong, 0, 0, 0]) * ENTRIES[-1]
        assert unmixed(sums, ENTRIES, tolerance=0.1 * ENTRIES[-1]) is None
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


def test_masks_that_are_moved_otherwise_in_each_run_and_one_of_another_run_at_another_place_are_found():
    found = drawn(np.random.default_rng(5), runs=10, dimension=256)
    moved = found.copy()
    for run in range(len(found)):
        moved[run, 1] = np.roll(found[run, 0], 5 + 2 * run, axis=-1)
    assert masks.CORRELATION in refuted(mask_laws(moved, 0.2))
    found[4, 1, 2, 0] = found[7, 0, 1, 3]
    row = named(mask_laws(found, 0.2), masks.CORRELATION)
    assert (row.refutes, row.where) == (True, "run 4 and a later one")


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


def test_masks_that_do_not_fit_are_an_error():
    for shape, fill, gamma, words in (
        ((1, 2, 3, 4), 0.0, 0.2, "must be 0 or 1"),
        ((1, 2, 3, 4, 5), 0.5, 0.2, "must be 0 or 1"),
        ((1, 2, 3, 4, 5), 0.0, 1.0, "keep_probability is 1"),
    ):
        with pytest.raises(SettingError, match=words):
            mask_laws(np.full(shape, fill), gamma)
