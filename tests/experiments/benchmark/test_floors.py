"""What rows are held against is no code of ours: a slip that slows the floor as well would never show."""

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from client.training import Trainer
from experiments.benchmark import __main__ as benchmark, mechanisms, rounds, simulation, updates
from experiments.benchmark.row import measure
from experiments.benchmark.simulation import Federation
from fedmf import normals, randomness
from fedmf.mechanisms.optimum import smoother
from fedmf.mechanisms.streams.recurrence import RecurrentStream
from fedmf.updates import rotation
from server import journal
from server.aggregation import FixedPoint
from without_numba import without_numba

ROOT = Path(benchmark.__file__).parents[2]
OURS = ("client", "experiments", "fedmf", "server")  # not all beneath ROOT: `make setup` puts .venv there
WORK = {"client/models.py"}  # what clients train is the same work on both sides
FEDERATION = Federation("logistic", 10, cohort_size=6, examples=5)

# Rows of a size at which a turn takes milliseconds.
SMALL = {
    "design_2048": partial(mechanisms.design_row, 256),
    "gaussian_row": partial(mechanisms.normals, 1 << 16),
    "correlation_step": partial(mechanisms.correlation_step, 4, 1 << 16),
    "hadamard": partial(updates.rotation, 1 << 14),
    "mask": partial(updates.mask, 1 << 18, 0.01),
    "add_message": partial(updates.add_message, 1 << 18, 0.01),
    "server_round": partial(rounds.server_round, 1 << 14, 4, 0.1, 3),
    "simulation_logistic": partial(simulation.simulation, FEDERATION, None),
    "checkpoint": partial(rounds.checkpoint, Federation("mlp", 10)),
}


@pytest.fixture(autouse=True)
def short_epochs_in_numpy(monkeypatch):
    monkeypatch.setattr(simulation, "ROUNDS", 16)
    with without_numba():
        yield


def test_every_kind_of_row_is_looked_at():
    assert {row.func for row in SMALL.values()} == {row.func for row in benchmark.ROWS.values()}


@contextmanager
def files_run():
    """Collect the files of ours in which a function runs, those of the benchmark itself aside."""
    found = set()

    def look(frame, event, argument):
        if event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if any(path.is_relative_to(ROOT / room) for room in OURS):
            found.add(str(path.relative_to(ROOT)))

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)
        found -= {name for name in found if name.startswith("experiments/benchmark/")}


@pytest.mark.parametrize("name", SMALL)
def test_a_floor_runs_no_code_of_ours(name):
    row = SMALL[name]()
    row.floor(), row.run()  # what is imported or compiled at a first call is no part of it
    with files_run() as found:
        row.floor()
    assert found <= WORK
    with files_run() as found:
        row.run()
    assert found - WORK  # which the look would have seen


# What does a good part of the work of each row; at a slip of it eightfold every ratio at least doubles.
PARTS = {
    "design_2048": (smoother, "diagonal"),
    "gaussian_row": (normals, "fill_normals"),
    "correlation_step": (RecurrentStream, "_step"),
    "hadamard": (rotation, "hadamard"),
    "mask": (randomness, "uniform_words"),
    "add_message": (FixedPoint, "add"),
    "server_round": (randomness, "gaussian_row"),
    "simulation_logistic": (Trainer, "_train"),
    "checkpoint": (journal, "append"),
}


def slow(monkeypatch, owner, name):
    """Let a function or method of ours do its work eight times at each call, wherever it is used."""
    real = getattr(owner, name)

    def eight_times(*arguments, **keywords):
        for _ in range(7):
            real(*arguments, **keywords)
        return real(*arguments, **keywords)

    users = [
        module for module in list(sys.modules.values()) if getattr(module, "__dict__", {}).get(name) is real
    ]
    for user in {id(user): user for user in (owner, *users)}.values():
        monkeypatch.setattr(user, name, eight_times)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_slip_of_our_part_moves_the_ratio(name, monkeypatch):
    """In CPU time of this process; a floor that shared the part would take the ratio down, or leave it."""
    usual = measure(SMALL[name](), 9)["ratio"]
    slow(monkeypatch, *PARTS[name])
    assert measure(SMALL[name](), 9)["ratio"] > 1.5 * usual
