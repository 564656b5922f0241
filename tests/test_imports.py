"""What a start may not load: imports are a large part of what a short command or a worker process costs."""

import json
import subprocess
import sys

import pytest

from runs import ROOT, STATE

HEAVY = ("torch", "flwr", "grpc", "scipy", "sklearn", "pandas", "matplotlib", "rich", "ray", "dp_accounting")
NEVER = (
    "scipy.signal",
    "scipy.stats",
    "sklearn",
    "pandas",
    "sympy",
    "ray",
    "dp_accounting",
    "sqlalchemy",  # of Flower's SuperLink, which engine=ray alone takes something from
)  # 3 s of CPU together
# One process for all: each step is given what is loaded after it.
PROGRAM = """
import json, sys
loaded = {}
def note(step):
    loaded[step] = sorted(sys.modules)
import experiments.simulate
note("the command before it knows what is asked")
import experiments.plan
note("a plan")
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
settings = compose("config", sys.argv[1:], Settings)
from experiments.engines.engine import resident_client_app
from client.data import load
resident_client_app(settings, load("digits").public)
note("a worker process")
from experiments.session.session import simulate
from pathlib import Path
simulate(settings, Path(settings.run.directory))
note("a whole run")
json.dump(loaded, open("loaded.json", "w"))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """{step: what is loaded after it}."""
    folder = tmp_path_factory.mktemp("imports")
    options = ("run.directory=r", "population.cohort_size=3", "population.rounds_per_epoch=2", "optimizer.momentum=0.9",
               "population.epochs=2", "privacy.epsilon=null", "privacy.noise_multiplier=1")  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", **STATE},
        capture_output=True,
        check=True,
    )
    assert (folder / "r/report.html").exists()
    return json.loads((folder / "loaded.json").read_text())


@pytest.mark.parametrize(
    ("step", "kept_out"),
    [
        ("the command before it knows what is asked", HEAVY),
        ("a plan", ("torch", "flwr", "matplotlib", "sklearn", "pandas", "pyarrow", "rich.progress")),
        ("a worker process", (*NEVER, "scipy.optimize", "matplotlib", "numba")),
        ("a whole run", NEVER),
    ],
)
def test_a_start_loads_nothing_that_it_has_no_need_of(loaded, step, kept_out):
    assert not set(kept_out) & set(loaded[step])


def test_what_is_kept_out_of_a_start_is_there_to_be_loaded(loaded):
    assert {"torch", "flwr"} <= set(loaded["a worker process"])
    assert {"scipy.special", "matplotlib"} <= set(loaded["a whole run"])
