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


def test_a_mechanism_of_ones_own_is_a_family_and_runs_bit_for_bit_as_the_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C^-1 = I: to the last bit the run of `independent`."""
    (tmp_path / "mine_of_the_mechanism_tests.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    for attribute, message in (
        ("NOTHING", "cannot be imported"),
        ("MATRIX", "is of type list; it must be a"),
    ):
        with pytest.raises(SettingError, match=message):
            find_family(f"mine_of_the_mechanism_tests:{attribute}")
    settings = ["population.cohort_size=100", "population.epochs=1", "run.reproducible=true"]
    named = ["mechanism=custom", "mechanism.name=mine_of_the_mechanism_tests:FAMILY"]
    own = run(tmp_path / "own", *settings, *named)
    built_in = run(tmp_path / "built_in", *settings, "mechanism=independent")
    assert json.loads((own / "privacy.json").read_text())["mechanism"] == "mine"
    np.testing.assert_array_equal(model(own), model(built_in))
