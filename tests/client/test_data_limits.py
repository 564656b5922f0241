"""How much of a data set is used: the first examples of a user, users that are cut, part of the test set."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import own_loaders
from client.data import Dataset, load
from client.data.clients import FirstExamples, digest_clients, limited
from fedmf.errors import SettingError
from fedmf.randomness import SecretKey
from published import named, write_sqlite

USERS = np.array([4, 3, 4, 4, 3, 4, 5, 4])
TRAINING = [[1, 4], [0, 2, 3, 5, 7], [6]]  # rows of users 3, 4 and 5, in the file's order
RNG = np.random.default_rng(1)


def by_user_npz(folder: Path, test: int = 40) -> str:
    """Write x[i] = i for the training users above and `test` examples of user 9."""
    users = np.concatenate([USERS, np.full(test, 9)])
    x = np.arange(len(users), dtype=np.float32)[:, None] * np.ones(2, np.float32)
    split = (users == 9).astype(np.uint8)
    np.savez(folder / "data.npz", x=x, y=np.arange(len(users)) % 3, user=users, split=split)
    return str(folder / "data.npz")


def rows(dataset: Dataset) -> list[list[int]]:
    return [client.x[:, 0].astype(int).tolist() for client in dataset.clients]


def test_a_capped_user_keeps_the_first_examples_and_stays_the_unit(tmp_path: Path) -> None:
    dataset = load("by_user_npz", path=by_user_npz(tmp_path), max_examples_per_user=2)
    assert rows(dataset) == [own[:2] for own in TRAINING]
    assert dataset.unit == "one user = one client, with at most the user's first 2 examples"


def test_a_cut_user_keeps_all_examples_and_is_no_longer_the_unit(tmp_path: Path) -> None:
    dataset = load("by_user_npz", path=by_user_npz(tmp_path), examples_per_client=2)
    assert rows(dataset) == [own[i : i + 2] for own in TRAINING for i in range(0, len(own), 2)]
    assert dataset.unit == (
        "one user cut into clients of at most 2 examples: the unit of privacy is the cut client, not the user"
    )


def test_given_both_users_are_capped_first_and_then_cut(tmp_path: Path) -> None:
    dataset = load("by_user_npz", path=by_user_npz(tmp_path), max_examples_per_user=3, examples_per_client=2)
    assert rows(dataset) == [own[:3][i : i + 2] for own in TRAINING for i in range(0, len(own[:3]), 2)]
    assert dataset.unit == (
        "one user, of whose examples at most the first 3 are used, cut into clients of at most 2 examples (at most 2 "
        "of one user): the unit of privacy is the cut client, not the user"
    )


@pytest.mark.parametrize("limits", [{"max_examples_per_user": 3}, {"examples_per_client": 2}, {}])
def test_users_of_a_benchmark_are_capped_and_cut_alike(tmp_path: Path, limits: dict[str, int]) -> None:
    sizes = {"f0000_14": 1, "f0001_41": 5, "f0002_07": 4}
    data: dict[str, dict[str, dict[str, Any]]] = {
        split: {
            user: {"pixels": RNG.random((n, 28, 28)).astype("f4"), "label": RNG.integers(0, 62, n)}
            for user, n in sizes.items()
        }
        for split in ("train", "test")
    }
    path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    cap, piece = limits.get("max_examples_per_user", 99), limits.get("examples_per_client", 99)
    expected = [
        columns["label"][start : min(start + piece, cap, sizes[user])].tolist()
        for user, columns in data["train"].items()
        for start in range(0, min(cap, sizes[user]), piece)
    ]
    dataset = load("femnist", path=path, **limits)  # type: ignore[arg-type]
    assert [client.y.tolist() for client in dataset.clients] == expected


def test_a_test_set_is_cut_to_a_public_draw_that_a_larger_one_contains(tmp_path: Path) -> None:
    path = by_user_npz(tmp_path)
    few, more, whole = (
        load("by_user_npz", path=path, max_test_examples=count).test.x[:, 0].tolist() for count in (5, 20, 99)
    )
    assert (len(few), len(more), len(whole)) == (5, 20, 40)
    assert set(few) < set(more) < set(whole)
    assert few != whole[:5]  # not the beginning of the file, which may hold one user alone
    assert few == sorted(few)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_data_sets_without_users_take_the_limits_too(name: str) -> None:
    dataset = load(name, max_test_examples=17, max_examples_per_user=1)
    assert len(dataset.test) == 17
    assert {len(client) for client in dataset.clients[:20]} == {1}
    assert dataset.unit.endswith("= one client, with at most the first 1 examples of each")


def test_a_loader_of_ones_own_is_capped_too_and_its_clients_are_others() -> None:
    whole, capped = load("own_loaders:load"), load("own_loaders:load", max_examples_per_user=3)
    assert [len(client) for client in capped.clients] == [3, 3, 3]
    assert capped.clients[-1].y.tolist() == [0, 1, 2]
    key = SecretKey.reproducible(0)
    assert digest_clients(whole.clients, key) != digest_clients(capped.clients, key)
    listed = list(whole.clients)
    three, again, two = (digest_clients(FirstExamples(listed, most), key) for most in (3, 3, 2))
    assert three == again != two


def test_the_cap_of_a_loader_that_cuts_its_users_itself_must_be_its_own() -> None:
    with pytest.raises(SettingError, match=r"cuts its users itself; let it take max_examples_per_user too"):
        load("own_loaders:load_cutting", max_examples_per_user=3, examples_per_client=2)
    dataset = load("own_loaders:load_capping", max_examples_per_user=3, examples_per_client=2)
    assert [len(client) for client in dataset.clients] == [4, 4, 4]  # the loader's affair


@pytest.mark.parametrize("name", ["digits", "own_loaders:load"])
def test_clients_that_are_nobodys_cannot_be_cut(name: str) -> None:
    with pytest.raises(
        SettingError, match=r"^examples_per_client is 2, but the clients of dataset .* cannot be cut"
    ):
        load(name, examples_per_client=2)


def test_people_of_a_loader_of_ones_own_can_be_cut() -> None:
    dataset = load("own_loaders:load_of_people", max_examples_per_user=4, examples_per_client=3)
    assert [client.y.tolist() for client in dataset.clients] == [[0, 1, 2], [3], [1, 2]]
    assert dataset.unit.endswith(
        "(at most 2 of one child): the unit of privacy is the cut client, not the child"
    )


@pytest.mark.parametrize("key", ["max_examples_per_user", "examples_per_client", "max_test_examples"])
def test_a_limit_below_one_is_refused(key: str) -> None:
    with pytest.raises(SettingError, match=rf"^{key} is 0; it must be a whole number of at least 1"):
        limited(own_loaders.load(), **{key: 0})
