from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from experiments.settings.compose import choices_of
from experiments.settings.reference import experiments
from experiments.settings.schema import Settings
from runs import composed

GROUPS = [(group, choice) for group, options in choices_of(Settings).items() for choice in options]
NEEDED = {
    ("dataset", "custom"): ["dataset.name=a:b"],
    ("model", "custom"): ["model.name=a:b"],
    ("optimizer", "custom"): ["optimizer.name=a:b"],
    ("mechanism", "custom"): ["mechanism.name=a:b"],
}


@pytest.mark.parametrize(("group", "option"), GROUPS)
def test_every_choice_composes(group, option):
    config = composed(f"{group}={option}", *NEEDED.get((group, option), []))
    assert getattr(config, group) is not None


def test_defaults_are_those_of_the_documentation():
    config = composed()
    assert (config.dataset.name, config.model.name, config.mechanism.name) == (
        "digits",
        "logistic",
        "optimal",
    )
    assert (config.population.cohort_size, config.population.epochs) == (64, 8)
    assert config.population.rounds_per_epoch is None
    assert (config.privacy.epsilon, config.privacy.delta) == (8.0, 5e-5)
    assert config.compression.keep_probability == 0.1


@pytest.mark.parametrize("name", experiments())
def test_every_reported_experiment_composes(name):
    config = composed(f"+experiment={name}")
    assert config != composed()


def test_an_application_of_hydra_that_composes_our_settings_keeps_its_own():
    with initialize_config_dir(str(Path(__file__).parent), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        composed()
        assert GlobalHydra.instance().hydra is outer


def test_what_was_composed_changes_nothing_that_is_composed_later():
    before = composed()
    changed = ("optimizer=adam", "optimizer.beta2=0.5", "engine.workers=2", "client.batch_size=3", "seed=9")
    assert composed(*changed) != before
    assert composed("optimizer=adam").optimizer.beta2 != 0.5
    assert composed() == before


def test_a_choice_that_names_another_is_looked_up():
    assert (
        composed("dataset=custom", "dataset.name=a:b", "model='${dataset}'", "model.name=c:d").model.name
        == "c:d"
    )
