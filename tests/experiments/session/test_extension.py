"""run.extend: epochs that are added to a finished run, accounted with those before, and resumed like any other."""

import json
import shutil

import numpy as np
import pytest

from crashes import Crash, behind_round, crash_at
from experiments import run as door
from experiments.cli.command import guard
from experiments.run_files.reader import read_config
from experiments.settings.experiment import build
from fedmf.accounting import EpochEvent, privacy_spent
from fedmf.errors import PrivacyBudgetExhausted, SettingError
from fedmf.randomness import SecretKey
from runs import composed, metrics, model, run, simulate, summary
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

PLAIN = (
    "population.cohort_size=6",
    "population.rounds_per_epoch=3",
    "population.epochs=2",
    "run.checkpoint_every=2",
)
SMALL = (*PLAIN, "run.reproducible=true")
MORE = ("run.extend=1", "privacy.max_epsilon=20")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that has ended."""
    return run(tmp_path_factory.mktemp("finished") / "r", *SMALL)


@pytest.fixture(scope="module")
def straight(finished, tmp_path_factory):
    """The same, extended by one epoch without a crash."""
    return run(copied(finished, tmp_path_factory.mktemp("straight")), *SMALL, *MORE)


def copied(directory, folder):
    shutil.copytree(directory, folder / "r")
    return folder / "r"


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def statement(directory):
    return json.loads((directory / "privacy.json").read_text())


def parts(directory):
    return read_config(directory)["population"]["parts"]


def equal(directory, other):
    np.testing.assert_array_equal(model(directory), model(other))
    assert metrics(directory) == metrics(other)
    assert summary(directory) | {"wall_seconds": 0} == summary(other) | {"wall_seconds": 0}
    assert statement(directory) | {"provenance": []} == statement(other) | {
        "provenance": []
    }  # one may have had more sessions


def test_an_extended_run_says_and_shows_what_all_its_epochs_cost(finished, straight):
    held = summary(straight)
    event = EpochEvent(held["noise_multiplier"], held["keep_probability"], held["linf_over_l2"])
    assert held["noise_multiplier"] == summary(finished)["noise_multiplier"]
    price = statement(straight)["floating_point"]["a"]
    whole = privacy_spent(event, 3, delta=held["delta"], precision=price).epsilon
    assert price > statement(finished)["floating_point"]["a"]
    assert held["epsilon"] == statement(straight)["epsilon"] == whole > summary(finished)["epsilon"]
    assert (held["epochs"], held["rounds"], statement(straight)["parts"]) == (3, 9, [2, 1])
    assert [row["epsilon"] for row in metrics(straight)[6:]] == [whole] * 3
    assert "ended after 2 epochs, and was extended by 1 epoch" in statement(straight)["paragraph"]
    assert "extended by 1 epoch" in (straight / "report.html").read_text()
    assert parts(straight) == [2, 1]
    assert read_config(straight)["privacy"]["max_epsilon"] == 20
    assert len(json.loads((straight / "mechanism.json").read_text())["per_round_error"]) == 9


def test_rounds_that_were_shown_stay_as_they_were(finished, straight):
    assert metrics(straight)[:6] == metrics(finished)
    np.testing.assert_array_equal(model(straight, "model_initial.npz"), model(finished, "model_initial.npz"))
    assert (model(straight) != model(finished)).any()


def test_the_python_door_gives_the_plan_of_both_parts(straight):
    plan = door.load(straight).plan
    assert plan.participation.epochs_of_parts == (2, 1)
    assert plan.noise_multiplier == summary(straight)["noise_multiplier"]
    two, one = (build(composed(*SMALL, f"population.epochs={n}")).plan.factorization.epochs for n in (2, 1))
    assert [e.fingerprint for e in plan.factorization.epochs] == [e.fingerprint for e in (*two, *one)]
    assert two[0].fingerprint != two[1].fingerprint == one[0].fingerprint


def test_without_noise_two_epochs_and_one_more_are_the_run_of_three(tmp_path):
    """Cohorts, masks, data order, momentum and the optimizer go on: with noise only its design differs."""
    bare = (*SMALL, "privacy.epsilon=null", "privacy.noise_multiplier=0", "optimizer.momentum=0.5")
    three = run(tmp_path / "three", *bare, "population.epochs=3")
    two = run(tmp_path / "two", *bare)
    run(two, *bare, "run.extend=1")
    np.testing.assert_array_equal(model(two), model(three))
    assert metrics(two) == metrics(three)


def test_the_added_epoch_has_the_next_key_of_a_reproducible_run_and_one_of_its_own_otherwise(
    tmp_path, monkeypatch, finished
):
    held = []
    monkeypatch.setattr(
        Checkpoint, "begin_part", lambda self, state, changed: held.append(state.secrets) or crash()
    )

    def crash():
        raise Crash

    with pytest.raises(Crash):
        run(copied(finished, tmp_path), *SMALL, *MORE)
    assert held[0].key.reveal() == SecretKey.reproducible(0).ratchet().ratchet().reveal()
    assert (held[0].epoch, held[0].stream) == (2, None)
    private = run(tmp_path / "private", *PLAIN)
    for _ in range(2):
        with pytest.raises(Crash):
            run(private, *PLAIN, *MORE)
    assert held[1].key.reveal() != held[2].key.reveal()


@pytest.mark.parametrize(("call", "after"), [("fsync", n) for n in (1, 4, 6, 8, 9, 10, 11, 12, 14, 19, 27, 36)]
                         + [("replace", n) for n in (2, 3, 4, 5, 7)] + [("unlink", 1), ("unlink", 5)])  # fmt: skip
def test_killed_at_any_write_an_extension_has_not_begun_or_goes_on_bit_for_bit(
    tmp_path, monkeypatch, finished, straight, call, after
):
    directory = copied(finished, tmp_path)
    shown = {
        name: (directory / name).read_bytes() for name in ("summary.json", "metrics.jsonl", "privacy.json")
    }
    crash_at(monkeypatch, call, after)
    with pytest.raises(Crash):
        run(directory, *SMALL, *MORE)
    monkeypatch.undo()
    if (directory / "summary.json").exists() and summary(directory)["epochs"] == 2:
        assert {name: (directory / name).read_bytes() for name in shown} == shown
        run(directory, *SMALL, *MORE)
    else:
        run(directory, *SMALL, "privacy.max_epsilon=20", "run.resume=true")
    equal(directory, straight)
    assert not list(directory.rglob("secrets*"))


@pytest.mark.parametrize("wrong", [
    ("run.extend=1",), ("run.extend=1", "privacy.max_epsilon=8.5"), (*MORE, "seed=3"), (*MORE, "population.epochs=3"),
    (*MORE, "population.parts=[2,1]"), (*MORE, "logger=mlflow"), (*MORE, "engine=deployment", "population.min_available=9"),
])  # fmt: skip
def test_a_refused_extension_leaves_everything_as_it_was(tmp_path, monkeypatch, capsys, finished, wrong):
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    directory = copied(finished, tmp_path)
    before = contents(directory)
    assert guard(lambda: run(directory, *SMALL, *wrong)) == 2
    assert contents(directory) == before
    said = capsys.readouterr().err
    if not {"seed=3", "logger=mlflow", "engine=deployment"} & set(wrong) and "population" not in wrong[-1]:
        assert "to 9.785 at" in said  # the new epsilon, 9.78427 rounded up
        assert "privacy.max_epsilon=9.785" in said


def test_what_was_not_released_is_not_extended(tmp_path, monkeypatch, capsys):
    def crash(*_):
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("experiments.session.recorder.Recorder.finish", crash)
        with pytest.raises(Crash):
            run(tmp_path / "r", *SMALL)
    for name in ("r", "absent"):
        assert guard(lambda name=name: run(tmp_path / name, *SMALL, *MORE)) == 2
        assert "holds no finished run" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_parts_are_written_by_extensions_alone(tmp_path):
    with pytest.raises(SettingError, match=r"population\.parts is \[2, 1\]"):
        run(tmp_path / "r", *SMALL, "population.parts=[2,1]")
    with pytest.raises(SettingError, match=r"run\.extend is 2, but run\.directory is null"):
        composed("run.extend=2")
    assert not (tmp_path / "r").exists()


def test_a_run_that_its_budget_ended_is_extended_from_there_and_again(tmp_path):
    options = (*SMALL, "privacy.max_epsilon=6", "optimizer.schedule=decay")
    directory = run(tmp_path / "r", *options)
    assert summary(directory)["epochs"] == 1
    for epochs, most, held in ((1, 9, [1, 1]), (2, 12, [1, 1, 2])):
        run(directory, *options, f"run.extend={epochs}", f"privacy.max_epsilon={most}")
        assert parts(directory) == held == statement(directory)["parts"]
        assert summary(directory)["epochs"] == sum(held)
    assert door.load(directory).plan.participation.progress(6) == 0


def test_a_limit_from_the_beginning_allows_what_is_left_of_it_and_no_more(tmp_path):
    options = (*SMALL, "privacy.max_epsilon=10")
    directory = run(tmp_path / "r", *options)
    run(directory, *options, "run.extend=1")
    with pytest.raises(PrivacyBudgetExhausted, match=r"above privacy\.max_epsilon=10"):
        run(directory, *options, "run.extend=1")
    assert summary(directory)["epochs"] == 3


def test_two_copies_that_are_extended_do_not_share_their_noise(tmp_path):
    """Each is a run of its own, and they compose: the difference of their releases shows no client's update."""
    directory = run(tmp_path / "r", *PLAIN)
    other = tmp_path / "other"
    shutil.copytree(directory, other)
    for each in (directory, other):
        run(each, *PLAIN, *MORE)
    assert metrics(directory)[:6] == metrics(other)[:6]
    assert np.abs(model(directory) - model(other)).max() > 0.01


