"""run.directory=DIR run.resume=true alone continues by the run's own settings; others, and mistakes, are refused by name."""

import shutil

import numpy as np
import pytest

from crashes import cut
from experiments.run_files.reader import read_config
from experiments.session.resume import run_settings
from fedmf.errors import RunDirectoryError, SettingError
from runs import again, composed, contents, metrics, model, run, summary, typed

pytestmark = pytest.mark.long

# No setting has its default, and a group of each kind has another choice than the default one.
OWN = ("dataset=synthetic", "dataset.clients=12", "dataset.features=5", "dataset.classes=3", "model=mlp",
       "model.hidden=7", "mechanism=blt", "optimizer=adam", "optimizer.learning_rate=0.02",
       "population.cohort_size=3", "population.rounds_per_epoch=3", "population.epochs=2", "run.reproducible=true",
       "metrics=[accuracy,f1]", "privacy.epsilon=null", "privacy.noise_multiplier=0.3", "run.checkpoint_every=2",
       "client.max_steps=3", "seed=5")  # fmt: skip
RESUME = "run.resume=true"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return run(tmp_path_factory.mktemp("straight") / "r", *OWN)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return cut(tmp_path_factory.mktemp("broken") / "r", *OWN)


def asked(directory, *overrides):
    """Return the settings of a call that resumes the run in `directory`."""
    return run_settings([f"run.directory={directory}", RESUME, *overrides])


def test_directory_and_resume_alone_continue_bit_for_bit(tmp_path, straight):
    directory = cut(tmp_path / "r", *OWN)
    recorded = (directory / "config.yaml").read_bytes()
    assert typed(f"run.directory={directory}", RESUME, cwd=tmp_path) == 0
    np.testing.assert_array_equal(model(directory), model(straight))
    assert metrics(directory) == metrics(straight)
    assert summary(directory)["noise_multiplier"] == 0.3
    assert (directory / "config.yaml").read_bytes() == recorded


@pytest.mark.parametrize("given", [
    ("seed=5", "model=mlp", "optimizer=adam", "mechanism=blt"), ("model.hidden=7", "metrics=[accuracy,f1]"), OWN,
    ("privacy.epsilon=null",),
])  # fmt: skip
def test_what_the_run_has_may_be_given_again(broken, given):
    settings = asked(broken, *given)
    assert settings.model == composed(*OWN).model
    assert settings.optimizer == composed(*OWN).optimizer
    assert settings.run.resume is True


@pytest.mark.parametrize(("given", "key", "has"), [
    ("seed=0", "seed is 0", "5"),  # which is the default
    ("model=cnn", "model is cnn", "mlp"),
    ("metrics=[accuracy]", r"metrics is \[accuracy\]", r"\[accuracy,f1\]"),
    ("privacy.epsilon=8 privacy.noise_multiplier=null", r"privacy\.epsilon is 8.0", "null"),
    ("privacy.max_epsilon=9", r"privacy\.max_epsilon is 9.0", "null"),
    ("+experiment=mnist_cnn", r"population\.cohort_size is 340", "3"),
])  # fmt: skip
def test_what_differs_is_refused_by_its_key_with_both_values(broken, given, key, has):
    before = contents(broken)
    with pytest.raises(RunDirectoryError, match=f"{key}, and the run has {has}"):
        asked(broken, *given.split())
    assert contents(broken) == before


def test_what_changes_speed_and_output_alone_may_be_given(tmp_path, straight):
    directory = cut(tmp_path / "r", *OWN)
    settings = asked(directory, "engine=ray")
    assert (settings.engine.name, settings.output) == ("ray", "text")
    again(directory, RESUME, "engine.workers=1", "output=json")
    np.testing.assert_array_equal(model(directory), model(straight))


def test_other_settings_begin_a_new_run_where_no_round_was_released(tmp_path, capsys):
    directory = cut(tmp_path / "r", *OWN, after=0)
    small = [setting for setting in OWN if not setting.startswith(("seed", "model"))]
    again(directory, RESUME, *small, "seed=6")
    assert "a new run begins" in capsys.readouterr().err
    assert (read_config(directory)["seed"], read_config(directory)["model"]["name"]) == (6, "logistic")
    other = cut(tmp_path / "s", *OWN, after=0)
    again(other, RESUME)
    assert read_config(other)["seed"] == 5


@pytest.mark.parametrize(("recorded", "key", "value"), [
    ("loss: cross_entropy", "client.loss", "{own}"), ("- f1", r"metrics\[1\]", "[accuracy,{own}]"),
    ("optimizer:\n  name: adam", "optimizer.name", None),
])  # fmt: skip
def test_code_that_only_the_directory_names_is_not_imported_unless_trusted(
    tmp_path, broken, recorded, key, value
):
    stolen, own = shutil.copytree(broken, tmp_path / "stolen"), "not_there_of_the_resuming_tests:own"
    text = (stolen / "config.yaml").read_text()
    assert recorded in text
    named = recorded.rpartition(" ")[0] + f" {own}"
    (stolen / "config.yaml").write_text(text.replace(recorded, named))
    with pytest.raises(SettingError, match=rf"{key} of .*{own}.*run\.trust_code=true"):
        asked(stolen)
    if value is not None:  # typed
        assert asked(stolen, f"{key.partition(chr(92))[0]}={value.format(own=own)}")
    if key == "client.loss":
        assert asked(stolen, "run.trust_code=true").client.loss == own


@pytest.mark.parametrize("call", [RESUME, "run.extend=1"])
def test_what_was_typed_is_blamed_and_not_what_the_run_recorded(broken, call):
    with pytest.raises(SettingError, match="seed is 'abc'; it should be a valid integer"):
        run_settings([f"run.directory={broken}", call, "seed=abc"])


def test_without_resume_and_in_a_new_directory_overrides_stay_as_they_are(tmp_path, broken):
    new = f"run.directory={tmp_path / 'nosuch'}"
    for overrides in (
        [f"run.directory={broken}", "seed=3"],
        [f"run.directory={broken}", "run.resume=no"],
        ["seed=3", RESUME],
        *([new, RESUME, described] for described in ("seed=3", "model=cnn", "+experiment=mnist_cnn")),
    ):
        assert run_settings(overrides) == composed(*overrides)
    for true in ("yes", "1"):
        assert run_settings([f"run.directory={broken}", f"run.resume={true}"]).seed == 5


def test_a_directory_without_a_run_is_refused_unless_a_new_one_is_described(tmp_path):
    for beside in ([], ["output=json"], ["engine.workers=1", "logger=none"], ["engine=ray"]):
        with pytest.raises(RunDirectoryError, match="nosuch holds no run to go on with"):
            asked(tmp_path / "nosuch", *beside)
    with pytest.raises(RunDirectoryError, match=r"nosuch holds no run that run\.extend"):
        run_settings([f"run.directory={tmp_path / 'nosuch'}", "run.extend=1", "seed=0"])
    assert typed("run.directory=nosuch", RESUME, cwd=tmp_path) == 2  # a typo begins no run
    assert list(tmp_path.iterdir()) == []
