"""Masks: read off sums exactly, no false alarm on the law, and each way to share one found by its row."""

from itertools import combinations, product

import numpy as np
import pytest
from scipy.stats import binom

from audited_laws import dealt, masks as drawn, named, refuted
from fedmf.audit import digits, mask_laws, masks, unmixed
from fedmf.errors import SettingError

HONEST = 1000
CLIENTS = dealt()


@pytest.fixture(scope="module")
def honest():
    """The p-values of 1000 honest audits of 4 runs each, corrected for the tests of each row."""
    rng = np.random.default_rng(0)
    found = [mask_laws(drawn(rng, runs=4, n=2, dimension=32), 0.2, clients=dealt(n=2)) for _ in range(HONEST)]
    return {test: np.array([named(findings, test).observed for findings in found]) for test in masks.TESTS}


def test_a_thousand_honest_audits_give_no_false_alarm_and_few_at_a_level_where_some_are_due(honest):
    overall = len(masks.TESTS) * np.min(list(honest.values()), axis=0)
    assert np.all(overall > 1e-6)
    assert np.count_nonzero(overall <= 0.05) <= binom.ppf(1 - 1e-5, HONEST, 0.05)


@pytest.mark.parametrize("test", masks.TESTS)
def test_each_row_falls_below_a_level_as_often_as_it_says_or_less(honest, test):
    for level in (0.01, 0.1, 0.3):
        assert np.count_nonzero(honest[test] <= level) <= binom.ppf(1 - 1e-5, HONEST, level)
    # Of short masks counts are few, and moved ones are many tests: what none of them can reach is lost.
    least = 0.02 if test == masks.SHIFTED else 0.05
    assert np.count_nonzero(honest[test] <= 0.5) >= least * HONEST


def test_masks_are_read_off_a_sum_of_digits_for_every_subset_of_clients():
    entries = digits(4, l2_norm=1.0, linf_norm=0.1, dimension=16)
    assert np.linalg.norm(np.full(16, entries[0])) <= 1.0
    assert entries[0] <= 0.1
    shown = (np.arange(16) >> np.arange(4)[:, None]) & 1  # all 16 subsets, one a coordinate
    total = (shown * entries[:, None]).sum(axis=0)
    rng = np.random.default_rng(1)
    error = rng.uniform(-0.3, 0.3, 16) * entries[-1]
    np.testing.assert_array_equal(
        unmixed(total + error, entries, tolerance=0.31 * entries[-1]), shown.astype(bool)
    )


def test_a_difference_that_is_no_sum_of_masked_vectors_shows_no_masks():
    entries = digits(3, l2_norm=1.0, linf_norm=None, dimension=4)
    for wrong in (
        entries[0] + 0.4 * entries[-1],
        entries[0] - 0.15 * entries[-1],
        -entries[-1],
        2 * entries[0],
        np.nan,
    ):
        assert unmixed(np.array([wrong, 0, 0, 0]), entries, tolerance=0.1 * entries[-1]) is None
    with pytest.raises(SettingError, match="below half of the smallest entry"):
        unmixed(np.zeros(4), entries, tolerance=entries[-1])


def test_masks_that_both_kept_are_counted_as_a_slow_twin_does():
    found = drawn(np.random.default_rng(2), gamma=0.4, runs=2, n=2, dimension=10)
    both = sum(
        bool(found[run, epoch, step, 0, j] and found[run, epoch, step, 1, j])
        for run, epoch, step, j in np.ndindex(2, 2, 3, 10)
    )
    expected = 2 * min(binom.cdf(both, 120, 0.16), binom.sf(both - 1, 120, 0.16))
    row = named(mask_laws(found, 0.4, clients=dealt(n=2)), masks.CLIENTS)
    assert row.observed == pytest.approx(min(1.0, expected), rel=1e-9)


def one_of_two_clients(found):
    found[:, :, :, 3] = found[:, :, :, 2]


def one_of_rounds(found):
    found[:, :, 2, 0] = found[:, :, 0, 1]


def one_of_a_client_in_all_epochs(found):
    for client in range(12):
        (first,), (second,) = (np.argwhere(CLIENTS[epoch] == client) for epoch in (0, 1))
        found[:, 1, second[0], second[1]] = found[:, 0, first[0], first[1]]


