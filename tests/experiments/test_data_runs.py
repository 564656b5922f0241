"""Whole runs on users' data: each kind of file, held-out clients, and a bad file that ends with one sentence and writes nothing."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import small_files
from client.data import Examples, load
from client.data.clients import CheckedClients, readable
from experiments.deployment.node import node_settings
from experiments.run_files.reader import read_config
from experiments.settings.recorded import restored
from fedmf.errors import DataError, FedmfError, SettingError
from runs import composed, refused, run, simulate, summary

SMALL = (
    "population.cohort_size=2",
    "population.rounds_per_epoch=1",
    "population.epochs=1",
    "privacy.delta=1e-2",
)


def statement(directory: Path) -> dict[str, object]:
    """Return privacy.json."""
    return json.loads((directory / "privacy.json").read_text())


@pytest.mark.long
def test_the_statement_tells_a_capped_user_from_a_cut_one(tmp_path: Path) -> None:
    data = ["dataset=by_user_npz", f"dataset.path={small_files.npz(tmp_path / 'data.npz')}"]
    for key, unit in (
        ("max_examples_per_user", "one user = one client, with at most the user's first 2 examples"),
        ("examples_per_client", "the unit of privacy is the cut client, not the user"),
    ):
        said = statement(run(tmp_path / key, *SMALL, *data, f"dataset.{key}=2"))
        assert said["unit_of_privacy"].endswith(unit)
        assert "users of the test split also train" in " ".join(said["warnings"])


@pytest.mark.long
@pytest.mark.parametrize("form", ["own_csv", "own_parquet", "own_hub", "own_pictures", "own_texts", "dealt"])
def test_every_kind_of_file_makes_a_run_whose_statement_names_the_unit_and_which_records_its_settings(
    tmp_path: Path, form: str
) -> None:
    given = small_files.settings(form, tmp_path)
    settings = [f"dataset={given.pop('name')}"]
    settings += [f"dataset.{key}={json.dumps(value).replace(chr(34), '')}" for key, value in given.items()]
    model = (
        ["model=lstm", "model.embedding=2", "model.hidden=2"] if form == "own_texts" else ["model=logistic"]
    )
    directory = run(tmp_path / "run", *SMALL, *settings, *model)
    unit = statement(directory)["unit_of_privacy"]
    assert "made-up client" in unit if form == "dealt" else unit == "one user = one client"
    assert restored(read_config(directory)).dataset == composed(*settings).dataset  # lists survive


SMALL_BAD = (
    "population.cohort_size=1",
    "population.rounds_per_epoch=3",
    "population.epochs=1",
    "model=logistic",
)


def of(form, folder):
    """Write the files of a form; return the overrides that choose them."""
    folder.mkdir(exist_ok=True)
    given = small_files.settings(form, folder)
    return [f"dataset={given.pop('name')}", *(f"dataset.{key}={value}" for key, value in given.items())]


def spoil_bob(folder, split):
    """Give bob labels that no class has, in TFF's files."""
    with h5py.File(folder / "hdf5" / f"fed_emnist_{split}.h5", "r+") as file:
        file["examples/bob/label"][:] = 77


@pytest.mark.long
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
        assert sentence in refused(capsys, tmp_path / "run", *SMALL_BAD, *overrides)
        assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_one_users_values_do_not_decide_whether_a_run_happens(tmp_path, capsys):
    overrides = [*SMALL_BAD, "seed=3", "run.reproducible=true"]
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


SMALL_HELD = ("population.epochs=2", "population.cohort_size=20", "dataset=synthetic", "dataset.clients=100")
HELD = {2, 10, 13, 20, 39, 41, 48, 52, 74, 82}


@pytest.fixture
def read(monkeypatch):
    """The numbers of the clients whose examples are read."""
    numbers, real = set(), CheckedClients.client
    monkeypatch.setattr(CheckedClients, "client", lambda self, i: numbers.add(i) or real(self, i))
    return numbers


def everyone_read(dataset, read):
    read.clear()
    assert len(dataset.clients[:]) == len(read) == len(dataset.clients)
    return set(read)


def test_the_held_out_clients_follow_from_their_number_and_all_others_train(read):
    for name, settings in (("synthetic", {}), ("synthetic", {"shift": 3.0, "classes": 3})):
        data = {"name": name, "clients": 100, "held_out": 0.109, **settings}
        assert everyone_read(load(**data, held_out_use="train"), read) == HELD
        for use in ("none", "score"):
            assert everyone_read(load(**data, held_out_use=use), read) == {*range(100)} - HELD
    assert len(load("synthetic", clients=10**9, held_out=0.25, held_out_use="train").clients) == 10**9 // 4


def test_the_model_is_scored_on_held_out_clients_only_where_it_says_so():
    whole = load("digits")
    given = {use: load("digits", held_out=0.1, held_out_use=use) for use in ("score", "train", "none")}
    held = np.concatenate([one.x for one in given["train"].clients])
    np.testing.assert_array_equal(given["score"].test.x, held)
    assert len(load("digits", held_out=0.1, max_test_examples=50).test) == 50
    assert (
        given["score"]
        .uncovered[0]
        .startswith("143 of 1,437 clients are held out: they do not train, the model is scored")
    )
    for use in ("train", "none"):
        assert given[use].uncovered == ()
        np.testing.assert_array_equal(given[use].test.x, whole.test.x)


@pytest.mark.parametrize(("use", "asked"), [("none", {*range(100)} - HELD), ("train", HELD)])
def test_a_held_out_client_is_never_asked(tmp_path, read, use, asked):
    held_out = ("dataset.held_out=0.109", f"dataset.held_out_use={use}", "population.cohort_size=5")
    found = summary(run(tmp_path / "run", *SMALL_HELD, *held_out))
    assert found["clients"] == len(asked)
    assert found["rounds_per_epoch"] == len(asked) // 5
    assert read == asked


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("dataset.held_out=0.9", "population.cohort_size is 20, but there are only 10 clients"),
        ("dataset.held_out=0.001", "dataset.held_out is 0.001, which is none of 100 clients"),
        ("dataset.held_out=0.1 engine=deployment", "clients of a deployment are its nodes'"),
    ],
)  # fmt: skip
def test_what_cannot_be_held_out_is_refused_in_one_sentence(tmp_path, given, said):
    with pytest.raises(FedmfError, match=said):
        simulate(composed(f"run.directory={tmp_path / 'run'}", *SMALL_HELD, *given.split()))
    assert not (tmp_path / "run").exists()
    if "engine" in given:
        with pytest.raises(SettingError, match=said):
            node_settings("clients=3 dataset=digits dataset.held_out=0.1")


def test_a_held_out_client_that_cannot_be_read_is_not_scored():
    dataset = load("digits")

    class Some(list):
        def __getitem__(self, i):
            if i % 2:
                raise ValueError("bad")
            return dataset.clients[i]

    assert len(readable(Some(range(5)), "mine")) == 3
    with pytest.raises(DataError, match="No held-out client of dataset mine can be read"):
        readable([Examples(np.zeros(0), np.zeros(0))][:0], "mine")
