"""A deployed run continues: resumed by overrides that are given whole, and extended, inside the test process."""

import pytest

from crashes import Crash
from experiments.deployment.apps import run_settings
from experiments.deployment.server import deploy
from fedmf.errors import PrivacyBudgetExhausted, RunDirectoryError
from nodes import DATA, network
from runs import metrics, summary

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("in_this_process")]

SMALL = (
    f"{DATA} population.cohort_size=4 population.epochs=2 privacy.epsilon=null privacy.noise_multiplier=0.5 "
    "population.min_available=12 population.max_clients_per_node=100 engine.node_timeout=0.05"
)


def deployed(directory, more="", dies_in=None, base=SMALL):
    """Deploy with two nodes; the server dies when it asks for the round `dies_in`."""
    run = f"run.directory={directory} {base} {more}"

    def look(message):
        if message.metadata.group_id == dies_in:
            raise Crash

    deploy(run_settings(run), network(run, look=look))


def test_a_resume_whose_overrides_are_not_whole_is_refused_with_those_that_are_missing(tmp_path):
    """A node would train the default model, clip and mask by the default settings, and nobody would know."""
    with pytest.raises(Crash):
        deployed(tmp_path / "r", "model=mlp model.hidden=4", dies_in="2")
    before = metrics(tmp_path / "r")
    alone = "population.min_available=12 run.resume=true"
    refusal = r"add to overrides: .*dataset=synthetic.*model=mlp"
    with pytest.raises(RunDirectoryError, match=refusal) as refused:
        deployed(tmp_path / "r", base=alone)
    missing = str(refused.value).partition("add to overrides: ")[2]
    assert metrics(tmp_path / "r") == before
    deployed(tmp_path / "r", base=f"{alone} engine.node_timeout=0.05 {missing}")
    assert summary(tmp_path / "r")["rounds"] == 6


def test_a_deployed_run_is_extended_and_the_extension_resumed(tmp_path):
    deployed(tmp_path / "r")
    held = summary(tmp_path / "r")
    with pytest.raises(PrivacyBudgetExhausted, match=r"privacy\.max_epsilon="):
        deployed(tmp_path / "r", "run.extend=1")
    assert summary(tmp_path / "r") == held
    more = "privacy.max_epsilon=1000"
    with pytest.raises(Crash):
        deployed(tmp_path / "r", f"run.extend=1 {more}", dies_in="8")
    with pytest.raises(RunDirectoryError, match=r"add to overrides: privacy\.max_epsilon=1000"):
        deployed(tmp_path / "r", "run.resume=true")
    deployed(tmp_path / "r", f"run.resume=true {more}")
    longer = summary(tmp_path / "r")
    assert (longer["epochs"], longer["rounds"]) == (3, 9)
    assert longer["epsilon"] > held["epsilon"]
    assert longer["noise_multiplier"] == held["noise_multiplier"]
