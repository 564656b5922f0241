"""dataset.held_out: who is held out follows from numbers alone, and no held-out client is asked."""

import numpy as np
import pytest

from client.data import Examples, digits, load
from client.data.clients import CheckedClients, digest_clients, readable
from experiments.deployment.node import node_settings
from fedmf.errors import DataError, FedmfError, RunDirectoryError, SettingError
from fedmf.randomness import SecretKey
from runs import composed, in_directory, run, simulate, summary

SMALL = ("population.epochs=2", "population.cohort_size=20", "dataset=synthetic", "dataset.clients=100")
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
    whole = digits.load()
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
    found = summary(run(tmp_path / "run", *SMALL, *held_out))
    assert found["clients"] == len(asked)
    assert found["rounds_per_epoch"] == len(asked) // 5
    assert read == asked


def test_a_run_goes_on_only_with_the_same_clients_held_out(tmp_path):
    simulate(in_directory(tmp_path / "run", *SMALL, "dataset.held_out=0.2"))
    with pytest.raises(RunDirectoryError, match=r"dataset\.held_out is 0\.1, and the run has 0\.2"):
        simulate(in_directory(tmp_path / "run", *SMALL, "dataset.held_out=0.1", "run.resume=true"))


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
        simulate(composed(f"run.directory={tmp_path / 'run'}", *SMALL, *given.split()))
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


def test_who_the_clients_are_tells_shares_and_uses_apart():
    key = SecretKey.reproducible(0)
    shares = [
        load("digits", held_out=share, held_out_use=use) for share in (0.1, 0.2) for use in ("train", "none")
    ]
    for first, stop in ((0, None), (3, 5)):
        assert len({digest_clients(one.clients, key, first, stop) for one in shares}) == 4
