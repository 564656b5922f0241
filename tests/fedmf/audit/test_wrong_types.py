"""What has the wrong type, shape or range is refused in a sentence before anything is computed; lists are arrays."""

import numpy as np
import pytest

from audited_laws import banded_statement, dealt, masks, noise
from fedmf.audit import (
    Stated,
    StatedEpoch,
    coupled,
    digits,
    epsilon_lower_bound,
    mask_laws,
    power,
    residuals,
    unmixed,
    whole_vector,
)
from fedmf.errors import SettingError
from fedmf.updates.rotation import hadamard

STATED = banded_statement(3, 2)
ZEROS = np.zeros((2, 3, 4))
MOVED = ZEROS.copy()
MOVED[:, 0, 0] = 0.1
RELEASES = noise(STATED, np.random.default_rng(0), runs=3, dimension=4)
MASKS, CLIENTS = masks(np.random.default_rng(0), runs=3), dealt()


@pytest.mark.parametrize(
    ("rotate", "words"),
    [
        (3, "must be a function"),
        (lambda row: row * np.nan, "not finite"),
        (lambda row: row[:2] * 0, "must give one row, of 4 numbers or more"),
        (lambda row: np.stack([row, row]), "must give one row"),
        (lambda row: 3.0, "must give one row"),
        (lambda row: None, "cannot be read"),
        (lambda row: row * 0, "length 0; it must be orthonormal"),
        (lambda row: 0.999 * row, "it must be orthonormal"),
        (lambda row: row * [1, 1, 1, 0], "it must be orthonormal"),
        (np.abs, "it must be linear"),
    ],
)
def test_a_rotation_that_is_none_is_refused_and_hides_no_influence(rotate, words):
    with pytest.raises(SettingError, match=words):
        coupled(MOVED * 100, ZEROS, STATED, own_rounds=[0, 0], rotate=rotate)


@pytest.mark.parametrize(
    "rotate",
    [hadamard, lambda row: np.append(row, [0.0, 0.0]), lambda row: hadamard(row).astype(np.float32)],
    ids=["hadamard", "padded", "float32"],
)
def test_a_rotation_that_loses_nothing_is_taken_also_one_that_pads_or_rounds_to_float32(rotate):
    found = coupled(MOVED, ZEROS, STATED, own_rounds=[0, 0], rotate=rotate)
    assert [finding.refutes for finding in found] == [False] * 3


@pytest.mark.parametrize("steps", [[[0, 2], 0], [(0,), None]])
def test_two_participations_in_an_epoch_cannot_be_stated_and_the_sentence_says_so(steps):
    with pytest.raises(SettingError, match="one participation in an epoch"):
        coupled(MOVED, ZEROS, STATED, own_rounds=steps)


@pytest.mark.parametrize("shape", [(3,), (2, 2, 3)])
def test_rows_behind_masks_that_are_no_matrix_are_refused(shape):
    with pytest.raises(SettingError, match="a row for each mask"):
        whole_vector(np.ones(shape), STATED)


@pytest.mark.parametrize(
    "releases", [RELEASES + 1j, RELEASES.astype(str), RELEASES.astype(object), [[[[None] * 4] * 3] * 2]]
)
def test_releases_that_are_no_real_numbers_are_refused(releases):
    with pytest.raises(SettingError, match="real numbers"):
        residuals(releases, STATED)


@pytest.mark.parametrize(
    ("difference", "entries", "tolerance", "words"),
    [
        (np.ones(3), [5.0, 1.0], 0.1, "half of the one before"),
        (np.ones(3), [1.0, 2.0], 0.1, "half of the one before"),
        (np.ones(3), [], 0.1, "there must be a number"),
        (np.ones(3), [[2.0, 1.0]], 0.1, "must be \\(clients,\\)"),
        (np.ones(3), [0.0, 0.0], 0.1, "above 0"),
        (np.ones(3), [-2.0, -1.0], 0.1, "above 0"),
        (np.ones(3), 0.5 ** np.arange(53), 0.0, "at most 52"),
        (np.ones(0), [2.0, 1.0], 0.1, "there must be a number"),
        (1.0, [2.0, 1.0], 0.1, "single number"),
        (np.ones(3), [2.0, 1.0], -0.1, "tolerance is -0.1"),
        (np.ones(3), [2.0, 1.0], "0.1", "tolerance is 0.1"),
    ],
)
def test_digits_that_do_not_tell_masks_apart_are_refused(difference, entries, tolerance, words):
    with pytest.raises(SettingError, match=words):
        unmixed(difference, entries, tolerance=tolerance)


