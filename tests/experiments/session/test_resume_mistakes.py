"""Mistakes beside run.resume and run.extend: what was typed is blamed, not what the run recorded."""

import pytest

from experiments.session.resume import run_settings
from fedmf.errors import PrivacyBudgetExhausted, RunDirectoryError, SettingError
from runs import command, composed, run

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=6", "population.rounds_per_epoch=2", "population.epochs=1",
         "privacy.epsilon=null", "privacy.noise_multiplier=2")  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("finished") / "r", *SMALL)


@pytest.mark.parametrize("call", ["run.resume=true", "run.extend=1"])
@pytest.mark.parametrize(("given", "said"), [
    ("seed=abc", "seed is 'abc'; it should be a valid integer"),
    ("epsilon=3", "epsilon is no setting of simulate; did you mean privacy.epsilon"),
    ("model.hidden=[3]", "Could not override 'model.hidden'"),
    ("run.resum=1", "run.resum is no setting of simulate; did you mean run.resume"),
    ("+run.resum=1", "run.resum is no setting of simulate; did you mean run.resume"),
])  # fmt: skip
def test_of_a_call_that_goes_on_what_was_typed_is_blamed(finished, call, given, said):
    with pytest.raises(SettingError) as refused:
        run_settings([f"run.directory={finished}", call, given])
    assert said in str(refused.value)


def test_a_bad_number_of_epochs_to_add_is_blamed(finished):
    with pytest.raises(SettingError, match=r"run\.extend is 'two'; it should be a valid integer"):
        run_settings([f"run.directory={finished}", "run.extend=two"])


@pytest.mark.parametrize("true", ["true", "True", "yes", "on", "1", "y"])
def test_every_spelling_of_true_goes_on_by_the_runs_settings(finished, true):
    settings = run_settings([f"run.directory={finished}", f"run.resume={true}"])
    assert (settings.population.rounds_per_epoch, settings.run.resume) == (2, True)
    for false in ("false", "no", "off", "0"):
        given = [f"run.directory={finished}", f"run.resume={false}"]
        assert run_settings(given) == composed(*given)


def test_a_directory_without_a_run_is_refused_unless_a_new_one_is_described(tmp_path):
    named = f"run.directory={tmp_path / 'nosuch'}"
    for beside in ([], ["output=json"], ["engine.workers=1", "logger=none"], ["engine=ray"]):
        with pytest.raises(RunDirectoryError, match="nosuch holds no run to go on with"):
            run_settings([named, "run.resume=true", *beside])
    for beside in (["seed=0"], ["model=cnn"], ["+experiment=mnist_cnn"]):
        assert run_settings([named, "run.resume=true", *beside]) == composed(
            named, "run.resume=true", *beside
        )
    with pytest.raises(RunDirectoryError, match=r"nosuch holds no run that run\.extend"):
        run_settings([named, "run.extend=1", "seed=0"])


def test_the_command_begins_no_run_for_a_typo(tmp_path):
    done = command("run.directory=nosuch", "run.resume=true", cwd=tmp_path)
    assert done.returncode == 2
    assert "nosuch holds no run to go on with" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_limit_below_what_was_spent_is_held_against_the_runs_own_ledger(finished):
    with pytest.raises(PrivacyBudgetExhausted) as refused:
        run(finished, *SMALL, "run.extend=1", "privacy.max_epsilon=0.1")
    assert "1 more epoch would bring epsilon from" in str(refused.value)
    assert "from 0 " not in str(refused.value)
