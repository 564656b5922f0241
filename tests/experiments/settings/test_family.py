"""A mechanism of one's own by its import path."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments.settings.factorization import find_family
from fedmf.errors import SettingError
from runs import model, run

pytestmark = pytest.mark.long

MINE = """
from fedmf.mechanisms import noising_family

FAMILY = noising_family("mine", lambda workload: [[float(i == j) for j in range(workload.rounds)] for i in range(workload.rounds)])
MATRIX = [[1.0]]
"""


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported, of a family of one's own and something else."""
    (tmp_path / "mine_of_the_mechanism_tests.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_of_the_mechanism_tests"


def test_a_family_is_found_by_its_name_or_import_path_and_nothing_else_is_one(importable: str) -> None:
    assert find_family("blt").name == "blt"
    assert find_family(f"{importable}:FAMILY").name == "mine"
    for attribute, message in (
        ("NOTHING", r"mechanism\.name is 'mine_of_the_mechanism_tests:NOTHING', which cannot be imported"),
        ("MATRIX", r"which is of type list; it must be a fedmf\.mechanisms\.Family"),
    ):
        with pytest.raises(SettingError, match=message):
            find_family(f"{importable}:{attribute}")


def test_a_run_with_a_mechanism_of_ones_own_adds_the_noise_of_its_stream(
    importable: str, tmp_path: Path
) -> None:
    """C^-1 = I: to the last bit the run of `independent`."""
    settings = ["population.cohort_size=100", "population.epochs=1", "run.reproducible=true"]
    own = run(tmp_path / "own", *settings, "mechanism=custom", f"mechanism.name={importable}:FAMILY")
    built_in = run(tmp_path / "built_in", *settings, "mechanism=independent")
    assert json.loads((own / "privacy.json").read_text())["mechanism"] == "mine"
    np.testing.assert_array_equal(model(own), model(built_in))
