"""Resuming a sweep: finished jobs are skipped, cut ones set aside, others refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import written_run
from experiments.command import CONF
from experiments.sweep import skip_or_set_aside
from fedmf.errors import RunDirectoryError


def config(**changes: Any) -> Any:
    """Return the configuration of the written run, with changes."""
    return OmegaConf.create(written_run.CONFIG | changes)


def test_a_finished_run_of_the_same_settings_is_skipped(tmp_path: Path) -> None:
    directory = written_run.write(tmp_path / "0")
    assert skip_or_set_aside(directory, config())
    assert skip_or_set_aside(directory, config(output="json", engine={"workers": 8}, sweep={"resume": True}))


def test_an_empty_directory_is_neither_skipped_nor_touched(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    assert not skip_or_set_aside(tmp_path / "0", config())
    assert (tmp_path / "0").is_dir()


def test_an_unfinished_run_is_set_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    for number in (1, 2):
        directory = written_run.write(tmp_path / "0", summary=None)
        assert not skip_or_set_aside(directory, config())
        assert not directory.exists()
        assert (tmp_path / f"0.unfinished-{number}" / "metrics.jsonl").is_file()


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_other_settings_is_refused_and_left_alone(tmp_path: Path, finished: bool) -> None:
    directory = written_run.write(tmp_path / "0", **({} if finished else {"summary": None}))
    with pytest.raises(RunDirectoryError, match=r"another model\.name, seed"):
        skip_or_set_aside(directory, config(seed=2, model={"name": "mlp"}))
    assert (directory / "config.yaml").is_file()


def sweep(directory: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run a small sweep of four jobs, the first two of which diverge."""
    jobs = ["optimizer.learning_rate=1e38,0.3", "seed=1,2"]
    small = ["population.epochs=1", "population.rounds_per_epoch=2", "population.cohort_size=8"]
    command = [sys.executable, "-m", "experiments.simulate", "-m", f"hydra.sweep.dir={directory}"]
    return subprocess.run(
        [*command, *jobs, *small, *overrides],
        cwd=CONF.parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def summaries(directory: Path) -> dict[str, float]:
    """Return the wall seconds of every finished job by its number."""
    files = directory.glob("*/summary.json")
    return {file.parent.name: json.loads(file.read_text())["wall_seconds"] for file in files}


@pytest.mark.slow
def test_a_job_that_fails_loses_no_other_and_finished_ones_are_not_run_again(tmp_path: Path) -> None:
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    first = sweep(tmp_path, *launcher)
    assert first.returncode == 2, first.stderr
    assert "training diverged" in first.stderr
    done = summaries(tmp_path)
    assert set(done) == {"2", "3"}
    again = sweep(tmp_path, *launcher, "sweep.resume=true")
    assert again.stderr.count("skipped:") == 2
    assert summaries(tmp_path) == done
