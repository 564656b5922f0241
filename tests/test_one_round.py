"""docs/one_round.md is the real thing: its program gives the models of the Flower strategy, bit for bit."""

import re
from pathlib import Path

import numpy as np
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


def strategy_models(start, epochs, key):
    """Return the model after every round of the real strategy, with the settings of the page."""
    data = load("digits")
    compression = Compression(keep_probability=0.1)
    plan = make_plan(
        dimension=len(start),
        participation=Participation(len(data.clients), 64, ROUNDS_PER_EPOCH, epochs),
        compression=compression,
        bounds=make_bounds(
            l2_norm=1.0, linf_norm=None, dimension=len(start), cohort_size=64, compression=compression
        ),
        privacy=PrivacyTarget(delta=1e-4, epsilon=8),
        factorization=design_run("optimal", of_run(ROUNDS_PER_EPOCH, 2, 0.9)),
        seed=PublicSeed(0),
    )
    client_app = make_client_app(
        lambda client, context: data.clients[int(client)],
        lambda: Trainer(logistic(), TrainingSettings(learning_rate=1.0, device="cpu"), "classification"),
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


def page():
    """Return the names of the page's program after a run under a key that is no secret."""
    assert PROGRAM.count("SecretKey.generate()") == 1
    program, names = PROGRAM.replace("SecretKey.generate()", "SecretKey.reproducible(11)"), {}
    with torch.random.fork_rng(devices=[]):
        exec(program, names)
    return names


def test_the_page_gives_the_strategys_model_after_every_round_bit_for_bit():
    """Two epochs: masks, cohorts, the key's ratchet, the momentum over the restart, and the price of the noise."""
    names = page()
    expected = strategy_models(names["start"], names["E"], SecretKey.reproducible(11))
    assert len(names["models"]) == len(expected) == 2 * ROUNDS_PER_EPOCH
    for ours, strategys in zip(names["models"], expected, strict=True):
        assert ours.dtype == strategys.dtype == np.float32
        np.testing.assert_array_equal(ours, strategys)


def test_the_program_of_the_page_fits_a_page():
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) <= 72