@pytest.mark.parametrize("bounds", [(-1.0, None), (1.0, -1.0), (1.0, 0.0), ("1", None), (np.nan, None)])
def test_digits_of_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(SettingError, match="_norm is"):
        digits(2, l2_norm=bounds[0], linf_norm=bounds[1], dimension=4)


def test_digits_of_more_clients_than_a_float_tells_apart_are_refused():
    with pytest.raises(SettingError, match="clients is 53"):
        digits(53, l2_norm=1.0, linf_norm=None, dimension=4)


@pytest.mark.parametrize(
    ("given", "clients", "words"),
    [
        (MASKS * 0.5, CLIENTS, "other than 0 and 1"),
        (MASKS * 1j, CLIENTS, "real numbers"),
        (MASKS[..., :0], CLIENTS, "there must be a number"),
        (MASKS[:0], CLIENTS, "there must be a number"),
        (MASKS, CLIENTS + 0.5, "not whole"),
        (MASKS, "all", "clients cannot be read"),
        (MASKS, CLIENTS[0], "must be \\(runs, epochs, T, n, D\\)"),
    ],
)
def test_masks_and_clients_that_are_none_are_refused(given, clients, words):
    with pytest.raises(SettingError, match=words):
        mask_laws(given, 0.2, clients=clients)


def test_masks_clients_and_digits_may_be_lists():
    expected = mask_laws(MASKS, 0.2, clients=CLIENTS)
    assert mask_laws(MASKS.astype(int).tolist(), 0.2, clients=CLIENTS.tolist()) == expected
    np.testing.assert_array_equal(unmixed([1.0, 2.0, 3.0], [2.0, 1.0], tolerance=0.1), [[0, 1, 1], [1, 0, 1]])


def test_a_statement_takes_lists_and_refuses_what_is_no_epoch():
    epoch = StatedEpoch([[1.0, 0.0], [0.5, 1.0]], 1.0, 1.0)
    assert epoch.rounds == 2
    assert Stated([epoch, epoch], 1.0).epochs == (epoch, epoch)
    for wrong in (epoch, [1.0], "epochs", None):
        with pytest.raises(SettingError, match="epochs is"):
            Stated(wrong, 1.0)


@pytest.mark.parametrize("wrong", ["1", None, 1j, [1.0], np.nan, True])
def test_a_number_that_is_none_is_refused_by_name_wherever_one_is_asked_for(wrong):
    calls = {
        "sigma": lambda: Stated.of_strategy(np.eye(2), sigma=wrong, l2_norm=1.0),
        "l2_norm": lambda: Stated.of_strategy(np.eye(2), sigma=1.0, l2_norm=wrong),
        "epochs": lambda: Stated.of_strategy(np.eye(2), sigma=1.0, l2_norm=1.0, epochs=wrong),
        "keep_probability": lambda: mask_laws(MASKS, wrong, clients=CLIENTS),
        "false_alarm": lambda: residuals(RELEASES, STATED, false_alarm=wrong),
        "resolution": lambda: residuals(RELEASES, STATED, resolution=wrong),
        "step": lambda: whole_vector(np.ones((2, 3)), STATED, step=wrong),
        "successes": lambda: epsilon_lower_bound(wrong, 2, 0, 2, delta=0.1, confidence=0.9),
        "confidence": lambda: epsilon_lower_bound(1, 2, 0, 2, delta=0.1, confidence=wrong),
        "runs": lambda: power(0.5, runs=wrong, epochs=1, rounds=1, coordinates=1),
    }
    for name, call in calls.items():
        with pytest.raises(SettingError, match=name):
            call()


def test_a_whole_number_may_be_a_float():
    ours, theirs = (
        Stated.of_strategy(np.eye(3), sigma=1.0, l2_norm=1.0, epochs=epochs) for epochs in (2.0, 2)
    )
    assert len(ours.epochs) == len(theirs.epochs) == 2
    assert ours.rounds == 3
