"""The command: what it prints and leaves, its exit codes, and what it refuses."""

import json
import logging
from dataclasses import replace

import pytest

import experiments.audit.__main__ as command
import runs
from experiments.audit.__main__ import CONTROLS
from experiments.audit.jobs import of_mechanisms
from experiments.audit.levels import Levels
from experiments.audit.matrix import COLUMNS
from experiments.audit.one_run import OneRunSetup
from experiments.audit.report import HEADS
from experiments.audit.sabotage import SABOTAGES
from experiments.audit.scene import plan_of
from experiments.audit.settings import AuditSettings, chosen_sabotages, for_a_night
from experiments.settings.compose import compose
from fedmf.errors import RunDirectoryError, SettingError
from fedmf.mechanisms import FAMILIES

pytestmark = pytest.mark.long


def run(tmp_path, capsys, *overrides):
    """Run the command in this process; return its exit code and JSON document."""
    logging.getLogger("server").setLevel(logging.WARNING)
    config = compose(
        "audit",
        [f"directory={tmp_path / 'audit'}", "output=json", "workers=1", *overrides],
        AuditSettings,
    )
    code = 0
    try:
        command.audit(config)
    except SystemExit as end:
        code = end.code
    return code, json.loads(capsys.readouterr().out)


SMALL = ("mechanisms=[independent]", "cohort_size=2", "rounds_per_epoch=1", "epochs=1", "canaries=0")
SHORT = ("population.cohort_size=5", "population.rounds_per_epoch=4", "population.epochs=2", "model=logistic")
NO_ATTACKS = ("runs=0", "canaries=0", "residual_runs=4")


@pytest.fixture
def few_scenes(monkeypatch):
    """Leave two scenes of each kind, the coupled ones with few clients, so that few pairs suffice."""
    few = [replace(one, cohort_size=2, rounds_per_epoch=2, epochs=1) for one in command.coupled.SCENES[1:3]]
    monkeypatch.setattr(command.coupled, "SCENES", tuple(few))
    monkeypatch.setattr(command.residual, "SCENES", command.residual.SCENES[:2])
    monkeypatch.setattr(command.residual, "WIDE_RUNS", 1)


def test_a_small_audit_passes_and_leaves_a_plot(tmp_path, capsys, few_scenes):
    code, document = run(
        tmp_path,
        capsys,
        *SMALL,
        *("keep_probabilities=[1.0]", "delta=0.05", "runs=400", "residual_runs=4"),
    )
    assert code == document["exit_code"] == 0
    assert document["passed"]
    assert {trial["verdict"] for trial in document["trials"]} == {"below the statement"}
    assert {row["verdict"] for row in document["rows"] if not row["is_control"]} == {"nothing found"}
    assert [line["sabotage"] for line in document["matrix"]] == list(CONTROLS)
    assert all(line["caught_by"] for line in document["matrix"])
    assert (tmp_path / "audit" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "audit" / "audit.json").read_text()) == document


@pytest.mark.parametrize("broken", ["no clipping", "noise halved in the last epoch"])
def test_a_product_that_is_broken_is_refuted(tmp_path, capsys, few_scenes, broken):
    """The sabotage is in force around the command, which knows nothing of it."""
    with SABOTAGES[broken].patches():
        code, document = run(tmp_path, capsys, *NO_ATTACKS)
    assert code == 1
    assert not document["passed"]
    assert "refuted" in {row["verdict"] for row in document["rows"] if not row["is_control"]}


def test_too_few_runs_are_inconclusive(tmp_path, capsys):
    code, document = run(
        tmp_path, capsys, *SMALL, "keep_probabilities=[1.0]", "runs=20", "pairs=0", "residual_runs=0"
    )
    assert code == 3
    assert not document["passed"]
    assert "inconclusive" in {row["verdict"] for row in document["rows"]}