def one_of_a_place_in_all_epochs(found):
    found[:, 1] = found[:, 0]


def one_epoch_of_others_at_other_places(found):
    """Each mask of the second epoch is one of the first, but of another client and from another round or place."""
    first = found[:, 0].reshape(len(found), 12, -1)
    theirs = CLIENTS[0].ravel()
    turned = next(
        order
        for turn in range(1, 12)
        if not np.any(theirs[order := np.roll(np.arange(12), turn)] == CLIENTS[1].ravel())
    )
    found[:, 1] = first[:, turned].reshape(found[:, 1].shape)


def one_moved(found):
    for client in range(1, 4):
        found[:, :, :, client] = np.roll(found[:, :, :, 0], client, axis=-1)


def one_moved_otherwise_in_each_run(found):
    for run in range(len(found)):
        found[run, 1] = np.roll(found[run, 0], 5 + 2 * run, axis=-1)


def one_backwards(found):
    found[:, 0, 2, 1] = found[:, 0, 0, 1, ::-1]


def one_of_all_runs(found):
    found[:] = found[0]


def blocks(found):
    found[..., 1::2] = found[..., ::2]


def fixed_size(found):
    rng = np.random.default_rng(3)
    order = rng.random(found.shape).argsort(axis=-1)
    found[:] = order < 13  # of 64: as close to .2 as can be


def more_than_stated(found):
    found |= np.random.default_rng(4).random(found.shape) < 0.02


def a_coordinate_that_is_always_kept(found):
    found[..., 5] = True


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (one_of_two_clients, masks.CLIENTS),
        (one_of_rounds, masks.ROUNDS),
        (one_of_a_client_in_all_epochs, masks.EPOCHS),
        (one_of_a_place_in_all_epochs, masks.EPOCHS),
        (one_epoch_of_others_at_other_places, masks.EPOCHS),
        (one_moved, masks.SHIFTED),
        (one_moved_otherwise_in_each_run, masks.SHIFTED),
        (one_backwards, masks.SHIFTED),
        (one_of_all_runs, masks.RUNS),
        (blocks, masks.COORDINATES),
        (fixed_size, masks.SIZES),
        (more_than_stated, masks.SHARE),
        (a_coordinate_that_is_always_kept, masks.SHARE),
    ],
)
def test_each_way_to_share_a_mask_is_found_by_its_row(fault, test):
    found = drawn(np.random.default_rng(5), runs=30)
    fault(found)
    assert test in refuted(mask_laws(found, 0.2, clients=CLIENTS))


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
    row = named(mask_laws(found, 0.4, clients=dealt(rounds=1, n=2)), masks.SHIFTED)
    assert row.tests == len(p_values) == 6 * 46 * 3
    assert row.observed == pytest.approx(len(p_values) * min(p_values), rel=1e-9)
    assert row.observed < 0.1


def test_a_mask_of_another_run_at_another_place_is_found():
    found = drawn(np.random.default_rng(5), runs=10, dimension=256)
    found[4, 1, 2, 0] = found[7, 0, 1, 3]
    row = named(mask_laws(found, 0.2, clients=CLIENTS), masks.RUNS)
    assert row.refutes
    assert row.where == "run 5, epoch 2, round 3, place 1 and run 8, epoch 1, round 2, place 4"


def test_a_mask_that_a_client_keeps_is_named_as_such():
    found = drawn(np.random.default_rng(7), runs=30)
    one_of_a_client_in_all_epochs(found)
    assert (
        named(mask_laws(found, 0.2, clients=CLIENTS), masks.EPOCHS).where == "epochs 1 and 2, the same client"
    )


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(SettingError, match="must be \\(runs, epochs, T, n, D\\)"):
        mask_laws(np.zeros((1, 2, 3, 4), bool), 0.2, clients=CLIENTS)
    with pytest.raises(SettingError, match="keep_probability is 1"):
        mask_laws(drawn(np.random.default_rng(6)), 1.0, clients=CLIENTS)


def test_all_rows_of_masks_share_one_false_alarm():
    found = mask_laws(drawn(np.random.default_rng(8)), 0.2, clients=CLIENTS, false_alarm=1e-4)
    assert sum(finding.false_alarm for finding in found) == pytest.approx(1e-4)
