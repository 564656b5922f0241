"""What rows are held against is no code of ours: a slip that slows the floor as well would never show."""

import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from experiments.benchmark import __main__ as benchmark, kernels, rounds, simulation
from experiments.benchmark.simulation import Federation
from without_numba import without_numba

ROOT = Path(benchmark.__file__).parents[2]
OURS = ("client", "experiments", "fedmf", "server")  # not all beneath ROOT: `make setup` puts .venv there
WORK = {"client/models.py"}  # what clients train is the same work on both sides
FEDERATION = Federation("logistic", 10, cohort_size=6, examples=5)

# Rows of a size at which a turn takes milliseconds.
SMALL = {
    "design_2048": partial(kernels.design_row, 256),
    "gaussian_row": partial(kernels.normals, 1 << 16),
    "correlation_step": partial(kernels.correlation_step, 4, 1 << 16),
    "hadamard": partial(kernels.rotation, 1 << 14),
    "mask": partial(kernels.mask, 1 << 18, 0.01),
    "add_message": partial(kernels.add_message, 1 << 18, 0.01),
    "server_round": partial(rounds.server_round, 1 << 14, 4, 0.1, 3),
    "simulation_logistic": partial(simulation.simulation, FEDERATION, None),
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