@pytest.mark.parametrize(
    ("given", "left_out"),
    [
        (
            ("pairs=0", "residual_runs=4"),
            ["coupled runs were left out (pairs), which must catch no clipping, a stale sum"],
        ),
        (
            ("residual_runs=0",),
            ["residuals were left out (residual_runs), which must catch noise halved"],
        ),
    ],
)
def test_controls_that_could_not_be_played_leave_the_audit_inconclusive_and_it_names_what_was_left_out(
    given, left_out, tmp_path, capsys, few_scenes
):
    code, document = run(tmp_path, capsys, "runs=0", "canaries=0", *given)
    assert code == 3
    for words in left_out:
        assert words in document["conclusion"]
    assert [line["sabotage"] for line in document["matrix"]] == list(CONTROLS)
    assert {row["verdict"] for row in document["rows"] if not row["is_control"]} == {"nothing found"}


def test_attacks_that_would_rather_miss_halved_noise_than_find_it_decide_nothing(tmp_path, capsys):
    """At 100 runs: a test without mistakes would refute, so that every row says nothing was found, and none means it."""
    size = ("keep_probabilities=[1.0]", "delta=0.05", "runs=200", "pairs=0", "residual_runs=0")
    code, document = run(tmp_path, capsys, *SMALL, *size)
    attacks = [row for row in document["rows"] if row["test"].startswith("many runs")]
    assert {row["verdict"] for row in attacks} == {"inconclusive"}
    assert all("200 runs would find noise halved with probability 0." in row["note"] for row in attacks)
    assert [row["power"] is None for row in attacks] == [True, False, True, True]
    assert attacks[1]["power"] < 0.5
    assert code == 3
    assert "too few runs or guesses for the attacks on independent, gamma 1" in document["conclusion"]
    assert [line["sabotage"] for line in document["matrix"]] == list(CONTROLS)  # not one of them was tried
    assert "residuals were left out (residual_runs), which must catch noise halved" in document["conclusion"]


def test_sabotages_by_name_are_caught_and_the_matrix_says_by_what(tmp_path, capsys, few_scenes):
    names = "sabotage=[no_clipping,a stale sum,noise halved in the last epoch]"
    code, document = run(tmp_path, capsys, *NO_ATTACKS, names)
    assert code == 0
    caught = {line["sabotage"]: line["caught_by"] for line in document["matrix"]}
    assert list(caught) == ["no clipping", "a stale sum", "noise halved in the last epoch"]
    assert "coupled own round" in caught["a stale sum"]
    assert "residual variance" in caught["noise halved in the last epoch"]
    assert {row["verdict"] for row in document["rows"] if not row["is_control"]} == {"nothing found"}


def test_a_sabotage_that_fewer_runs_than_those_of_a_default_audit_miss_is_inconclusive(
    tmp_path, capsys, few_scenes
):
    """One run is too few to see 4 % less noise; on the product it finds half of the noise, for which its rows are there."""
    code, document = run(
        tmp_path, capsys, "runs=0", "canaries=0", "pairs=0", "residual_runs=1", "sabotage=noise_times_0.958"
    )
    assert code == 3
    assert document["matrix"][0]["missed_by"] == []
    assert document["matrix"][0]["too_few_runs_for"] == ["residual variance"]
    assert "too few runs or pairs for residual variance to find noise times 0.958" in document["conclusion"]
    assert {row["verdict"] for row in document["rows"] if not row["is_control"]} == {"nothing found"}


def test_people_are_told_what_was_found(tmp_path, capsys, few_scenes):
    settings = [f"directory={tmp_path / 'audit'}", "workers=1", *NO_ATTACKS, "residual_runs=2"]
    command.audit(compose("audit", settings, AuditSettings))
    said = capsys.readouterr().out
    for words in (
        "The product as shipped",
        "What is broken",
        "Nothing was found.",
        "by all rows together",
    ):
        assert words in said


def test_an_audit_never_overwrites_another_and_says_so_first(tmp_path, capsys, monkeypatch):
    (tmp_path / "audit").mkdir()
    monkeypatch.setattr(command, "honest_jobs", lambda *given: pytest.fail("something was computed"))
    with pytest.raises(RunDirectoryError, match="exists already"):
        run(tmp_path, capsys, *SMALL)


