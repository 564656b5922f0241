"""A bad data file ends every command with one sentence and exit code 2, and nothing is written."""

import json

import h5py
import numpy as np
import pytest

import small_files
from experiments.cli.command import guard
from experiments.deployment.node import NodeSettings
from experiments.node_check import node_check
from experiments.settings.compose import compose
from runs import refused, run, summary

pytestmark = pytest.mark.long

SMALL = ("population.cohort_size=1", "population.rounds_per_epoch=3", "population.epochs=1", "model=logistic")


def of(form, folder):
    """Write the files of a form; return the overrides that choose them."""
    folder.mkdir(exist_ok=True)
    given = small_files.settings(form, folder)
    return [f"dataset={given.pop('name')}", *(f"dataset.{key}={value}" for key, value in given.items())]


def spoil_bob(folder, split):
    """Give bob labels that no class has, in TFF's files."""
    with h5py.File(folder / "hdf5" / f"fed_emnist_{split}.h5", "r+") as file:
        file["examples/bob/label"][:] = 77


def test_a_broken_file_or_a_bad_test_set_leaves_no_run(tmp_path, capsys):
    broken = of("femnist_sqlite", tmp_path / "a")
    (tmp_path / "a" / "emnist_all.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    spoilt = of("femnist_hdf5", tmp_path / "b")
    spoil_bob(tmp_path / "b", "test")
    table = [*of("own_csv", tmp_path / "c"), "dataset.user=writer"]
    for overrides, sentence in (
        (broken, "cannot be read as a sqlite file of TFF"),
        (spoilt, "the test set of dataset femnist"),
        (table, "has no column 'writer'; set user to one of the 5 columns"),
    ):
        assert sentence in refused(capsys, tmp_path / "run", *SMALL, *overrides)
        assert not (tmp_path / "run").exists()


def test_one_users_values_do_not_decide_whether_a_run_happens(tmp_path, capsys):
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
    public = "public={shape:[28,28],classes:62}"
    settings = compose("node_check", ["clients=3", public, *of("femnist_hdf5", tmp_path)], NodeSettings)
    spoil_bob(tmp_path, "train")
    assert guard(lambda: node_check(settings)) == 2
    assert "client 1 of dataset femnist holds the label 77" in capsys.readouterr().err


def test_the_check_of_a_node_refuses_no_test_set_that_a_node_does_without(tmp_path, capsys):
    small_files.npz(tmp_path / "a.npz", split=np.zeros(18))
    data = ["dataset=by_user_npz", f"dataset.path={tmp_path / 'a.npz'}", "public={shape:[4],classes:3}"]
    node_check(compose("node_check", ["clients=3", "output=json", *data], NodeSettings))
    assert json.loads(capsys.readouterr().out)["examples"] == 18
    assert guard(lambda: node_check(compose("node_check", ["clients=4", *data], NodeSettings))) == 2
