"""What is composed: every choice, every published run, the defaults that the documents name."""

from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from experiments.settings.compose import choices_of
from experiments.settings.reference import experiments
from experiments.settings.schema import Settings
from fedmf.errors import SettingError
from runs import composed


@pytest.mark.parametrize(("group", "options"), choices_of(Settings).items())
def test_every_choice_composes(group, options):
    for option in options:
        named = [f"{group}.name=a:b"] if option == "custom" else []
        assert getattr(composed(f"{group}={option}", *named), group).name == (option if not named else "a:b")


def test_defaults_are_those_of_the_documentation_and_every_published_run_has_others():
    config = composed()
    chosen = [config.dataset.name, config.model.name, config.mechanism.name]
    assert chosen == ["digits", "logistic", "optimal"]
    population = config.population
    assert (population.cohort_size, population.epochs, population.rounds_per_epoch) == (64, 8, None)
    assert (config.privacy.epsilon, config.privacy.delta) == (8.0, 5e-5)
    assert config.compression.keep_probability == 0.1
    assert all(composed(f"+experiment={name}") != config for name in experiments())


def test_composing_leaves_hydra_of_the_application_and_later_settings_as_they_were():
    before = composed()
    with initialize_config_dir(str(Path(__file__).parent), version_base="1.3"):
        outer = GlobalHydra.instance().hydra
        assert composed("optimizer=adam", "optimizer.beta2=0.5", "seed=9") != before
        assert GlobalHydra.instance().hydra is outer
    assert composed("optimizer=adam").optimizer.beta2 != 0.5
    assert composed() == before


def test_a_choice_that_names_another_is_looked_up():
    named = composed("dataset=custom", "dataset.name=a:b", "model='${dataset}'", "model.name=c:d").model
    assert named.name == "c:d"


def test_hydras_own_settings_are_for_its_command_line_alone():
    with pytest.raises(SettingError, match=r"^hydra\.run\.dir is no setting of simulate"):
        composed("hydra.run.dir=elsewhere")