def test_settings_that_conclude_nothing_are_refused(tmp_path, capsys):
    with pytest.raises(SettingError, match="keep_probabilities is empty"):
        run(tmp_path, capsys, "keep_probabilities=[]")
    with pytest.raises(SettingError, match="multiple of 8"):
        OneRunSetup("optimal", 2.0, 1e-5, 100, 10, seed=0)
    with pytest.raises(SettingError, match="6000 clients for 1437 training images"):
        run(tmp_path, capsys, "cohort_size=2000", "rounds_per_epoch=3")
    with pytest.raises(SettingError, match="did you mean no clipping"):
        run(tmp_path, capsys, "sabotage=no_cliping")
    with pytest.raises(SettingError, match="runs is 5"):
        run(tmp_path, capsys, "runs=5")
    with pytest.raises(SettingError, match="nothing is tested"):
        run(tmp_path, capsys, "runs=0", "canaries=0", "pairs=0", "residual_runs=0")
    assert not (tmp_path / "audit").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("epsilon=1e9", "epsilon is 1e\\+09; it must be at most 50"),
        ("one_run_epsilon=51", "one_run_epsilon is 51; it must be at most 50"),
        ("epsilon=0", "epsilon is 0"),
        ("confidence=0.99999999999", "at most 1 - 1e-9"),
    ],
)
def test_what_no_attack_can_refute_is_refused_before_anything_is_computed(
    given, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(command, "honest_jobs", lambda *given: pytest.fail("something was computed"))
    with pytest.raises(SettingError, match=words):
        run(tmp_path, capsys, *SMALL, given)


@pytest.mark.parametrize(
    "asked", [(), ("sabotage=one_mask_for_all",), ("thorough=true", "mechanisms=[optimal]")]
)
def test_a_delta_that_the_exact_epsilon_does_not_reach_is_refused_before_a_run_is_played(
    asked, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(command, "FAMILIES", ("optimal",))
    monkeypatch.setattr(command, "run_jobs", lambda *given: pytest.fail("a run was played"))
    given = (*SMALL, "runs=20", "delta=1e-5", *asked)
    with pytest.raises(
        SettingError, match=r"delta is 1e-05; the exact epsilon .* keep_probabilities=\[1.0\]"
    ):
        run(tmp_path, capsys, *given)
    assert not (tmp_path / "audit").exists()


def test_a_kept_run_is_audited_from_its_directory(tmp_path, capsys):
    folder = tmp_path / "run"
    runs.run(folder, *SHORT, "run.keep_releases=true", "run.reproducible=true")
    capsys.readouterr()
    code, document = run(tmp_path, capsys, *command.in_full([f"run={folder}"]))
    assert code == 0
    assert {row["test"] for row in document["rows"]} == {"recorded model", "recorded sums", "recorded noise"}
    with pytest.raises(RunDirectoryError):
        run(tmp_path / "other", capsys, f"run_directory={tmp_path / 'none'}")
    assert not (tmp_path / "other" / "audit").exists()


def test_thorough_plays_every_mechanism_and_more_of_everything(tmp_path):
    settings = compose("audit", ["thorough=true"], AuditSettings)
    night = for_a_night(settings, FAMILIES)
    assert set(night.mechanisms) == set(FAMILIES)
    assert night.runs > settings.runs
    scenes = of_mechanisms(command.residual.SCENES, night.mechanisms)
    assert {scene.mechanism for scene in scenes} == set(FAMILIES)
    for scene in scenes:
        assert plan_of(scene).factorization.family == scene.mechanism
    few, many = (
        command.honest_jobs(replace(asked, canaries=0, runs=0), Levels(0.95)) for asked in (settings, night)
    )
    assert len(many) == len(few) + 2 * len(set(FAMILIES) - {"optimal", "independent", "binary_tree"})


@pytest.mark.slow
def test_a_small_thorough_audit_plays_every_mechanism_and_comes_to_an_end(tmp_path, capsys):
    """The one of docs/audit.md with fewer canaries; so small a one decides nothing, and accuses nobody."""
    size = (
        "runs=20",
        "delta=0.05",
        "cohort_size=2",
        "rounds_per_epoch=2",
        "epochs=1",
        "canaries=64",
        "guesses=16",
    )
    code, document = run(tmp_path, capsys, "thorough=true", *size, "pairs=1", "residual_runs=1")
    assert code == 3
    attacked = {
        (trial["mechanism"], trial["keep_probability"], trial["trials_in"]) for trial in document["trials"]
    }
    assert attacked == {(name, *size) for name in FAMILIES for size in ((1.0, 16), (1.0, 100), (0.1, 100))}
    honest = [row for row in document["rows"] if not row["is_control"]]
    assert "refuted" not in {row["verdict"] for row in honest}
    for kind in ("coupled sensitivity", "residual variance"):
        played = {row["pipeline"].split(",")[0].replace(" ", "_") for row in honest if row["test"] == kind}
        assert played == set(FAMILIES)


def test_names_of_sabotages():
    assert chosen_sabotages("none") == []
    assert chosen_sabotages("all") == list(SABOTAGES.values())
    assert chosen_sabotages("a stale sum") == [SABOTAGES["a stale sum"]]
    assert chosen_sabotages(("a_stale_sum", "no clipping")) == [
        SABOTAGES["a stale sum"],
        SABOTAGES["no clipping"],
    ]


def test_every_sabotage_names_columns_of_the_matrix_or_says_why_there_is_none():
    assert set(HEADS) == set(COLUMNS)
    for sabotage in SABOTAGES.values():
        assert set(sabotage.caught_by) <= set(COLUMNS), sabotage.name
        assert bool(sabotage.caught_by) != bool(sabotage.why_not), sabotage.name


ATTACKS_ALONE = ("mechanisms=[optimal]", "pairs=0", "residual_runs=0", "rounds_per_epoch=2", "epochs=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep_probability", "broken", "cohort_size"), [(1.0, "noise halved", 2), (0.1, "one mask for all", 5)]
)
def test_attacks_stay_below_the_statement_and_catch_what_is_broken(
    keep_probability, broken, cohort_size, tmp_path, capsys
):
    """Of correlated noise, and of masks too: by simulation, in all of 1000 seeds and in 993; this one is fixed."""
    size = ("runs=600", "delta=0.1", "canaries=0", f"cohort_size={cohort_size}")
    code, document = run(
        tmp_path,
        capsys,
        *ATTACKS_ALONE,
        *size,
        f"keep_probabilities=[{keep_probability}]",
        f"sabotage={broken.replace(' ', '_')}",
    )
    verdicts = {(trial["fault"], trial["verdict"]) for trial in document["trials"]}
    assert verdicts == {("as shipped", "below the statement"), (broken, "caught")}
    assert code == 0


@pytest.mark.slow
def test_one_run_of_canaries_stays_below_the_statement_and_f_dp_catches_halved_noise_where_epsilon_need_not(
    tmp_path, capsys
):
    """At this size the bound on epsilon finds half of the noise in 0.24 of all seeds, that on mu in all of 1000."""
    code, document = run(
        tmp_path, capsys, *ATTACKS_ALONE, "runs=0", "canaries=4096", "guesses=400", "sabotage=noise_halved"
    )
    assert code == 0
    rows = {(row["sabotage"], row["test"]): row for row in document["rows"]}
    assert rows["as shipped", "one run"]["verdict"] == "nothing found"
    assert rows["as shipped", "one run, f-DP"]["verdict"] == "nothing found"
    assert rows["noise halved", "one run, f-DP"]["verdict"] == "refuted"
    assert rows["noise halved", "one run"]["power"] < 0.999 < rows["noise halved", "one run, f-DP"]["power"]
    assert document["matrix"][0]["must_be_caught_by"] == ["one run, f-DP"]
