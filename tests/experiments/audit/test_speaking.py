"""Noise beside vectors at and over the bounds: the twin says what was added, and hostile clients meet the server."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from experiments.audit import coupled, residual
from experiments.audit.coupled import SENSITIVITY, coupled_rows, quiet_client
from experiments.audit.residual import play_noises, residual_rows
from experiments.audit.row import Verdict
from experiments.audit.sabotage import SABOTAGES, Sabotage
from experiments.audit.sabotage.clipping import WITHOUT_CLIPPING, broken
from experiments.audit.scene import Scene, cohorts, plan_of, play, recovered
from experiments.audit.speaking import CLIPPED_SHORT, KINDS, TWIN_ERROR, holdings, kind_of, known_sums
from fedmf.audit.residual import BY_ROUND, VARIANCE
from fedmf.randomness import SecretKey

pytestmark = pytest.mark.long

ROTATED, MASKED = residual.SCENES[7:9]
HOSTILE = coupled.SCENES[-1]
SILENT_NOISE = Scene("without noise", noise_multiplier=0.0, speaking=True)


def refuted(rows):
    return {row.test for row in rows if row.verdict is Verdict.refuted}


@pytest.mark.parametrize("run", range(len(KINDS)))
def test_without_noise_the_sums_are_those_of_the_twin(run):
    """Within the error that is stated for it; the vectors themselves are four thousand times as large."""
    with quiet_client():
        played = play(SILENT_NOISE, SecretKey.reproducible(0), holdings(SILENT_NOISE, run))
    sums, error = recovered(plan_of(SILENT_NOISE), played.models)
    gap = np.abs(sums - known_sums(SILENT_NOISE, run))
    assert np.all(gap <= error + SILENT_NOISE.cohort_size * TWIN_ERROR)
    assert np.abs(sums).max() > 4000 * TWIN_ERROR
    assert CLIPPED_SHORT * np.linalg.norm(sums) > 2 * np.linalg.norm(gap)  # what is clipped short is seen


def test_under_masks_the_twin_takes_away_what_was_kept_and_nothing_else():
    """With hardly any noise what is left is that noise: a client's entries are an eighth, a thousand times as much."""
    quiet = replace(MASKED, noise_multiplier=1e-4)
    noises = play_noises(quiet, 0, 2)
    assert noises.undecoded == 0
    assert np.abs(noises.sums).max() < 2e-3


def test_every_kind_of_vector_is_sent_in_every_round():
    plan = plan_of(ROTATED)
    rounds = {number: set() for number in range(6)}
    for run in range(len(KINDS)):
        for number, cohort in enumerate(cohorts(plan)):
            rounds[number] |= {kind_of(run, client, number + 1) for client in cohort}
    assert set(map(frozenset, rounds.values())) == {frozenset(KINDS)}


@pytest.mark.parametrize("scene", [ROTATED, MASKED], ids=lambda scene: scene.name)
def test_noise_beside_clients_that_are_clipped_is_held_against_its_law(scene):
    assert refuted(residual_rows(scene, play_noises(scene, 0, 12))) == set()
    found = play_noises(scene, 0, 12, SABOTAGES["no noise where a client was clipped"])
    assert {VARIANCE, BY_ROUND} & refuted(residual_rows(scene, found))


def test_clients_that_send_zeros_do_not_set_it_off():
    sabotage = SABOTAGES["no noise where a client was clipped"]
    scene = residual.SCENES[0]
    assert refuted(residual_rows(scene, play_noises(scene, 0, 12, sabotage))) == set()


def test_what_clients_send_beyond_their_bounds_is_no_noise():
    unclipped = Sabotage("unclipped", "", patches=partial(broken, WITHOUT_CLIPPING))
    assert VARIANCE in refuted(residual_rows(ROTATED, play_noises(ROTATED, 0, 6, unclipped)))


def test_a_hostile_client_spends_what_is_accounted_and_no_more():
    rows = coupled_rows(HOSTILE)
    assert {row.verdict for row in rows} == {Verdict.nothing_found}
    (row,) = (row for row in rows if row.test == SENSITIVITY)
    assert float(row.observed.split()[0]) == pytest.approx(1, abs=2e-4)


@pytest.mark.parametrize(
    "name",
    [
        "no clipping by the server",
        "the server passes on what is not finite",
        "a client that answers twice counts twice",
    ],
)
def test_a_server_that_trusts_its_clients_is_found_where_one_is_hostile_and_nowhere_else(name):
    assert SENSITIVITY in refuted(coupled_rows(HOSTILE, SABOTAGES[name], pairs=5))
    assert refuted(coupled_rows(coupled.SCENES[0], SABOTAGES[name], pairs=5)) == set()
