"""Whole runs whose workers' device has no room for the model: they stop, release nothing, and go on where there is room."""

import numpy as np
import pytest

import no_room
import runs
from experiments.cli.command import guard
from experiments.engines import engine, processes
from fedmf.errors import RunStoppedError

pytestmark = pytest.mark.long

SMALL = (
    *("model=custom", "population.cohort_size=10", "population.rounds_per_epoch=1", "mechanism=independent"),
    *("population.epochs=2", "run.reproducible=true", "output=json"),
)
NET = "model.name=no_room:Net"


def has_released_nothing(run):
    """Say whether no round of `run` was released: no metrics, no statement and no model."""
    metrics = run / "metrics.jsonl"
    return (not metrics.exists() or not metrics.read_text()) and not any(
        (run / name).exists() for name in ("privacy.json", "model.npz")
    )


@pytest.mark.parametrize("net", ["Net", "NetOfDeadDevice"])
def test_where_no_worker_has_room_for_the_model_nothing_is_released_and_the_run_goes_on_later(
    tmp_path, monkeypatch, capfd, net
):
    monkeypatch.setattr(processes, "PAUSE", 0.1)
    monkeypatch.setenv(no_room.FULL, str(tmp_path / "full"))
    (tmp_path / "full").touch()
    run, two = tmp_path / "run", (*SMALL, f"model.name=no_room:{net}", "engine.workers=2")
    assert guard(lambda: runs.run(run, *two)) == 1
    said = capfd.readouterr().err
    assert "error: no worker process can begin (OutOfMemoryError: CUDA out of memory." in said
    assert "nothing of the round was released" in said
    assert "zeros" not in said
    assert has_released_nothing(run)
    (tmp_path / "full").unlink()
    if net == "Net":
        straight = runs.run(tmp_path / "straight", *SMALL, NET)
        resumed = runs.run(run, *two, "run.resume=true")
        np.testing.assert_array_equal(runs.model(resumed), runs.model(straight))


def test_where_the_runs_own_process_has_no_room_it_stops_before_the_first_round(tmp_path, monkeypatch):
    """That there was room when it was rehearsed does not mean that there is now."""
    made, rehearsed = [], engine.Experiment.make_trainer

    def make(experiment):
        made.append(experiment)
        return no_room.refuse_room() if len(made) > 1 else rehearsed(experiment)

    monkeypatch.setattr(engine.Experiment, "make_trainer", make)
    with pytest.raises(
        RunStoppedError, match=r"trainer cannot be made \(OutOfMemoryError: CUDA out of memory"
    ):
        runs.run(tmp_path / "run", *SMALL, NET)
    assert has_released_nothing(tmp_path / "run")
