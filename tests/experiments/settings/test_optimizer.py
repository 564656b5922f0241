"""Optimizers and mechanisms: the choices, custom code by its import path, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.settings.experiment import build
from experiments.settings.factorization import find_family
from experiments.settings.optimizer import build_optimizer
from fedmf.errors import SettingError
from fedmf.mechanisms import of_run
from fedmf.mechanisms.schedules import rates
from runs import composed, model, page_section, run

MINE = """
import numpy as np
from server import Optimizer, Sgd

def signs(rate=0.1) -> Optimizer:
    def update(release, state, parameters, progress):
        return parameters + np.float32(rate) * np.sign(release), {}

    return Optimizer(lambda parameters: {}, update, momentum=0.25, schedule="decay")

def leaving() -> Optimizer:
    raise SystemExit(0)

def changing(rates) -> Optimizer:
    return signs(rates.pop())

def drawing() -> Optimizer:
    def update(release, state, parameters, progress):
        return parameters + np.random.default_rng().normal(size=len(parameters)).astype("f4"), {}

    return Optimizer(lambda parameters: {}, update)

def unsaid(rate=0.1):
    return signs(rate)

def lying() -> Sgd:
    return 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module that can be imported, with custom optimizers."""
    (tmp_path / "mine_of_the_optimizer_tests.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    return "mine_of_the_optimizer_tests"


def custom(name, settings="null"):
    return composed("optimizer=custom", f"optimizer.name={name}", f"optimizer.settings={settings}")


@pytest.mark.parametrize(
    ("attribute", "settings", "said"),
    [
        ("unsaid", "null", "does not say that it makes a Optimizer, so that it was not called"),
        ("signs", "{rat: 0.5}", r"rat is 0.5, but .*:signs does not use it; it takes rate"),
        ("leaving", "null", r"which raised SystemExit when it was made \(0\)"),
        ("lying", "null", "which made a int, no Optimizer"),
    ],
)
def test_what_is_no_optimizer_is_refused(mine, attribute, settings, said):
    with pytest.raises(SettingError, match=said):
        build_optimizer(custom(f"{mine}:{attribute}", settings).optimizer)


def test_an_optimizer_that_a_resumed_run_would_not_continue_with_is_refused_before_the_run(mine):
    with pytest.raises(SettingError, match=r"as a resumed run does.*must be a pure function"):
        build(custom(f"{mine}:drawing"))


def test_the_noise_is_fitted_to_the_momentum_and_schedule_that_an_optimizer_says(mine):
    size = ["population.cohort_size=100", "population.rounds_per_epoch=4", "population.epochs=2"]
    for beta, shares, chosen in [
        (0.25, rates("decay", 8), ["optimizer=custom", f"optimizer.name={mine}:signs"]),
        (0.9, rates("cooldown", 8), ["optimizer=adam", "optimizer.schedule=cooldown"]),
        (0.9, None, ["optimizer.nesterov=true", "optimizer.weight_decay=0.1"]),
    ]:
        assert build(composed(*size, *chosen)).plan.factorization.workloads == of_run(4, 2, beta, shares)


def test_preconditioning_in_a_run_of_one_epoch_is_refused():
    with pytest.raises(SettingError, match=r"precondition is true, but population\.epochs is 1"):
        build(composed("optimizer=adam", "optimizer.precondition=true", "population.epochs=1"))


def test_the_example_of_the_documentation_is_an_optimizer_that_a_run_takes(tmp_path, monkeypatch):
    text = page_section("extend.md", "Server optimizers")
    (code,) = re.findall(r"```python\n# mine\.py\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine_of_the_documentation.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = build(custom("mine_of_the_documentation:signs", "{rate: 0.02}"))
    assert experiment.optimizer.momentum == experiment.plan.factorization.workloads[0].momentum == 0.9


MINE_FAMILY = """
from fedmf.mechanisms import noising_family

FAMILY = noising_family("mine", lambda workload: [[float(i == j) for j in range(workload.rounds)] for i in range(workload.rounds)])
MATRIX = [[1.0]]
"""


@pytest.mark.long
def test_a_mechanism_of_ones_own_is_a_family_and_runs_bit_for_bit_as_the_built_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C^-1 = I: to the last bit the run of `independent`."""
    (tmp_path / "mine_of_the_mechanism_tests.py").write_text(MINE_FAMILY)
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
