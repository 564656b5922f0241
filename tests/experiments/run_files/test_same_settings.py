"""Resuming a sweep: finished jobs are skipped, cut ones are resumed, other settings are refused."""

import pytest

import written_run
from experiments.run_files.reader import refuse_other_settings
from fedmf.errors import RunDirectoryError
from runs import contents, run


def test_the_same_settings_may_be_resumed_with_another_engine_and_output(tmp_path):
    directory, config = written_run.write(tmp_path / "0"), written_run.CONFIG
    refuse_other_settings(directory, config)
    free = {"output": "json", "engine": {"workers": 8}, "sweep": {"resume": True}}
    refuse_other_settings(directory, config | free)
    other = config | {"seed": 2, "model": {"name": "mlp"}}
    with pytest.raises(RunDirectoryError, match=r"another model\.name, seed"):
        refuse_other_settings(directory, other)
    refuse_other_settings(tmp_path / "none", other)  # is free


def test_resuming_a_job_changes_nothing_when_finished_and_refuses_other_settings(tmp_path, capsys):
    small = ["population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8"]
    directory = run(tmp_path / "0", *small)
    before = contents(directory)
    run(directory, *small, "sweep.resume=true")
    assert "nothing was changed" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match="another seed"):
        run(directory, *small, "seed=5", "sweep.resume=true")
    assert contents(directory) == before
