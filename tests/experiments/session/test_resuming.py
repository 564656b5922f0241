"""run.directory=DIR run.resume=true alone goes on by the run's own settings; others are refused by name."""

import shutil

import numpy as np
import pytest

from crashes import cut
from experiments.run_files.reader import read_config
from experiments.session.resume import run_settings
from fedmf.errors import RunDirectoryError, SettingError
from runs import composed, metrics, model, run, simulate, summary, typed

pytestmark = pytest.mark.long

# No setting has its default, and a group of each kind has another choice than the default one.
OWN = ("dataset=synthetic", "dataset.clients=12", "dataset.features=5", "dataset.classes=3", "model=mlp",
       "model.hidden=7", "mechanism=blt", "optimizer=adam", "optimizer.learning_rate=0.02",
       "population.cohort_size=3", "population.rounds_per_epoch=3", "population.epochs=2", "run.reproducible=true",
       "metrics=[accuracy,f1]", "privacy.epsilon=null", "privacy.noise_multiplier=0.3", "run.checkpoint_every=2",
       "client.max_steps=3", "seed=5")  # fmt: skip


def again(directory, *overrides, resume="run.resume=true"):
    """What the command does with its overrides."""
    simulate(run_settings([f"run.directory={directory}", resume, *overrides]))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run(tmp_path_factory.mktemp("straight") / "r", *OWN)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return cut(tmp_path_factory.mktemp("broken") / "r", *OWN)


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_directory_and_resume_alone_go_on_bit_for_bit(tmp_path, straight):
    directory = cut(tmp_path / "r", *OWN)
    recorded = (directory / "config.yaml").read_bytes()
    again(directory)
    np.testing.assert_array_equal(model(directory), model(straight))
    assert metrics(directory) == metrics(straight)
    assert summary(directory)["noise_multiplier"] == 0.3
    assert (directory / "config.yaml").read_bytes() == recorded


@pytest.mark.parametrize("given", [
    ("seed=5", "model=mlp", "optimizer=adam", "mechanism=blt"), ("model.hidden=7", "metrics=[accuracy,f1]"), OWN,
    ("privacy.epsilon=null",),
])  # fmt: skip
def test_what_the_run_has_may_be_given_again(broken, given):
    settings = run_settings([f"run.directory={broken}", "run.resume=true", *given])
    assert settings.model == composed(*OWN).model
    assert settings.optimizer == composed(*OWN).optimizer
    assert settings.run.resume is True


@pytest.mark.parametrize(("given", "key", "has"), [
    ("seed=0", "seed is 0", "5"),  # which is the default
    ("model=cnn", "model is cnn", "mlp"),
    ("model.hidden=8", "model.hidden is 8", "7"),
    ("mechanism=optimal", "mechanism is optimal", "blt"),
    ("optimizer=sgd", "optimizer is sgd", "adam"),
    ("dataset=digits", "dataset is digits", "synthetic"),
    ("metrics=[accuracy]", r"metrics is \[accuracy\]", r"\[accuracy,f1\]"),
    ("privacy.epsilon=8", r"privacy\.epsilon is 8.0", "null"),
    ("privacy.max_epsilon=9", r"privacy\.max_epsilon is 9.0", "null"),
    ("client.learning_rate=0.5", r"client\.learning_rate is 0.5", "1.0"),
    ("+experiment=mnist_cnn", r"population\.cohort_size is 340", "3"),
])  # fmt: skip
def test_what_differs_is_refused_by_its_key_with_both_values(broken, given, key, has):
    before = contents(broken)
    extra = ("privacy.noise_multiplier=null",) if given == "privacy.epsilon=8" else ()
    with pytest.raises(RunDirectoryError, match=f"{key}, and the run has {has}"):
        run_settings([f"run.directory={broken}", "run.resume=true", given, *extra])
    assert contents(broken) == before


def test_what_changes_speed_and_output_alone_may_be_given(tmp_path, straight):
    directory = cut(tmp_path / "r", *OWN)
    settings = run_settings([f"run.directory={directory}", "run.resume=true", "engine=ray"])
    assert (settings.engine.name, settings.output.name) == ("ray", "text")
    again(directory, "engine.workers=1", "output=json")
    np.testing.assert_array_equal(model(directory), model(straight))


def test_other_settings_begin_anew_where_no_round_was_released(tmp_path, capsys):
    directory = cut(tmp_path / "r", *OWN, after=0)
    small = [setting for setting in OWN if not setting.startswith(("seed", "model"))]
    again(directory, *small, "seed=6")
    assert "a new run begins" in capsys.readouterr().err
    assert (read_config(directory)["seed"], read_config(directory)["model"]["name"]) == (6, "logistic")
    other = cut(tmp_path / "s", *OWN, after=0)
    again(other)
    assert read_config(other)["seed"] == 5


def test_without_resume_and_in_a_new_directory_overrides_stay_as_they_are(tmp_path, broken):
    for overrides in (
        [f"run.directory={broken}", "seed=3"],
        [f"run.directory={tmp_path / 'new'}", "run.resume=true", "seed=3"],
        ["seed=3", "run.resume=true"],
    ):
        assert run_settings(overrides) == composed(*overrides)


def test_code_that_only_the_directory_names_is_not_imported_unless_trusted(tmp_path, broken):
    stolen = tmp_path / "stolen"
    shutil.copytree(broken, stolen)
    text = (stolen / "config.yaml").read_text()
    (stolen / "config.yaml").write_text(
        text.replace("loss: cross_entropy", "loss: not_there_of_the_resuming_tests:loss")
    )
    resumed = [f"run.directory={stolen}", "run.resume=true"]
    with pytest.raises(SettingError, match=r"not_there_of_the_resuming_tests:loss.*run\.trust_code=true"):
        run_settings(resumed)
    for consent in ("run.trust_code=true", "client.loss=not_there_of_the_resuming_tests:loss"):
        assert run_settings([*resumed, consent]).client.loss == "not_there_of_the_resuming_tests:loss"


def test_the_command_itself_goes_on(tmp_path, straight):
    directory = cut(tmp_path / "r", *OWN)
    assert typed(f"run.directory={directory}", "run.resume=true", cwd=tmp_path) == 0
    np.testing.assert_array_equal(model(directory), model(straight))


def test_the_overrides_of_this_module_are_not_the_defaults():
    """Or going on with the defaults would pass for going on with the run's own."""
    own, default = composed(*OWN), composed()
    for group in ("dataset", "model", "mechanism", "population", "privacy", "optimizer", "client", "metrics", "seed"):  # fmt: skip
        assert getattr(own, group) != getattr(default, group), group
