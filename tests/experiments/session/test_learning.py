"""Whether a run learnt: compared with chance and the start, rehearsed on public rows; and figures of unprotected runs alone."""

import random
import re
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

import runs
from client.data import Examples
from client.data.dataset import IGNORED_TARGET
from client.scoring import Score
from client.training import Trainer, usual_rate
from experiments import run
from experiments.pages.run_page import by_round_section, diagnostic_sections, run_page
from experiments.run_files.reader import read_run
from experiments.session import learning, progress, recorder
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings, of_the_run
from experiments.settings.values import plain
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

FEW = ("dataset=synthetic", "dataset.clients=60", "dataset.features=6", "population.cohort_size=10",
       "population.rounds_per_epoch=5", "population.epochs=2", "run.reproducible=true", "seed=4")  # fmt: skip
UNPROTECTED = {"measured_value_bytes", "clipped_share", *recorder.QUANTILES, "client_loss", "noise_over_sum"}


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    return runs.run(tmp_path_factory.mktemp("learnt") / "r", *FEW, "privacy.epsilon=20")


class Unread(list):
    """Clients whose examples may not be read."""

    def __getitem__(self, number):
        raise AssertionError("a training example was read")


def said(*overrides, **changes):
    """Return what is told of a run that ended at chance; its training data cannot be read."""
    settings = runs.composed(*FEW, *overrides)
    experiment = build(settings)
    dataset = replace(experiment.dataset, clients=Unread([None]), **changes)
    return learning.learning(settings, replace(experiment, dataset=dataset), Score(0.1, 3.0, 100))


def test_a_run_that_learnt_says_so_in_result_page_and_what_is_printed_with_chance_as_a_line(learnt, capsys):
    result = run.load(learnt)
    assert re.match(
        r"Learnt: accuracy .* better than always answering class \d .*; the loss fell from", result.learning
    )
    runs.simulate(runs.in_directory(learnt.parent / "again", *FEW, "privacy.epsilon=20"))
    assert result.learning in capsys.readouterr().out.replace("\n", "")
    page = run_page(result.run)
    assert result.learning in page.key_figures[0][2]
    chance = by_round_section(result.run, "accuracy").plot.series[1]
    assert (chance.label, *chance.y) == ("best constant answer", *[100 * result.summary["chance"]] * 2)


def test_a_diverged_run_is_told_so_first_on_its_page_with_a_rate_that_learns(tmp_path):
    directory = runs.run(tmp_path / "r", *FEW, "privacy.epsilon=20", "optimizer.learning_rate=1e20")
    result = run.load(directory)
    assert ", training diverged, the loss rose from " in result.learning
    assert "try optimizer.learning_rate=0.3." in result.learning
    assert result.learning in run_page(result.run).warnings


@pytest.mark.parametrize(("overrides", "says"), [
    (("client.learning_rate=1e-6",), "try client.learning_rate=1."),
    (("privacy.epsilon=0.1",), "try optimizer.learning_rate=0.03, which lets in less and reaches 22.3 % there."),
    (("privacy.epsilon=null", "privacy.noise_multiplier=0"), "which lets in less and reaches 22.3 % there."),
    (("privacy.epsilon=null", "privacy.noise_multiplier=0", "compression.keep_probability=1"), "look at the clients' data."),
])  # fmt: skip
@mock.patch.object(progress, "_PAUSE", -1.0)
def test_what_a_rehearsal_without_noise_tells_of_the_rates(overrides, says, capsys):
    found = said(*overrides)
    assert (found["learnt"], found["learning"].endswith(says)) == (False, True), found["learning"]
    assert "\ntrying the same rates | round 9/10" in capsys.readouterr().err


def test_a_rate_is_named_only_where_the_rehearsal_with_it_learns_and_nothing_is_left_of_one():
    x = np.random.default_rng(1).standard_normal((200, 6)).astype(np.float32)
    nothing = Examples(x, np.random.default_rng(2).integers(0, 10, 200))  # labels that no input tells
    before = torch.get_rng_state(), random.getstate()
    found = said("client.learning_rate=3", test=nothing)
    assert (torch.get_rng_state().equal(before[0]), random.getstate()) == (True, before[1])
    assert "try" not in found["learning"]
    assert "nor does client.learning_rate=1, client.learning_rate=0.9, " in found["learning"]


