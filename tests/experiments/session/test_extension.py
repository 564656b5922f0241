"""run.extend: epochs that are added to a finished run, within a limit that its checkpoint binds, and resumed like any other."""

import json
import shutil
import sys

import numpy as np
import pytest

from experiments.run_files.reader import read_config
from experiments.settings.experiment import build
from experiments.settings.recorded import restored
from fedmf.accounting import EpochEvent, privacy_spent
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from runs import (
    SMALL,
    Crash,
    again,
    assert_equal,
    at_night,
    behind_round,
    contents,
    crash_at,
    cut,
    metrics,
    model,
    refused,
    run,
    statement,
    summary,
)
from server.checkpoint import Checkpoint

pytestmark = pytest.mark.long

SMALL = (*SMALL, "run.checkpoint_every=2")
PRIVATE = tuple(setting for setting in SMALL if "reproducible" not in setting)
MORE = ("run.extend=1", "privacy.max_epsilon=20")
RESUMED = ("privacy.max_epsilon=20", "run.resume=true")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(tmp_path_factory.mktemp("finished") / "r", *SMALL)


@pytest.fixture(scope="module")
def straight(finished, tmp_path_factory):
    """The same, extended by one epoch without a crash."""
    return run(copied(finished, tmp_path_factory.mktemp("straight")), *SMALL, *MORE)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """A run with a limit, cut off within its first epoch."""
    return cut(tmp_path_factory.mktemp("broken") / "r", *SMALL, "privacy.max_epsilon=6", after=2)


def copied(directory, folder):
    return shutil.copytree(directory, folder / "r")


def parts(directory):
    return read_config(directory)["population"]["parts"]


def edited(directory, old, new):
    path = directory / "config.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return directory


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
    assert metrics(straight)[:6] == metrics(finished)
    assert (model(straight) != model(finished)).any()


def test_without_noise_two_epochs_and_one_more_are_the_run_of_three(tmp_path):
    bare = (*SMALL, "privacy.epsilon=null", "privacy.noise_multiplier=0", "optimizer.momentum=0.5")
    three = run(tmp_path / "three", *bare, "population.epochs=3")
    two = run(tmp_path / "two", *bare)
    run(two, *bare, "run.extend=1")
    np.testing.assert_array_equal(model(two), model(three))
    assert metrics(two) == metrics(three)


def test_the_added_epoch_has_the_next_key_of_a_reproducible_run_and_a_new_one_otherwise(
    tmp_path, monkeypatch, finished
):
    held = []

    def begin_part(self, state, changed):
        held.append(state.secrets)
        raise Crash

    monkeypatch.setattr(Checkpoint, "begin_part", begin_part)
    private = run(tmp_path / "private", *PRIVATE)
    for directory, settings in ((copied(finished, tmp_path), SMALL), (private, PRIVATE), (private, PRIVATE)):
        with pytest.raises(Crash):
            run(directory, *settings, *MORE)
    assert held[0].key.reveal() == SecretKey.reproducible(0).ratchet().ratchet().reveal()
    assert (held[0].epoch, held[0].stream) == (2, None)
    assert held[1].key.reveal() != held[2].key.reveal()


@pytest.mark.parametrize(("call", "after"), [("fsync", n) for n in (4, 9, 12, 27)] + [("replace", 3), ("unlink", 1)]
                         + at_night(fsync=(1, 6, 8, 10, 11, 14, 19, 36), replace=(2, 4, 5, 7), unlink=(5,)))  # fmt: skip
def test_killed_at_any_write_an_extension_has_not_begun_or_continues_bit_for_bit(
    tmp_path, monkeypatch, capsys, finished, straight, call, after
):
    directory = copied(finished, tmp_path)
    shown = {directory / name: (directory / name).read_bytes()
             for name in ("summary.json", "metrics.jsonl", "privacy.json")}  # fmt: skip
    crash_at(monkeypatch, call, after)
    with pytest.raises(Crash):
        run(directory, *SMALL, *MORE)
    monkeypatch.undo()
    if (directory / "summary.json").exists() and summary(directory)["epochs"] == 2:
        assert contents(directory).items() >= shown.items()
        assert read_config(directory)["privacy"]["max_epsilon"] is None  # one that never began allows nothing
        assert "max_epsilon=9.785" in refused(capsys, directory, *SMALL, "run.extend=1")
        run(directory, *SMALL, *MORE)
    else:  # it continues with its limit, whether its config.yaml has it yet or not
        again(directory, "run.resume=true", "output=json")
    assert (read_config(directory)["privacy"]["max_epsilon"], parts(directory)) == (20, [2, 1])
    assert_equal(directory, straight)
    one_session = {"provenance": []}  # this one may have had more
    assert statement(directory) | one_session == statement(straight) | one_session
    assert not list(directory.rglob("secrets*"))


