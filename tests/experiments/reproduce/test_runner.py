"""Runs are made once, by `experiments.run`, in processes of their own; what is there is not made again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from client.data import digits
from experiments.reproduce import runner, study as studying
from experiments.reproduce.results import Outcome, Results
from experiments.reproduce.runner import Means, compute, tuned_rates
from experiments.reproduce.study import Study, Trial
from fedmf.errors import DataError, SettingError

TINY = """
title: Tiny
page: tiny
runs: tiny
held_out: 0.1
settings: ["compression.keep_probability={keep:g}", "privacy.epsilon={epsilon:g}", population.cohort_size=8]
mechanisms:
  optimal: {settings: [mechanism=optimal]}
  independent: {settings: [mechanism=independent]}
compared: [optimal, independent]
sizes:
  small:
    seeds: 2
    more: 1
    keep: [0.5]
    epsilon: [8.0]
    tasks:
      digits:
        start: 0.3
        data: false
        settings: [dataset=digits, privacy.delta=1e-5, population.rounds_per_epoch=2, population.epochs=2]
"""


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(studying, "studies", lambda: {"tiny": yaml.safe_load(TINY)})
    return Study("tiny", None)


def scores(path):
    lines = map(json.loads, path.read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in ("seconds", "wall")} for line in lines]


@pytest.mark.long
def test_a_study_is_computed_once_and_the_same_again(tiny, tmp_path):
    path, means = tmp_path / "tiny.jsonl", Means(None, tmp_path / "runs", 2)
    compute(tiny, Results(path), means)
    first, runs = scores(path), sorted(means.runs.iterdir())
    assert all(line["code"] and 0 <= line["accuracy"] <= 1 for line in first)
    assert len(runs) == len(first)
    tuned = tuned_rates(tiny, Results(path))
    assert set(tuned) == set(tiny.cells)
    for cell, rate in tuned.items():  # two that lie close have a third run
        assert set(Results(path).runs(cell, rate).accuracies) in ({0, 1}, {0, 1, 2})
    stamps = [file.stat().st_mtime_ns for file in runs]
    kept = path.read_text().splitlines()
    path.write_text("\n".join(kept[1:]) + "\n")  # a run whose line is lost is read from its directory
    compute(tiny, Results(path), means)
    assert scores(path) == first
    assert [file.stat().st_mtime_ns for file in sorted(means.runs.iterdir())] == stamps
    before = path.read_bytes()
    shutil.rmtree(means.runs)
    compute(tiny, Results(path), means)
    assert path.read_bytes() == before
    assert not means.runs.exists()


def test_held_out_clients_score_and_do_not_train():
    everyone = digits.load()
    dataset = runner.held_out(["dataset=digits"], 0.1, 100)
    again, other = (runner.held_out(["dataset=digits"], 0.1, seed) for seed in (100, 101))
    clients = len(everyone.clients)
    assert len(dataset.clients) == clients - clients // 10
    assert len(dataset.test) == clients // 10  # one image each
    np.testing.assert_array_equal(dataset.test.x, again.test.x)
    assert not np.array_equal(dataset.test.x, other.test.x)
    trained, held = (
        {one.tobytes() for one in images}
        for images in ((client.x[0] for client in dataset.clients[:]), dataset.test.x)
    )
    assert trained | held == {client.x[0].tobytes() for client in everyone.clients[:]}
    assert not trained & held


def test_runs_that_need_data_say_which_and_other_data_are_refused(tmp_path):
    study, results = Study("sgmf_femnist", "small"), Results(tmp_path / "sgmf.jsonl")
    with pytest.raises(
        SettingError,
        match=r"data is null, but sgmf_femnist trains on real data. Set data=mnist_by_writer\.npz",
    ):
        compute(study, results, Means(None, tmp_path / "runs"))
    arrays = {name: np.zeros(3, np.uint8) for name in runner.ARRAYS}
    np.savez(tmp_path / "other.npz", **arrays)
    with pytest.raises(DataError, match="not the data of the committed results"):
        compute(study, results, Means(tmp_path / "other.npz", tmp_path / "runs"))
    for name, content in (("a.npz", b"x"), ("a.gz", b"x")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"{name}: cannot be read"):
            runner.check_data(tmp_path / name, study)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_diverged_counts_as_no_accuracy(tiny, tmp_path, monkeypatch):
    diverged = SimpleNamespace(summary={"accuracy": 0.1, "loss": None})
    given = {}
    monkeypatch.setattr(
        runner, "run", lambda *overrides, **more: given.update(more, overrides=overrides) or diverged
    )
    found = runner.play(tiny, Means(None, tmp_path), Trial(tiny.cells[0], 0.3, 5))
    assert (found.accuracy, found.loss) == (0.0, None)
    assert given["seed"] == 5
    assert given["optimizer"] == {"learning_rate": 0.3}
    assert {"run.resume=true", "run.reproducible=true"} <= set(given["overrides"])


def test_texts_are_tuned_by_likelihood_and_scored_by_known_words(tmp_path, monkeypatch):
    study = Study("sgmf_text", "small")

    scored = SimpleNamespace(summary={"accuracy": 0.1, "loss": 4.60517}, scores={"KnownWords": 0.25})
    given = []
    monkeypatch.setattr(runner, "run", lambda *overrides, **more: given.append(overrides) or scored)
    means, cell = Means(Path("/data"), tmp_path), study.cells[0]
    tuned, final = (runner.play(study, means, Trial(cell, 0.3, 0, share)) for share in (0.3, 0.0))
    assert (tuned.accuracy, final.accuracy) == (0.0100000019, 0.25)
    assert any("sgmf_text_words.txt" in one for one in given[1])
    assert replace(final, seconds=0.0, wall=None).loss == 4.60517
    assert isinstance(final, Outcome)
