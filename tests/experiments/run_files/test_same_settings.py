"""Resuming a sweep: finished jobs are skipped, cut ones go on, other settings are refused."""

from pathlib import Path
from typing import Any

import pytest

import written_run
from experiments.run_files.same_settings import refuse_other_settings
from fedmf.errors import RunDirectoryError
from runs import run


def config(**changes: Any) -> Any:
    """Return the settings of the written run as plain values, with changes."""
    return written_run.CONFIG | changes


def test_the_same_settings_may_go_on_with_another_engine_and_output(tmp_path: Path) -> None:
    directory = written_run.write(tmp_path / "0")
    refuse_other_settings(directory, config())
    refuse_other_settings(directory, config(output="json", engine={"workers": 8}, sweep={"resume": True}))


def test_a_directory_without_a_run_is_free(tmp_path: Path) -> None:
    refuse_other_settings(tmp_path, config())
    refuse_other_settings(tmp_path / "none", config())


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_other_settings_is_refused_and_left_alone(tmp_path: Path, finished: bool) -> None:
    directory = written_run.write(tmp_path / "0", **({} if finished else {"summary": None}))
    with pytest.raises(RunDirectoryError, match=r"another model\.name, seed"):
        refuse_other_settings(directory, config(seed=2, model={"name": "mlp"}))
    assert (directory / "config.yaml").is_file()


def test_resuming_a_job_changes_nothing_when_finished_and_refuses_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8"]
    directory = run(tmp_path / "0", *small)
    before = {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()}
    run(directory, *small, "sweep.resume=true")
    assert "nothing was changed" in capsys.readouterr().err
    with pytest.raises(RunDirectoryError, match="another seed"):
        run(directory, *small, "seed=5", "sweep.resume=true")
    assert {file.name: file.read_bytes() for file in directory.iterdir() if file.is_file()} == before
