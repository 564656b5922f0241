"""Optuna chooses by what the runs return: real sweeps on the command line."""

import json
import math

import pytest
import yaml

from runs import command

SMALL = ("dataset=synthetic", "dataset.clients=40", "dataset.features=4", "population.cohort_size=10",
         "population.epochs=1", "population.rounds_per_epoch=2", "output=json")  # fmt: skip
SWEEP = ("-m", "hydra/sweeper=optuna", "hydra.sweep.dir=sweep")
SEEDED = (*SWEEP, "hydra.sweeper.sampler.seed=1")

OWN = """
def picky(outputs, targets) -> float:
    return float("nan") if outputs.abs().max() > 30 else 1 + float((outputs.argmax(-1) == targets).float().mean())
"""


def summaries(directory):
    """Return {job: summary} of a sweep's finished jobs."""
    return {int(file.parent.name): json.loads(file.read_text()) for file in directory.glob("*/summary.json")}


def results(directory):
    """Return what the sweeper wrote."""
    return yaml.safe_load((directory / "optimization_results.yaml").read_text())


@pytest.mark.slow
def test_the_best_value_of_a_sweep_is_that_of_a_run_and_resuming_it_trains_nothing_again(tmp_path):
    arguments = (*SEEDED, *SMALL, "hydra.sweeper.n_trials=3", "hydra.sweeper.direction=maximize", "metrics=[f1]",
                 "run.optimized_metric=f1", "optimizer.learning_rate=tag(log,interval(0.01,3))")  # fmt: skip
    first = command(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("Choosing settings by the f1 of runs like this one is not covered") == 3
    documents = first.stdout.replace("}\n{", "}\x00{").split("\x00")  # output=json prints one for each trial
    assert ["f1" in json.loads(text) for text in documents] == [True] * 3
    done, chosen = summaries(tmp_path / "sweep"), results(tmp_path / "sweep")
    best = max(done, key=lambda job: done[job]["f1"])
    assert chosen["best_value"] == done[best]["f1"]
    config = yaml.safe_load((tmp_path / "sweep" / str(best) / "config.yaml").read_text())
    assert chosen["best_params"] == {"optimizer.learning_rate": config["optimizer"]["learning_rate"]}
    (tmp_path / "sweep" / "optimization_results.yaml").unlink()
    again = command(*arguments, "sweep.resume=true", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("nothing was changed") == 3
    assert (summaries(tmp_path / "sweep"), results(tmp_path / "sweep")) == (done, chosen)


@pytest.mark.slow
def test_a_run_that_diverges_or_has_no_value_is_a_failed_trial_that_is_not_chosen(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    rates = "optimizer.learning_rate=choice(0.1,1000.0,1e38)"
    arguments = (*SWEEP, *SMALL, "hydra/sweeper/sampler=random", "hydra.sweeper.n_trials=4", "hydra.sweeper.sampler.seed=9",
                 "hydra.sweeper.direction=maximize", "metrics=[own:picky]", "run.optimized_metric=picky", rates)  # fmt: skip
    going_on = command(*arguments, "hydra.sweeper.max_failure_rate=1", cwd=tmp_path)
    assert going_on.returncode == 0, going_on.stderr
    assert going_on.stderr.count("Failed experiment: ") == 3  # of 1000, 1e38, 0.1, 1e38
    assert "training diverged" in going_on.stderr
    assert "run.optimized_metric is picky, which the run in" in going_on.stderr
    chosen = results(tmp_path / "sweep")
    assert chosen["best_params"] == {"optimizer.learning_rate": 0.1}
    assert math.isfinite(chosen["best_value"])


@pytest.mark.slow
def test_a_sweep_that_could_learn_nothing_ends_before_its_first_run(tmp_path):
    rate = "optimizer.learning_rate=interval(0.1,1)"
    refused = command(*SEEDED, *SMALL, rate, "run.optimized_metric=accuracy", cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert "is minimize; it must be maximize for accuracy" in refused.stderr.splitlines()[-1]
    assert not summaries(tmp_path / "sweep")