def test_a_copy_of_an_extension_under_way_does_not_go_on(tmp_path, capsys):
    directory = run(tmp_path / "r", *PLAIN)
    with behind_round(Checkpoint, "settle", 8):
        run(directory, *PLAIN, *MORE)
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    resumed = (*PLAIN, "privacy.max_epsilon=20", "run.resume=true")
    assert guard(lambda: run(copy, *resumed)) == 2
    assert "this directory is a copy" in capsys.readouterr().err
    run(directory, *resumed)
    assert summary(directory)["rounds"] == 9


def test_data_of_another_number_of_clients_does_not_go_on(tmp_path, capsys):
    def written(users):
        x = np.random.default_rng(0).normal(size=(6 * users, 5)).astype("f4")
        np.savez(tmp_path / "data.npz", x=x, y=np.arange(6 * users) % 3, user=np.arange(6 * users) % users)

    own = ("dataset=by_user_npz", f"dataset.path={tmp_path / 'data.npz'}", "population.cohort_size=3",
           "population.epochs=1", "privacy.delta=1e-3")  # fmt: skip
    written(12)
    directory = run(tmp_path / "r", *own)
    before = contents(directory)
    for users in (11, 15):
        written(users)
        assert guard(lambda: run(directory, *own, *MORE)) == 2
        assert f"had 12 clients, and the data at hand give {users}" in capsys.readouterr().err
        assert contents(directory) == before
    written(12)
    run(directory, *own, "run.extend=1", "privacy.max_epsilon=30")
    assert summary(directory)["epochs"] == 2


def test_the_door_extends_by_the_runs_own_settings_and_names_the_epsilon(tmp_path, finished):
    directory = copied(finished, tmp_path)
    with pytest.raises(PrivacyBudgetExhausted, match=r"9\.785"):
        door.extend(directory, 1)
    longer = door.extend(directory, 1, max_epsilon=20)
    assert longer.summary["epochs"] == 3
    assert longer.epsilon == statement(directory)["epsilon"]
    simulate(
        composed(f"run.directory={directory}", *SMALL, "privacy.max_epsilon=20", "run.resume=true")
    )  # over