@pytest.mark.parametrize(("wrong", "says"), [
    (("run.extend=1",), "to 9.785 at"), (("run.extend=1", "privacy.max_epsilon=8.5"), "privacy.max_epsilon=9.785"),
    ((*MORE, "seed=3"), "seed"), ((*MORE, "population.epochs=3"), "population.epochs"),
    ((*MORE, "population.parts=[2,1]"), "population.parts"), ((*MORE, "logger=mlflow"), "mlflow"),
    ((*MORE, "engine=deployment", "population.min_available=9"), "deployment"),
])  # fmt: skip
def test_a_refused_extension_leaves_everything_as_it_was(
    tmp_path, monkeypatch, capsys, finished, wrong, says
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert says in refused(capsys, copied(finished, tmp_path), *SMALL, *wrong)


def test_what_is_no_finished_run_with_its_checkpoint_is_not_extended(tmp_path, capsys, broken, finished):
    lost = copied(finished, tmp_path / "lost")
    (lost / "checkpoint/run.sqlite").unlink()
    absent, cut_off = tmp_path / "absent", copied(broken, tmp_path / "cut")
    for directory, says in (
        (cut_off, "no finished run"),
        (absent, "no finished run"),
        (lost, "no checkpoint"),
    ):
        assert says in refused(capsys, directory, *SMALL, *MORE)
    with pytest.raises(SettingError, match=r"population\.parts is \[2, 1\]"):  # extensions alone write them
        run(absent, *SMALL, "population.parts=[2,1]")
    assert not absent.exists()


def test_a_run_that_its_budget_ended_is_extended_from_there_and_again(tmp_path, capsys):
    options = (*SMALL, "privacy.max_epsilon=6", "optimizer.schedule=decay")
    directory = run(tmp_path / "r", *options)
    assert summary(directory)["epochs"] == 1
    for epochs, most, held in ((1, 9, [1, 1]), (2, 12, [1, 1, 2])):
        capsys.readouterr()
        run(directory, *options, f"run.extend={epochs}", f"privacy.max_epsilon={most}")
        assert parts(directory) == held == statement(directory)["parts"]
        spent, lines = summary(directory), capsys.readouterr().err
        assert spent["epochs"] == sum(held)
        assert spent["epsilon"] <= float(lines.split(" -> ")[1].split()[0]) <= spent["epsilon"] * 1.01
        assert "a copy of this run that is extended too" in lines
    assert build(restored(read_config(directory))).plan.participation.progress(6) == 0


def test_two_copies_that_are_extended_share_no_noise_and_one_cut_off_does_not_continue_in_a_copy(
    tmp_path, capsys
):
    directory, other = run(tmp_path / "r", *PRIVATE), tmp_path / "other"
    shutil.copytree(directory, other)
    run(other, *PRIVATE, *MORE)
    with behind_round(Checkpoint, "settle", 8):
        run(directory, *PRIVATE, *MORE)
    copy = shutil.copytree(directory, tmp_path / "copy")
    assert "this directory is a copy" in refused(capsys, copy, *PRIVATE, *RESUMED)
    run(directory, *PRIVATE, *RESUMED)
    assert metrics(directory)[:6] == metrics(other)[:6]
    assert np.abs(model(directory) - model(other)).max() > 0.01


def test_data_of_another_number_of_clients_are_not_added(tmp_path, capsys):
    def written(users):
        x, rows = np.ones((6 * users, 5), "f4"), np.arange(6 * users)
        np.savez(tmp_path / "data.npz", x=x, y=rows % 3, user=rows % users)

    own = ("dataset=by_user_npz", f"dataset.path={tmp_path / 'data.npz'}", "population.cohort_size=3",
           "population.epochs=1", "privacy.delta=1e-3")  # fmt: skip
    written(12)
    directory = run(tmp_path / "r", *own)
    written(11)
    assert "had 12 clients, and the data at hand give 11" in refused(capsys, directory, *own, *MORE)


def test_a_run_that_lost_its_config_continues_under_no_other_limit(tmp_path, capsys, broken, finished):
    cut_off = copied(broken, tmp_path / "cut")
    over = copied(finished, tmp_path / "over")
    longer = cut(copied(finished, tmp_path / "longer"), *SMALL, *MORE, after=2)
    for directory in (cut_off, over, longer):
        (directory / "config.yaml").unlink()
        given = (*SMALL, "privacy.max_epsilon=50", "run.resume=true", "run.accept_copy=true")
        for call in (again, run):
            assert "no config.yaml" in refused(capsys, directory, *given, call=call)
    assert "no config.yaml" in refused(capsys, longer, *SMALL, *MORE, call=again)


def test_an_edited_limit_and_edited_parts_are_refused_by_name(tmp_path, capsys, broken, finished):
    cut_off = edited(copied(broken, tmp_path / "a"), "max_epsilon: 6.0", "max_epsilon: 50.0")
    said = refused(capsys, cut_off, "run.resume=true", "run.accept_copy=true", call=again)
    assert "privacy.max_epsilon is 50.0" in said
    assert "but 6.0 in the checkpoint" in said
    over = edited(copied(finished, tmp_path / "b"), "max_epsilon: null", "max_epsilon: 100.0")
    assert "but null in the checkpoint" in refused(capsys, over, "run.extend=1", call=again)
    longer = cut(copied(finished, tmp_path / "c"), *SMALL, *MORE, after=2)
    edited(longer, "parts:\n  - 2\n  - 1\n", "parts:\n  - 2\n  - 30\n")
    said = refused(capsys, longer, "run.resume=true", call=again)
    assert "population.parts is [2,30]" in said
    assert "[2,1] in the checkpoint" in said
