"""A bad data file ends every command with one sentence and exit code 2, and nothing is written."""

import json
import runpy
from functools import partial

import h5py
import numpy as np
import pytest

import small_files
from experiments.cli.command import guard
from experiments.deployment.node import NodeSettings
from experiments.evaluate import EvaluateSettings, evaluate
from experiments.node_check import node_check
from experiments.settings.compose import compose
from runs import composed, run, simulate, summary

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=1", "population.rounds_per_epoch=3", "population.epochs=1", "model=logistic")


def of(form, folder):
    """Write the files of a form; return the overrides that choose them."""
    folder.mkdir(exist_ok=True)
    given = small_files.settings(form, folder)
    return [f"dataset={given.pop('name')}", *(f"dataset.{key}={value}" for key, value in given.items())]


def fails(action, capsys):
    """Return what a command says that ends with exit code 2."""
    assert guard(action) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def spoil_bob(folder, split):
    """Give bob labels that no class has, in TFF's files."""
    with h5py.File(folder / "hdf5" / f"fed_emnist_{split}.h5", "r+") as file:
        file["examples/bob/label"][:] = 77


def test_a_broken_file_or_a_bad_test_set_leaves_no_run(tmp_path, capsys):
    broken = of("femnist_sqlite", tmp_path / "a")
    (tmp_path / "a" / "emnist_all.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    spoilt = of("femnist_hdf5", tmp_path / "b")
    spoil_bob(tmp_path / "b", "test")
    for overrides, sentence in (
        (broken, "cannot be read as a sqlite file of TFF"),
        (spoilt, "the test set of dataset femnist"),
    ):
        settings = composed(f"run.directory={tmp_path / 'run'}", *SMALL, *overrides)
        assert sentence in fails(partial(simulate, settings), capsys)
        assert not (tmp_path / "run").exists()


def test_one_users_values_do_not_decide_whether_a_run_happens(tmp_path, capsys):
    """The run with bob's labels spoilt is the run with bob's vector zero: same rounds, same epsilon, same plan."""
    overrides = [*SMALL, "seed=3", "run.reproducible=true"]
    good = run(tmp_path / "good", *overrides, *of("femnist_hdf5", tmp_path / "right"))
    assert "clients failed" not in capsys.readouterr().err
    spoilt = of("femnist_hdf5", tmp_path / "wrong")
    spoil_bob(tmp_path / "wrong", "train")
    bad = run(tmp_path / "bad", *overrides, *spoilt)
    said = capsys.readouterr().err
    assert "1 of 3 clients failed and count as zeros; the first in round" in said
    assert "holds the label 77; with classes=62 it must be 0 to 61" in said
    for name in ("epsilon", "rounds", "clients", "noise_multiplier"):
        assert summary(good)[name] == summary(bad)[name]
    assert json.loads((good / "privacy.json").read_text()) == json.loads((bad / "privacy.json").read_text())


def test_the_check_of_a_node_names_the_client_whose_values_are_wrong(tmp_path, capsys):
    overrides = ["clients=3", *of("femnist_hdf5", tmp_path)]
    guard(lambda: node_check(compose("node_check", (*overrides, "output=json"), NodeSettings)))
    assert json.loads(capsys.readouterr().out)["examples"] == 18
    overrides = ["clients=3", *of("femnist_hdf5", tmp_path / "spoilt")]
    spoil_bob(tmp_path / "spoilt", "train")
    said = fails(lambda: node_check(compose("node_check", overrides, NodeSettings)), capsys)
    assert "client 1 of dataset femnist holds the label 77" in said
    overrides = ["clients=3", *of("femnist_hdf5", tmp_path / "broken")]
    (tmp_path / "broken" / "hdf5" / "fed_emnist_train.h5").write_bytes(b"no HDF5")
    said = fails(lambda: node_check(compose("node_check", overrides, NodeSettings)), capsys)
    assert "cannot be read as an HDF5 file" in said


def test_the_check_of_a_node_refuses_no_test_set_that_a_node_does_without(tmp_path, capsys, monkeypatch):
    np.savez(
        tmp_path / "a.npz",
        x=np.zeros((8, 4), "f4"),
        y=np.arange(8) % 3,
        user=np.arange(8) // 4,
        split=np.zeros(8),
    )
    data = ("clients=2", "dataset=by_user_npz", f"dataset.path={tmp_path / 'a.npz'}", "dataset.classes=3")

    def ended(*more):
        monkeypatch.setattr("sys.argv", ["node_check", *data, *more])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(node_check.__code__.co_filename, run_name="__main__")
        return end.value.code, *capsys.readouterr()

    code, out, error = ended("output=json")
    assert (code, json.loads(out)["examples"]) == (0, 8)
    assert "note: the test set, which a node does not need, cannot be used: " in error
    assert ended("clients=3")[:2] == (2, "")
    code, _, error = ended("bogus=1")
    assert (code, error.startswith("error: bogus is no setting of node_check")) == (2, True)


def test_evaluate_on_broken_files_is_a_sentence(tmp_path, capsys):
    overrides = of("npz", tmp_path)
    directory = run(tmp_path / "run", *SMALL, *overrides)
    capsys.readouterr()
    small_files.npz(tmp_path / "other.npz", x=np.full((18, 4), np.nan))
    (tmp_path / "broken.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:-30])
    for name, sentence in (
        ("other", "not finite"),
        ("broken", "no .npz file|cannot be read"),
        ("no", "does not exist"),
    ):
        given = (f"directory={directory}", f"dataset.path={tmp_path / name}.npz")
        said = fails(lambda given=given: evaluate(compose("evaluate", given, EvaluateSettings)), capsys)
        assert any(words in said for words in sentence.split("|"))


@pytest.mark.parametrize("command", ["simulate", "node_check"])
def test_an_own_loader_that_fails_ends_a_command_with_its_place(tmp_path, capsys, monkeypatch, command):
    (tmp_path / "own_loader_that_fails.py").write_text(
        "from client.data import Dataset\n\ndef own() -> Dataset:\n    return {}['left out']\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = ("dataset=custom", "dataset.name=own_loader_that_fails:own")
    if command == "simulate":
        settings = composed(f"run.directory={tmp_path / 'run'}", *SMALL, *data)
        said = fails(lambda: simulate(settings), capsys)
    else:
        settings = compose("node_check", ("clients=1", *data), NodeSettings)
        said = fails(lambda: node_check(settings), capsys)
    assert "own_loader_that_fails:own raised KeyError: 'left out' (" in said
    assert "own_loader_that_fails.py:4); it must not." in said
    assert not (tmp_path / "run").exists()
