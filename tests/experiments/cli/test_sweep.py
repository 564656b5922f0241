"""A sweep: one line a job, failures said and counted by Hydra, and nothing learnt from nothing."""

import pytest

import runs
from experiments.simulate import job

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2")  # fmt: skip


def test_a_job_prints_one_line_instead_of_table_and_statement_also_when_it_had_finished(tmp_path, capsys):
    for again in ((), ("sweep.resume=true",)):
        settings = runs.composed(*SMALL, f"run.directory={tmp_path / 'r'}", *again)
        job(settings, tmp_path / "r", "job 1")
        said = capsys.readouterr()
        assert [line[:15] for line in said.out.splitlines()] == ["job 1: accuracy"]
        assert "round 2/2" not in said.err


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")])
def test_a_sweep_with_a_failing_job_on_the_command_line(tmp_path, launcher):
    ended = runs.command(
        "-m", *launcher, *SMALL, "hydra.sweep.dir=sweep", "population.cohort_size=10,5000", "privacy.epsilon=2,8",
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert sorted(line[:15] for line in ended.stdout.splitlines()) == ["job 0: accuracy", "job 1: accuracy"]
    assert "`python -m experiments.compare directory=sweep` compares its runs" in ended.stderr
    assert ended.stderr.count("failed: population.cohort_size is 5000") == 2
    assert "job 3: " in ended.stderr
