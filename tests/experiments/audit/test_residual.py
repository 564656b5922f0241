"""Residuals of the real pipeline: its noise and masks follow their laws, and what departs is named by its row."""

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
from fedmf.randomness import SecretKey
from fedmf.updates import wire

ROTATED, MASKED, RESUMED = SCENES[:3]


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
        ("one mask for all", MASKED, masks.CLIENTS),
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


def test_masks_are_those_that_the_keys_of_the_run_give():
    """The twin: what the product's own functions draw from the same secret."""
    played = play_noises(MASKED, 3, 1)
    plan, key = plan_of(MASKED), SecretKey.reproducible(0).derive("residual", MASKED.name, 3)
    for epoch in range(2):
        for step in range(3):
            for place, client in enumerate(played_residual.cohorts(plan)[3 * epoch + step]):
                expected = np.zeros(256, bool)
                expected[wire.coordinates(key.mask_key(str(client), step), 256, 0.1)] = True
                np.testing.assert_array_equal(played.masks[0, epoch, step, place], expected)
        key = key.ratchet()


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
