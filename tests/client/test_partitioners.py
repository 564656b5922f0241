"""Arrays dealt out by flwr-datasets' partitioners: every row once, from the seed alone, by any of their names."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.data import load
from client.data.own import DEFAULTS, Dealer
from client.settings import PARTITIONERS
from fedmf.errors import SettingError

LABELS = np.repeat(np.arange(5), 40)
USERS = np.arange(200) % 20
ONES = np.ones((5, 4)).tolist()
# What each needs besides its name, for ten clients.
SETTINGS: dict[str, dict[str, Any]] = {
    "inner_dirichlet": {"partition_sizes": [20] * 10},
    "sizes": {"partition_sizes": [11, 29] * 5},
    "distribution": {
        "distribution_array": ONES,
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 1,
    },
    "grouped": {"group_size": 2},
}
CLIENTS = {"square": 4, "exponential": 4}  # of 200 rows the first of ten would get none


def deal(
    name: str, *, alpha: float = 0.5, seed: int = 0, clients: int | None = None, **settings: Any
) -> list[np.ndarray]:
    """Deal `LABELS` to ten clients, or to as many as the partitioner can."""
    clients = clients or CLIENTS.get(name, 10)
    defaults = DEFAULTS | {"alpha": alpha, "num_shards_per_partition": 2}
    return Dealer(name, clients, {**SETTINGS.get(name, {}), **settings}, defaults, seed).deal(LABELS, USERS)


def classes_seen(parts: list[np.ndarray]) -> list[int]:
    """Return how many classes each client has examples of."""
    return [len(set(LABELS[part])) for part in parts]


@pytest.mark.parametrize("name", PARTITIONERS)
def test_dealing_gives_every_row_to_one_client_and_depends_on_the_seed_alone(name: str) -> None:
    parts = deal(name)
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    again, other = deal(name), deal(name, seed=1)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))
    if name not in ("grouped", "distribution"):  # of which nothing is drawn here
        assert any(a.tolist() != b.tolist() for a, b in zip(parts, other, strict=False))


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_partitioner_has_the_name_of_its_class_too(name: str) -> None:
    settings = SETTINGS.get(name, {})
    parts, named = deal(name), deal(PARTITIONERS[name], clients=CLIENTS.get(name), **settings)
    assert [part.tolist() for part in parts] == [part.tolist() for part in named]


def test_partitioners_differ_in_how_many_classes_a_client_sees() -> None:
    seen = {name: np.mean(classes_seen(deal(name, alpha=0.1))) for name in ("iid", "dirichlet", "shards")}
    assert seen["shards"] <= 2
    assert seen["dirichlet"] < 4 < seen["iid"]


def test_a_pathological_client_sees_as_many_classes_as_its_setting_says() -> None:
    assert classes_seen(deal("pathological")) == [2] * 10
    settings = {"num_classes_per_partition": 3, "class_assignment_mode": "deterministic"}
    assert classes_seen(deal("pathological", **settings)) == [3] * 10


def test_sizes_are_those_that_the_partitioner_promises() -> None:
    assert [len(part) for part in deal("sizes")] == [11, 29] * 5
    assert [len(part) for part in deal("linear", clients=4)] == [20, 40, 60, 80]


def test_a_group_holds_all_rows_of_its_users() -> None:
    parts = deal("grouped")
    assert [len(set(USERS[part])) for part in parts] == [2] * 10
    assert sum(len(set(USERS[part])) for part in parts) == len(set(USERS))


def test_rows_that_nobody_gets_are_counted_in_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        deal("sizes", partition_sizes=[1] * 10)
    assert "leaves 190 of 200 training examples to no client" in caplog.text


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("sizes", {"partition_sizes": [5, 5]}, "deals to 2 clients, but clients is 10; set clients to 2"),
        ("iid", {"num_partitions": 3}, "num_partitions=3; leave it out: set clients instead"),
        ("dirichlet", {"shuffle": True}, "shuffle=True; leave it out: it is chosen here"),
        ("exponential", {}, "cannot deal 200 examples to 10 clients .* not greater than 0"),
        (
            "pathological",
            {"classes": 2},
            "unexpected keyword argument 'classes'",
        ),
        (
            "pathological",
            {"num_classes_per_partition": 9},
            "cannot deal 200 examples to 10 clients .* greater than the number",
        ),
        ("dirichlet", {"alpha": "many"}, "cannot deal 200 examples to 10 clients"),
    ],
)
def test_a_partitioner_that_cannot_deal_says_why(name: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        deal(name, clients=10, **settings)


def test_what_a_partitioner_needs_and_nobody_said_is_asked_for() -> None:
    with pytest.raises(SettingError, match=r"missing 1 required positional argument: 'partition_sizes'"):
        Dealer("sizes", 10, {}, DEFAULTS, 0).deal(LABELS, None)
    with pytest.raises(SettingError, match="groups users, but the data have no array user"):
        Dealer("grouped", 10, {"group_size": 2}, DEFAULTS, 0).deal(LABELS, None)


def test_settings_of_a_partitioner_reach_it_through_the_data_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((200, 2)), y=LABELS, split=np.arange(200) % 40 >= 36)
    dataset = load(
        "partitioned",
        path=str(tmp_path / "data.npz"),
        clients=5,
        partitioner="pathological",
        partitioner_settings={"num_classes_per_partition": 1, "class_assignment_mode": "deterministic"},
    )
    assert [sorted(set(client.y)) for client in dataset.clients] == [[0], [1], [2], [3], [4]]
    assert [len(client) for client in dataset.clients] == [36] * 5


def statement_of(tmp_path: Path, name: str, **settings: Any) -> tuple[str, str]:
    """Return unit and uncovered of 40 rows of ten users, each with a row in the test set, dealt out."""
    rows = np.arange(40)
    arrays = {"x": np.ones((40, 2), np.float32), "y": rows % 2, "user": rows % 10, "split": rows >= 30}
    np.savez(tmp_path / "data.npz", **arrays)
    path = str(tmp_path / "data.npz")
    dataset = load("partitioned", path=path, partitioner=name, partitioner_settings=settings, clients=5)
    return dataset.unit, " ".join(dataset.uncovered)


@pytest.mark.parametrize(
    ("name", "said"), [("dirichlet", True), ("shards", True), ("pathological", True), ("iid", False), ("linear", False)]
)  # fmt: skip
def test_clients_dealt_by_label_say_that_labels_of_all_decide_about_each(
    tmp_path: Path, name: str, said: bool
) -> None:
    unit, uncovered = statement_of(tmp_path, name)
    assert ("labels of all training rows" in uncovered) is said
    assert "made-up client" in unit


def test_groups_of_users_are_the_unit_and_users_in_both_splits_are_counted(tmp_path: Path) -> None:
    unit, uncovered = statement_of(tmp_path, "grouped", group_size=2)
    assert unit == "one group of users, each whole in it (grouped partition) = one client"
    assert uncovered.startswith("10 of 10 users of the test split also train")
