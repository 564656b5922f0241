"""What was played too little to decide: on the product, and of a sabotage that was not found; and names nobody knows."""

import pytest

import experiments.audit.__main__ as command
from experiments.audit import coupled, residual
from experiments.audit.crossing import needed
from experiments.audit.jobs import coupled_jobs, residual_jobs, run_jobs
from experiments.audit.levels import Levels
from experiments.audit.matrix import SURE, Code, exit_code, lines
from experiments.audit.row import Verdict
from experiments.audit.sabotage import NONE, SABOTAGES
from experiments.audit.scene import plan_of
from experiments.settings.commands import AuditSettings
from experiments.settings.compose import compose
from fedmf.audit import power
from fedmf.audit.residual import VARIANCE
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

ROTATED, SIX = residual.SCENES[0], residual.SCENES[6]
HOSTILE = coupled.SCENES[-1]
PART = Levels(0.95, parts=18).part


def rows_of(jobs):
    return [row for found in run_jobs(jobs, 1) for row in found.rows]


def verdicts(rows):
    return {row.verdict for row in rows}


def code_of(rows, name):
    return exit_code(rows, lines(rows, [SABOTAGES[name]]))


@pytest.mark.parametrize(("pairs", "expected"), [(1, Code.inconclusive), (5, Code.nothing_found)])
def test_a_sabotage_that_too_few_pairs_miss_is_inconclusive_and_one_that_they_find_is_found(pairs, expected):
    """The first pair sends no NaN; the fifth does."""
    name = "the server passes on what is not finite"
    rows = rows_of(coupled_jobs(SABOTAGES[name], [HOSTILE], pairs=pairs, seed=0))
    assert code_of(rows, name) is expected
    assert all(row.is_small for row in rows)


@pytest.mark.parametrize(("enough", "expected"), [(2, Code.inconclusive), (1, Code.refuted)])
def test_a_sabotage_that_residuals_miss_is_missed_where_they_had_as_many_runs_as_a_default_audit(
    enough, expected
):
    """One run does not see 4 % less noise."""
    name = "noise times 0.958"
    rows = rows_of(residual_jobs(SABOTAGES[name], [ROTATED], runs=1, seed=0, level=PART, enough=enough))
    assert code_of(rows, name) is expected
    assert verdicts(rows) == {Verdict.inconclusive if enough == 2 else Verdict.nothing_found}


def test_one_scene_that_was_too_small_leaves_its_test_undecided_whatever_the_others_did_not_find():
    """A tree needs more pairs than the others: 24 are all of theirs."""
    name, trees = "noise halved", [scene for scene in coupled.SCENES if scene.mechanism == "binary_tree"]
    assert needed(plan_of(trees[0])) > 24 == needed(plan_of(HOSTILE))
    rows = rows_of(coupled_jobs(SABOTAGES[name], [HOSTILE, *trees], pairs=24, seed=0))
    assert {row.pipeline: row.is_small for row in rows} == {HOSTILE.name: False, trees[0].name: True}
    (line,) = lines(rows, [SABOTAGES[name]])
    assert line.cells["coupled sensitivity"] is Verdict.inconclusive


def test_pairs_that_do_not_send_every_kind_of_vector_in_every_round_decide_nothing_of_the_product():
    few, enough = (rows_of(coupled_jobs(NONE, [HOSTILE], pairs=pairs, seed=0)) for pairs in (23, 24))
    assert (verdicts(few), verdicts(enough)) == ({Verdict.inconclusive}, {Verdict.nothing_found})
    assert {row.note for row in few} == {
        "too few pairs (pairs=23) to send each kind of vector in every round"
    }
    assert exit_code(few, []) is Code.inconclusive


def test_runs_that_would_not_find_halved_noise_decide_nothing_of_the_product():
    """Of six coordinates one run is too few, of 256 it is enough."""
    few, enough = (
        rows_of(residual_jobs(NONE, [scene], runs=1, seed=0, level=PART)) for scene in (SIX, ROTATED)
    )
    assert (verdicts(few), verdicts(enough)) == ({Verdict.inconclusive}, {Verdict.nothing_found})
    (row,) = (row for row in few if row.test == VARIANCE)
    shape = {"runs": 1, "epochs": 2, "rounds": 3, "coordinates": 6}
    (exact,) = (found for found in power(0.5, **shape, false_alarm=PART) if found.test == VARIANCE)
    assert row.power == exact.probability < SURE
    assert f"1 runs (residual_runs) would find noise halved with probability {row.power:.2g} only" == row.note


def test_no_row_of_a_default_audit_is_too_small(monkeypatch):
    """Nothing is played: the sizes alone, of the product and of the controls."""
    settings = compose("audit", [], AuditSettings)
    levels = command.levels_of(settings)
    for scene in command.residual_scenes(settings):
        who = plan_of(scene).participation
        runs = residual.WIDE_RUNS if scene is residual.WIDE else settings.residual_runs
        shape = {"epochs": who.epochs, "rounds": who.rounds_per_epoch, "coordinates": scene.dimension}
        found = {one.test: one.probability for one in power(0.5, runs=runs, **shape, false_alarm=levels.part)}
        assert found[VARIANCE] >= SURE
    jobs = command.control_jobs(settings, levels) + command.sabotage_jobs(
        settings, SABOTAGES["noise halved"], levels
    )
    assert not any(job.finish.is_small for job in jobs if hasattr(job.finish, "is_small"))
    assert {job.tasks[0].arguments[2] for job in jobs if job.tasks[0].function.__name__ == "_coupled"} == {
        None
    }


@pytest.mark.parametrize(
    "given",
    [
        ("runs=0", "canaries=0", "pairs=1", "residual_runs=1"),
        ("runs=0", "canaries=0", "pairs=1", "residual_runs=0", "thorough=true"),
        ("runs=0", "canaries=0", "calibration=1"),
        ("run_directory=nowhere",),
    ],
)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mechanisms=[optimal,binary]", "mechanisms is 'binary'; .* did you mean binary_tree"),
        ("sabotage=no_cliping", "did you mean no clipping"),
    ],
)
def test_names_nobody_knows_are_refused_whatever_is_played_and_leave_no_directory(
    given, name, words, tmp_path, monkeypatch
):
    for work in ("run_jobs", "recorded_rows", "levels_of"):
        monkeypatch.setattr(command, work, lambda *given, **more: pytest.fail("something was computed"))
    settings = compose("audit", [f"directory={tmp_path / 'audit'}", *given, name], AuditSettings)
    with pytest.raises(SettingError, match=words):
        command.audit(settings)
    assert not (tmp_path / "audit").exists()
