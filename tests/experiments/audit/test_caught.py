"""Every sabotage is caught by the tests that must catch it; the pipeline as shipped by none."""

import pytest

from experiments.audit import coupled, residual
from experiments.audit.coupled import coupled_rows
from experiments.audit.jobs import WIDE_DIMENSION, bites, coupled_jobs, residual_jobs, run_jobs
from experiments.audit.matrix import column_of, lines
from experiments.audit.residual import play_noises, residual_rows
from experiments.audit.row import Verdict
from experiments.audit.sabotage import NONE, SABOTAGES
from experiments.audit.sabotage.scale import is_rare
from fedmf.randomness import SecretKey

pytestmark = pytest.mark.long

ATTACKS = {"many runs", "one run", "one run, f-DP"}  # tests of thousands of runs: slow, below
RUNS = 12
COUPLED = (*coupled.SCENES[:7], coupled.SCENES[-1])
RESIDUAL = (*residual.SCENES[:3], residual.SCENES[4], *residual.SCENES[7:])
ROTATED, SIX, WIDE = residual.SCENES[0], residual.SCENES[6], residual.WIDE


def rows_of(sabotage, left):
    """Yield the rows of scenes in turn while columns of their kind are `left`; those of a default audit last."""
    for pairs in (5, None):
        for scene in COUPLED:
            if any(column.startswith("coupled") for column in left) and bites(sabotage, scene):
                yield coupled_rows(scene, sabotage, pairs=pairs)
    for scene in RESIDUAL:
        if any(column.startswith(("residual", "mask")) for column in left) and bites(sabotage, scene):
            yield noise_rows(scene, sabotage, RUNS)
    if "residual directions" in left and bites(sabotage, SIX):
        yield noise_rows(SIX, sabotage, residual.RUNS)
    few = sabotage.dimension < WIDE_DIMENSION
    yield noise_rows(*((ROTATED, sabotage, residual.RUNS) if few else (WIDE, sabotage, residual.WIDE_RUNS)))


def noise_rows(scene, sabotage, runs, seed=0):
    return residual_rows(scene, play_noises(scene, 0, runs, sabotage, seed), sabotage)


@pytest.mark.parametrize("name", [name for name, sabotage in SABOTAGES.items() if sabotage.caught_by])
def test_a_sabotage_is_caught_by_the_tests_that_must_catch_it(name):
    sabotage = SABOTAGES[name]
    left = set(sabotage.caught_by) - ATTACKS
    assert left
    for rows in rows_of(sabotage, left):
        left -= {column_of(row.test) for row in rows if row.verdict is Verdict.refuted}
        if not left:
            return
    assert not left


@pytest.mark.parametrize("scene", coupled.SCENES, ids=lambda scene: scene.name)
def test_coupled_runs_of_the_product_as_shipped_are_not_refuted(scene):
    assert {row.verdict for row in coupled_rows(scene, pairs=5)} == {Verdict.nothing_found}


@pytest.mark.parametrize("scene", RESIDUAL, ids=lambda scene: scene.name)
def test_residuals_of_the_product_as_shipped_are_not_refuted(scene):
    rows = residual_rows(scene, play_noises(scene, 0, RUNS))
    assert {row.verdict for row in rows} == {Verdict.nothing_found}


ESCAPES = [name for name, sabotage in SABOTAGES.items() if sabotage.why_not]
RARE = "no noise in one epoch of a thousand"


def meets_it(name, scene, runs):
    """Say whether one of the runs of residuals has the epoch in a thousand: only then is it no escape."""
    for run in range(runs if name == RARE else 0):
        key = SecretKey.reproducible(0).derive("residual", scene.name, run)
        for _ in range(scene.epochs):
            if is_rare(key):
                return True
            key = key.ratchet()
    return False


def residuals_say(name, scene, runs):
    expected = {Verdict.refuted} if meets_it(name, scene, runs) else set()
    rows = noise_rows(scene, SABOTAGES[name], runs)
    assert {row.verdict for row in rows} - {Verdict.nothing_found} == expected


@pytest.mark.parametrize("name", ESCAPES)
def test_what_is_said_to_escape_escapes_where_no_played_run_meets_it(name):
    residuals_say(name, ROTATED, residual.RUNS)
    rows = coupled_rows(COUPLED[0], SABOTAGES[name], pairs=5)
    assert {row.verdict for row in rows} == {Verdict.nothing_found}


def where_they_bite(scenes):
    """Return each sabotage that escapes with each of the scenes that it changes anything in."""
    return [
        pytest.param(name, scene, id=f"{name}-{scene.name}")
        for name in ESCAPES
        for scene in scenes
        if bites(SABOTAGES[name], scene)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scene"), where_they_bite([*residual.SCENES[1:], WIDE]))
def test_what_is_said_to_escape_escapes_the_residuals_of_all_scenes(name, scene):
    residuals_say(name, scene, residual.WIDE_RUNS if scene is WIDE else residual.RUNS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scene"), where_they_bite(coupled.SCENES))
def test_what_is_said_to_escape_escapes_the_coupled_runs_of_all_scenes(name, scene):
    assert {row.verdict for row in coupled_rows(scene, SABOTAGES[name])} == {Verdict.nothing_found}


def test_the_epoch_in_a_thousand_is_met_by_as_many_audits_as_the_documentation_says():
    """Of the default residual runs at seed 0: in one run of the first scene, and in no other scene."""
    met = [scene.name for scene in residual.SCENES if meets_it(RARE, scene, residual.RUNS)]
    assert met == [ROTATED.name]
    epochs = sum(scene.epochs for scene in residual.SCENES) * residual.RUNS + WIDE.epochs * residual.WIDE_RUNS
    assert 1 - 0.999**epochs == pytest.approx(0.597, abs=0.001)


def test_a_sabotage_is_played_where_it_bites():
    for sabotage in (NONE, *SABOTAGES.values()):
        only = [coupled.SCENES] if sabotage.hostile else [residual.SCENES] if sabotage.padded else None
        for scenes in only or (coupled.SCENES, residual.SCENES):
            if not any(bites(sabotage, scene) for scene in scenes):
                assert sabotage.resumes or bites(sabotage, WIDE), sabotage.name
    masked, resumed = SABOTAGES["one mask for all"], SABOTAGES["a journal ahead of the noise"]
    assert {scene.keep_probability < 1 for scene in coupled.SCENES if bites(masked, scene)} == {True}
    assert None not in {scene.resume_after for scene in coupled.SCENES if bites(resumed, scene)}
    trusting = SABOTAGES["no clipping by the server"]
    assert {scene.hostile for scene in coupled.SCENES if bites(trusting, scene)} == {True}


@pytest.mark.slow
def test_jobs_shared_out_to_processes_find_what_one_process_finds():
    sabotage = SABOTAGES["a stale sum"]
    jobs = coupled_jobs(sabotage, coupled.SCENES[:2], pairs=2, seed=0)
    jobs += residual_jobs(NONE, residual.SCENES[:1], runs=30, seed=0)
    shared, alone = (run_jobs(jobs, workers) for workers in (2, 1))
    assert [found.rows for found in shared] == [found.rows for found in alone]
    (line,) = lines([row for found in alone for row in found.rows], [sabotage])
    assert not line.missed
    assert not line.unsure