def test_chance_is_of_the_targets_that_the_accuracy_counts():
    experiment = build(runs.composed(*FEW))
    y = np.array([3] * 5 + [7] * 9 + [2] * 6 + [IGNORED_TARGET] * 30)
    test = Examples(np.zeros((50, 6), np.float32), y)
    base = learning.Baseline.of(
        replace(
            experiment, dataset=replace(experiment.dataset, test=test, uncounted=(7,), labels=("a", "b", "c"))
        )
    )
    assert (base.answer, base.chance) == ("class 'c'", 6 / 11)
    better = Score(0.999, base.loss * 3, 11), Score(0.7, 0.1, 1100)
    no_better = (
        Score(0.7, base.loss * 3, 1100),
        Score(0.999, np.inf, 11),
        Score(0.7, 0.1, 11),  # of 11 targets
    )
    assert [base.is_beaten_by(score) for score in (*better, *no_better)] == [True] * 2 + [False] * 3
    amounts = replace(base, chance=0.0, task="regression")
    assert [amounts.is_beaten_by(Score(np.nan, 0.1, 100, {"r2": r2})) for r2 in (np.nan, 0.089, 0.091)] == [
        False,
        False,
        True,
    ]
    assert said(test=Examples(test.x, y.astype(np.float32))) == {}


def test_the_clients_rate_fits_the_model_where_none_is_given_and_a_resume_keeps_the_runs_own():
    for overrides, rate in ((), 1.0), (("model=mlp",), 1.0), (("model=cnn",), 0.3), (("model=cnn", "client.learning_rate=1"), 1.0):  # fmt: skip
        trainer = build(runs.composed(*overrides)).make_trainer()
        assert trainer._settings.learning_rate == rate
    assert usual_rate(trainer._made, "regression") == 0.03
    begun = runs.composed("model=cnn", "client.learning_rate=1")
    resumed = compose("config", ["model=cnn"], Settings, of_the_run(plain(begun)))
    assert (resumed.model.name, resumed.client.learning_rate) == ("cnn", 1.0)
    assert compose("config", ["+experiment=mnist_cnn", "client.learning_rate=2"], Settings).client.learning_rate == 2  # fmt: skip


def test_diagnostics_are_of_unprotected_runs_alone_and_change_no_bit_of_the_model(
    learnt, tmp_path, monkeypatch
):
    for workers in ("1", "2"):
        options = ("privacy.epsilon=20", "run.unprotected_metrics=true", f"engine.workers={workers}")
        rows = runs.metrics(runs.run(tmp_path / workers, *FEW, *options))
        assert runs.model(tmp_path / workers).tobytes() == runs.model(learnt).tobytes()
        assert all(row.keys() >= UNPROTECTED for row in rows)
        assert [row | dict.fromkeys(UNPROTECTED) | {"seconds": 0} for row in rows] == [
            row | dict.fromkeys(UNPROTECTED) | {"seconds": 0} for row in runs.metrics(learnt)
        ]
    assert not any(UNPROTECTED & row.keys() for row in runs.metrics(learnt))
    assert [len([*diagnostic_sections(read_run(each))]) for each in (tmp_path / "1", learnt)] == [4, 0]
    assert "the norms of its clients' updates" in read_run(tmp_path / "1").privacy["not_covered"][-1]
    monkeypatch.delattr(recorder, "Diagnostics")
    with mock.patch.object(Trainer, "score", side_effect=Trainer.score, autospec=True) as scored:
        runs.run(tmp_path / "p", *FEW, "privacy.epsilon=20")
    assert scored.call_count == 1  # before training, on the test split
    with pytest.raises(SettingError, match=r"run\.unprotected_metrics is true, which is for simulations"):
        runs.composed("engine=deployment", "population.min_available=9", "run.unprotected_metrics=true")


def test_the_figures_are_those_of_the_cohorts_turns_and_of_the_noise(tmp_path):
    one_round = ("population.cohort_size=60", "population.rounds_per_epoch=1", "population.epochs=1", "clipping.l2_norm=2",
                 "clipping.linf_norm=2", "compression.keep_probability=1", "run.unprotected_metrics=true")  # fmt: skip
    experiment = build(runs.composed(*FEW, *one_round))
    plan, trainer = experiment.plan, experiment.make_trainer()
    updates = [
        trainer.update(experiment.initial, client.x, client.y, order=plan.seed.generator("data order", str(number), 0))
        for number, client in enumerate(experiment.dataset.clients)
    ]  # fmt: skip
    norms = np.linalg.norm(updates, axis=1)
    (row,) = runs.metrics(runs.run(tmp_path / "r", *FEW, *one_round))
    assert [row[name] for name in recorder.QUANTILES] == pytest.approx(
        np.quantile(norms, [*recorder.QUANTILES.values()]), rel=1e-5
    )
    assert row["clipped_share"] == np.mean(norms > 2)
    total = np.linalg.norm(np.sum(updates * np.minimum(1, 2 / norms)[:, None], axis=0))
    assert row["noise_over_sum"] == pytest.approx(plan.sigma * np.sqrt(plan.dimension) / total, rel=0.4)
