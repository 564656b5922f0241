"""Runs without a run directory: the same pipeline as `simulate`, and what tuning may see."""

from dataclasses import replace

import numpy as np
import pytest

import runs
from client.data import Examples, load
from experiments.reproduce.trials import Cell, Trial, hold_out, play, prepare, scored, train
from fedmf.randomness import PublicSeed

pytestmark = pytest.mark.long

SMALL = (
    "population.cohort_size=8",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "optimizer.momentum=0.9",
)
DIGITS = Cell("digits", "optimal", 0.5, 8.0, (*SMALL, "compression.keep_probability=0.5"))
OWN = Cell("own", "optimal", 0.5, 8.0, (*SMALL, "dataset=by_user_npz", "dataset.classes=3"), needs_data=True)
CLIENTS, A_CLIENT = 40, 3


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "data.npz", arrays())


def arrays():
    """Return made-up data: 40 training users with three rows each, and 60 test rows."""
    rng = np.random.default_rng(3)
    rows = CLIENTS * A_CLIENT + 60
    split = (np.arange(rows) >= CLIENTS * A_CLIENT).astype(np.uint8)
    return {
        "x": rng.normal(size=(rows, 5)).astype(np.float32),
        "y": rng.integers(3, size=rows).astype(np.uint8),
        "user": np.where(split, 1000, np.arange(rows) // A_CLIENT),
        "split": split,
    }


def write(path, named):
    np.savez(path, **named)
    return path


def spoiled(named, rows):
    """Return the data with other inputs and other labels in some rows."""
    x, y = named["x"].copy(), named["y"].copy()
    x[rows], y[rows] = -3 * x[rows][:, ::-1], (y[rows] + 1) % 3
    return {**named, "x": x, "y": y}


def held_rows(trial, named):
    """The rows of the clients who are held out in a trial: those that its test examples are made of."""
    test = hold_out_of(trial, named).x
    return np.array([np.flatnonzero((named["x"] == row).all(1))[0] for row in test])


def hold_out_of(trial, named):
    everyone = [
        Examples(named["x"][i : i + A_CLIENT], named["y"][i : i + A_CLIENT].astype(np.int64))
        for i in range(0, CLIENTS * A_CLIENT, A_CLIENT)
    ]
    whole = replace(load("digits"), name="by_user_npz", clients=everyone, test=everyone[0])
    return hold_out(whole, trial.held_out, PublicSeed(trial.seed)).test


def test_a_trial_ends_in_the_model_of_simulate_bit_for_bit(tmp_path):
    experiment, secret = prepare(Trial(DIGITS, 0.25, seed=3), None)
    settings = (*DIGITS.overrides, "optimizer.learning_rate=0.25", "seed=3", "run.reproducible=true")
    directory = runs.run(tmp_path / "run", *settings)
    model = train(experiment, secret)
    np.testing.assert_array_equal(model, runs.model(directory))
    summary = runs.summary(directory)
    assert scored(experiment, model) == (round(summary["accuracy"], 5), round(summary["loss"], 5))


def test_a_trial_is_a_function_of_its_key_and_every_part_of_it_counts():
    trial = Trial(DIGITS, 0.25, seed=3)
    first = play(trial, None)
    assert play(trial, None).loss == first.loss
    others = [Trial(DIGITS, 0.5, 3), Trial(DIGITS, 0.25, 4), Trial(DIGITS, 0.25, 3, held_out=0.1)]
    losses = {play(other, None).loss for other in others}
    assert len(losses | {first.loss}) == 4
    assert len({one.key for one in (*others, trial)}) == 4


def test_other_settings_under_the_same_names_have_another_key():
    other = Cell("digits", "optimal", 0.5, 8.0, (*SMALL, "compression.keep_probability=0.4"))
    assert Trial(other, 0.25, 3).key != Trial(DIGITS, 0.25, 3).key


def test_the_secret_hangs_on_the_seed():
    secrets = {prepare(Trial(DIGITS, 0.25, seed), None)[1].reveal() for seed in range(3)}
    assert len(secrets) == 3


def test_tuning_never_touches_the_test_split(tmp_path):
    named = arrays()
    whole = write(tmp_path / "a.npz", named)
    other = write(tmp_path / "b.npz", spoiled(named, named["split"] == 1))
    tuning, final = Trial(OWN, 0.25, 3, held_out=0.2), Trial(OWN, 0.25, 3)
    assert without_seconds(play(tuning, whole)) == without_seconds(play(tuning, other))
    assert without_seconds(play(final, whole)) != without_seconds(play(final, other))


def test_held_out_clients_do_not_train_and_score_instead(tmp_path):
    named, trial = arrays(), Trial(OWN, 0.25, 3, held_out=0.2)
    rows = held_rows(trial, named)
    assert len(set(rows.tolist())) == 8 * A_CLIENT  # a fifth of 40 clients
    whole = write(tmp_path / "a.npz", named)
    other = write(tmp_path / "b.npz", spoiled(named, rows))
    (a, secret), (b, _) = prepare(trial, whole), prepare(trial, other)
    assert len(a.dataset.clients) == CLIENTS - 8 == a.plan.participation.clients
    assert not np.array_equal(a.dataset.test.x, b.dataset.test.x)
    np.testing.assert_array_equal(train(a, secret), train(b, secret))
    trained = write(tmp_path / "c.npz", spoiled(named, np.setdiff1d(np.arange(CLIENTS * A_CLIENT), rows)))
    assert not np.array_equal(train(a, secret), train(prepare(trial, trained)[0], secret))


def test_without_a_share_all_clients_train(data):
    experiment, _ = prepare(Trial(OWN, 0.25, 3), data)
    assert len(experiment.dataset.clients) == CLIENTS
    assert len(experiment.dataset.test) == 60


def test_each_seed_holds_out_other_clients():
    dataset = load("digits")
    held = [hold_out(dataset, 0.1, PublicSeed(seed)).test.x for seed in (1, 1, 2)]
    np.testing.assert_array_equal(held[0], held[1])
    assert not np.array_equal(held[0], held[2])


def test_a_model_that_is_not_finite_has_accuracy_zero():
    experiment, _ = prepare(Trial(DIGITS, 0.25, seed=3), None)
    assert scored(experiment, np.full_like(experiment.initial, np.nan)) == (0.0, None)


def without_seconds(outcome):
    return outcome.accuracy, outcome.loss
