"""docs/one_round.md is the real thing: its program gives the models of the Flower strategy, bit for bit."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from client.app import ClientPlan, make_client_app
from client.data import load
from client.settings import TrainingSettings
from client.training import Trainer
from experiments.engines.grid import InProcessWorker, LocalGrid
from fedmf.mechanisms import design_run, of_run
from fedmf.plan import Compression, Participation, PrivacyTarget, make_bounds, make_plan
from fedmf.randomness import PublicSeed, SecretKey
from server.cohort import SimulatedPopulation
from server.optimizer import Sgd
from server.state import first_state
from server.strategy import FedMF

PAGE = Path(__file__).resolve().parents[1] / "docs" / "one_round.md"
PROGRAM = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
ROUNDS_PER_EPOCH = 22

# One thing wrong in each: what stands on the page, and what replaces it.
MISTAKES = {
    "other noise multiplier": ("sigma = z *", "sigma = 1.001 * z *"),
    "other keep probability": ("gamma, l2_norm = 0.1,", "gamma, l2_norm = 0.11,"),
    "other cohort size": ("N, n, T, E = len(data.clients), 64,", "N, n, T, E = len(data.clients), 65,"),
    "other clip norm": ("gamma, l2_norm = 0.1, 1.0", "gamma, l2_norm = 0.1, 0.9"),
    "not clipped after the rotation": (
        "clip_linf(clip_l2(values, l2_norm, norm=turned.norm), linf_norm)",
        "values",
    ),
    "not rotated back": ("rotation.unrotate(grid.value(total))", "grid.value(total)[:d]"),
    "independent noise": (
        "released(unrotated, noise,",
        "released(unrotated, type(noise)(0 * noise.mean, 1.0, noise.fresh),",
    ),
    "priced at a million times the rounding": ("precision=price.a", "precision=1e6 * price.a"),
    "one mask for all clients": ("key.mask_key(str(client), step)", 'key.mask_key("0", step)'),
    "divided by n alone": ("total / (gamma * n)", "total / n"),
}
ONE_ROUND = [("in range(E)", "in range(1)"), ("in range(T)", "in range(1)")]
SHORT = 3  # rounds of an epoch: enough to see what a restart does
SHORT_EPOCHS = (
    "N, n, T, E = len(data.clients), 64, 22, 2",
    f"N, n, T, E = len(data.clients), 64, {SHORT}, 2",
)
MISTAKES_AT_THE_RESTART = {
    "key kept over epochs": ("key = key.ratchet()", "pass"),
    "first epoch's cohorts again": ("epoch=epoch, step=step, seed=seed)", "epoch=0, step=step, seed=seed)"),
    "momentum started afresh": (
        "stream_state = mechanisms[epoch].stream.init(d)",
        "velocity, stream_state = 0 * velocity, mechanisms[epoch].stream.init(d)",
    ),
    "first epoch's mechanism again": ("mechanism = mechanisms[epoch]", "mechanism = mechanisms[0]"),
}


def strategy_models(start, epochs, key, rounds_per_epoch=ROUNDS_PER_EPOCH):
    """Return the model after every round of the real strategy, with the settings of the page."""
    data = load("digits")
    compression = Compression(keep_probability=0.1)
    plan = make_plan(
        dimension=len(start),
        participation=Participation(len(data.clients), 64, rounds_per_epoch, epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=1.0, linf_norm=None, dimension=len(start), cohort_size=64, compression=compression
        ),
        privacy=PrivacyTarget(delta=1e-4, epsilon=8),
        factorization=design_run("optimal", of_run(rounds_per_epoch, 2, 0.9)),
        seed=PublicSeed(0),
    )
    client_app = make_client_app(
        lambda client, context: data.clients[int(client)],
        lambda: Trainer(logistic(), TrainingSettings(learning_rate=1.0, device="cpu")),
        ClientPlan(plan.bounds, plan.rotation, 0.1, plan.seed),
    )
    models = []
    strategy = FedMF(
        plan,
        Sgd(learning_rate=0.3, momentum=0.9),
        SimulatedPopulation(),
        first_state(plan, start, key),
        on_release=[lambda state, release: models.append(state.model)],
        tasks_per_message=8,
    )
    strategy.start(LocalGrid(InProcessWorker(client_app)))
    return models


def logistic():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def page(*replacements):
    """Return the names of the page's program after a run under one key, with each (old, new) replaced."""
    program = PROGRAM
    for old, new in [("SecretKey.generate()", "SecretKey.reproducible(11)"), *replacements]:
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    names = {}
    with torch.random.fork_rng(devices=[]):
        exec(program, names)
    return names


@pytest.fixture(scope="module")
def right():
    return page()


@pytest.fixture(scope="module")
def expected(right):
    return strategy_models(right["start"], right["E"], SecretKey.reproducible(11))


def test_the_page_gives_the_strategys_model_after_every_round_bit_for_bit(right, expected):
    assert len(right["models"]) == len(expected) == 2 * ROUNDS_PER_EPOCH
    for ours, strategys in zip(right["models"], expected, strict=True):
        assert ours.dtype == strategys.dtype == np.float32
        np.testing.assert_array_equal(ours, strategys)


def test_the_page_learns(right):
    assert right["right"].mean() > 0.8  # chance is 0.1


def test_the_program_of_the_page_fits_a_page():
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 72


@pytest.fixture(scope="module")
def first_round():
    return page(*ONE_ROUND)["models"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_the_page_would_be_seen_in_the_first_round(mistake, first_round, expected):
    wrong = page(MISTAKES[mistake], *ONE_ROUND)["models"]
    assert len(first_round) == len(wrong) == 1
    np.testing.assert_array_equal(first_round[0], expected[0])
    assert not np.array_equal(wrong[0], expected[0])


@pytest.fixture(scope="module")
def short(right):
    """The strategy's models where an epoch is short, which are the page's."""
    models = strategy_models(right["start"], 2, SecretKey.reproducible(11), SHORT)
    for ours, strategys in zip(page(SHORT_EPOCHS)["models"], models, strict=True):
        np.testing.assert_array_equal(ours, strategys)
    return models


@pytest.mark.parametrize("mistake", MISTAKES_AT_THE_RESTART)
def test_a_mistake_at_the_restart_would_be_seen_in_the_second_epoch(mistake, short):
    wrong = page(MISTAKES_AT_THE_RESTART[mistake], SHORT_EPOCHS)["models"]
    for ours, strategys in zip(wrong[:SHORT], short, strict=False):
        np.testing.assert_array_equal(ours, strategys)
    assert not np.array_equal(wrong[SHORT], short[SHORT])
