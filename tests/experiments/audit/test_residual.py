"""Residuals of the real pipeline: its noise and masks follow their laws, and what departs is named by its row."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from experiments.audit import residual as played_residual
from experiments.audit.residual import (
    DECODED,
    RECOVERED,
    SCENES,
    WIDE,
    WIDE_RUNS,
    Noises,
    joined,
    play_noises,
    residual_rows,
)
from experiments.audit.row import Verdict
from experiments.audit.sabotage import SABOTAGES
from experiments.audit.scene import plan_of
from fedmf.audit import masks, residual
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from fedmf.updates import wire

pytestmark = pytest.mark.long

ROTATED, MASKED, RESUMED, _, INT8 = SCENES[:5]


def refuted(rows):
    return {row.test for row in rows if row.verdict is Verdict.refuted}


@pytest.mark.parametrize(
    ("scene", "runs"),
    [(ROTATED, 50), (MASKED, 20), (RESUMED, 4), *((scene, 10) for scene in SCENES[3:]), (WIDE, WIDE_RUNS)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_honest_pipeline_is_not_refuted(scene, runs):
    rows = residual_rows(scene, play_noises(scene, 0, runs))
    assert refuted(rows) == set()
    expected = set(residual.TESTS) | (set(masks.TESTS) if scene.keep_probability < 1 else set())
    assert {row.test for row in rows} >= expected - {residual.PAIRS}


@pytest.mark.parametrize(
    ("name", "scene", "test"),
    [
        ("noise times 0.958", ROTATED, residual.VARIANCE),
        ("no noise in two of three rounds", ROTATED, residual.BY_ROUND),
        ("noise in the last epoch only", ROTATED, residual.BY_ROUND),
        ("one noise row for all rounds", ROTATED, residual.ROUNDS),
        ("the same noise in all epochs", ROTATED, residual.EPOCHS),
        ("a coordinate without noise", ROTATED, residual.BY_COORDINATE),
        ("noise shared by pairs of coordinates", ROTATED, residual.COORDINATES),
        ("noise with no tails", ROTATED, residual.TAILS),
        ("noise that anyone can compute", ROTATED, residual.RUNS),
        ("noise without C", ROTATED, residual.ROUNDS),
        ("no noise on int8 values", INT8, residual.VARIANCE),
        ("no noise where coordinates are padded and masked", INT8, residual.VARIANCE),
        ("one mask for all", MASKED, masks.CLIENTS),
        ("masks that return at another place", MASKED, masks.EPOCHS),
        ("masks that return at another place", INT8, masks.EPOCHS),
        ("one mask for all, moved", MASKED, masks.SHIFTED),
        ("masks shared by pairs", MASKED, masks.CLIENTS),
        ("the same masks in all epochs", MASKED, masks.EPOCHS),
        ("a ratchet that stands still", MASKED, masks.EPOCHS),
        ("noise only where something was sent", MASKED, DECODED),
        ("a stale sum", MASKED, DECODED),
    ],
)
def test_what_is_broken_is_refuted_by_its_row(name, scene, test):
    runs = 50 if scene is ROTATED else 12
    assert test in refuted(residual_rows(scene, play_noises(scene, 0, runs, SABOTAGES[name])))


def test_every_kind_of_values_and_of_padding_has_its_noise_held_against_its_law():
    """Float32 and int8, padded and not, each with masks and without, but for int8 values that are masked and not padded."""
    kinds = {
        (scene.value_type, plan_of(scene).rotation.padded != scene.dimension, scene.keep_probability < 1)
        for scene in SCENES
    }
    missing = set(product(("float32", "int8"), (False, True), (False, True))) - kinds
    assert missing == {("int8", True, False), ("int8", False, True)}


@pytest.mark.parametrize("scene", [MASKED, RESUMED, INT8], ids=lambda scene: scene.name)
def test_masks_are_those_that_the_keys_of_the_run_give(scene):
    """The twin: what the product's own functions draw from the same secret, also where a coordinate is padded."""
    played = play_noises(scene, 3, 1)
    plan, key = plan_of(scene), SecretKey.reproducible(0).derive("residual", scene.name, 3)
    for epoch in range(2):
        for step in range(3):
            for place, client in enumerate(played_residual.cohorts(plan)[3 * epoch + step]):
                expected = np.zeros(256, bool)
                expected[wire.coordinates(key.mask_key(str(client), step), 256, scene.keep_probability)] = (
                    True
                )
                np.testing.assert_array_equal(played.masks[0, epoch, step, place], expected)
        key = key.ratchet()


def test_masks_are_read_where_one_coordinate_is_padded_at_most():
    with pytest.raises(SettingError, match="56 coordinates are padded"):
        play_noises(replace(RESUMED, name="more padding", dimension=200), 0, 1)


def test_int8_levels_that_are_no_digits_are_refused():
    with pytest.raises(SettingError, match="int8 levels that are no digits"):
        play_noises(replace(INT8, name="other levels", linf=64), 0, 1)


def test_parts_of_the_runs_are_the_runs():
    whole, parts = play_noises(MASKED, 0, 3), [play_noises(MASKED, 0, 1), play_noises(MASKED, 1, 2)]
    together = joined(parts)
    np.testing.assert_array_equal(whole.sums, together.sums)
    np.testing.assert_array_equal(whole.masks, together.masks)
    assert (whole.error, whole.undecoded) == (together.error, together.undecoded)


def test_runs_that_broke_off_or_are_not_finite_are_refuted():
    sums = np.zeros((1, 2, 3, 256))
    broken = joined([Noises(sums, 0.0, None), Noises(np.empty((0,)), 0.0, None, 0, "it stopped")])
    assert refuted(residual_rows(ROTATED, broken)) == {RECOVERED}
    assert refuted(residual_rows(ROTATED, Noises(sums + np.nan, 0.0, None))) == {RECOVERED}
