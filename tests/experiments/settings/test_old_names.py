"""One name for one thing in plan, mechanisms and simulate; short names that were there before stay accepted."""

import json
import logging

import pytest

from experiments.cli import command
from experiments.mechanisms.__main__ import mechanisms
from experiments.mechanisms.designs import MechanismsSettings
from experiments.plan.__main__ import main as plan
from experiments.plan.budget import PlanSettings
from experiments.settings.compose import compose
from experiments.settings.old_names import renamed
from experiments.settings.reference import reference
from fedmf.errors import SettingError

pytestmark = pytest.mark.long

VALUES = {
    "rounds": "8", "cohort_size": "5", "rounds_per_epoch": "3", "epochs": "2", "keep_probability": "0.25", "rotation": "identity",
    "delta": "1e-6", "adjacency": "replace", "accountant": "tight", "epsilon": "2", "noise_multiplier": "1.5",
    "momentum": "0.5", "schedule": "decay",
}  # fmt: skip
CONTRACT = {  # the command contract's own names, which stay
    "plan": "clients dimension rotation cohort_size rounds_per_epoch epochs keep_probability linf_over_l2 delta adjacency "
    "accountant mechanism orders epsilon noise_multiplier momentum schedule workload output",
    "mechanisms": "rounds epochs workload momentum schedule families buffers export plots output",
}


@pytest.mark.parametrize("settings", [PlanSettings, MechanismsSettings])
def test_what_a_run_has_too_is_called_as_there(settings):
    name = settings.__name__.removesuffix("Settings").lower()
    shared = [key for key in reference(name).keys if "." in key]
    never_short = {"mechanism.name", "privacy.geometry"}  # they came when short names were old already
    assert sorted(set(shared) - never_short) == sorted(settings.old_names.values())
    assert set(shared) <= set(reference("simulate").keys)


@pytest.mark.parametrize(("name", "settings"), [("plan", PlanSettings), ("mechanisms", MechanismsSettings)])
def test_every_name_of_the_contract_is_accepted(name, settings):
    known = {*reference(name).keys, *reference(name).groups, *settings.old_names}
    assert set(CONTRACT[name].split()) <= known


@pytest.mark.parametrize(
    ("conf", "settings", "old"),
    [(name, settings, old) for name, settings in (("plan", PlanSettings), ("mechanisms", MechanismsSettings)) for old in settings.old_names],
)  # fmt: skip
def test_an_old_name_gives_what_the_new_one_gives_and_says_so_in_one_line(conf, settings, old, caplog):
    if conf == "plan":
        other = [] if old in ("epsilon", "noise_multiplier") else ["privacy.noise_multiplier=3"]
    else:
        other = ["workload=run"]
    if old == "adjacency":
        other.append("privacy.accountant=rdp")
    new = settings.old_names[old]
    with caplog.at_level(logging.WARNING, "experiments.settings.old_names"):
        by_new = compose(conf, [*other, f"{new}={VALUES[old]}"], settings)
        assert caplog.messages == []
        by_old = compose(conf, [*other, f"{old}={VALUES[old]}"], settings)
    assert by_old == by_new
    assert by_new != compose(conf, other or ["privacy.epsilon=9"], settings)
    (said,) = caplog.messages
    assert said.startswith("note: short names are accepted; with the names of `simulate` this is ")
    assert said.endswith(f" {new}={VALUES[old]}")
    assert (" dataset=null " in said) == (conf == "plan")


def test_a_setting_by_both_of_its_names_is_refused():
    with pytest.raises(
        SettingError, match=r"epochs is the old name of population\.epochs, and both are given"
    ):
        renamed(["epochs=2", "population.epochs=3"], MechanismsSettings)


def printed(capsys, main, *arguments):
    with pytest.raises(SystemExit) as end:
        main([*arguments, "output=json"])
    assert end.value.code == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["epsilon=2", "keep_probability=1"], ["dataset=null", "privacy.epsilon=2"]),
        (
            ["clients=400", "dimension=1000", "cohort_size=10", "epochs=2", "keep_probability=0.1", "noise_multiplier=1"],
            ["clients=400", "dimension=1000", "population.cohort_size=10", "population.epochs=2",
             "compression.keep_probability=0.1", "privacy.noise_multiplier=1"],
        ),
        (
            ["linf_over_l2=0.1", "keep_probability=0.5", "noise_multiplier=2"],
            ["linf_over_l2=0.1", "compression.keep_probability=0.5", "privacy.noise_multiplier=2"],
        ),
    ],
)  # fmt: skip
def test_a_plan_from_figures_is_the_same_by_either_names(capsys, old, new):
    assert printed(capsys, plan, *old) == printed(capsys, plan, *new)


def test_mechanisms_are_the_same_by_either_names(capsys):
    def main(arguments):
        command.run(mechanisms, "mechanisms", MechanismsSettings, "", arguments)

    old = ["rounds=4", "epochs=2", "workload=run", "momentum=0.5", "schedule=decay", "families=[independent]"]
    new = ["population.rounds_per_epoch=4", "population.epochs=2", "workload=run", "optimizer.momentum=0.5",
           "optimizer.schedule=decay", "families=[independent]"]  # fmt: skip
    by_old, by_new = (printed(capsys, main, *given) for given in (old, new))
    for row in (*by_old, *by_new):
        row.pop("seconds")
    assert by_old == by_new
    assert by_old[0]["epochs"] == 2


def test_settings_of_a_run_alone_plan_the_run_and_its_defaults_hold(capsys):
    from_run = printed(capsys, plan, "population.epochs=2")
    assert from_run["unit_of_privacy"] == "one image = one client"
    assert from_run["delta"] == 5e-5
