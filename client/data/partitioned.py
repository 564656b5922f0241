"""Your own arrays without users, dealt out to made-up clients by a partitioner of flwr-datasets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from client.data.by_user_npz import LICENCE, SOURCE, check_arrays, read_arrays
from client.data.checked import count_classes
from client.data.dataset import CLASSIFICATION, ArrayClients, Dataset, shared_users, stored_examples
from client.data.partitioners import Dealer
from client.data.split import SPLIT_SEED, fifth_of_each
from fedmf.checks import check_at_least, check_positive
from fedmf.errors import DataError

__all__ = ["LICENCE", "SOURCE", "TEST_USERS", "load"]

TEST_USERS = "no users: clients are made up; with partitioner=grouped counted when loaded"
DEALT_BY_LABEL = (
    "Made-up clients: which rows a client has follows from the labels of all training rows, which is not covered. "
    "Use such clients to study a method; real users belong in by_user_npz."
)
DEFAULTS = {"min_partition_size": 0, "self_balancing": False, "num_classes_per_partition": 2}
"""Settings of partitioners that have no key of their own."""


def load(
    path: str | Path,
    *,
    clients: int = 100,
    partitioner: str = "iid",
    partitioner_settings: Mapping[str, Any] | None = None,
    alpha: float = 0.5,
    shards: int = 2,
    classes: int | None = None,
    partition_seed: int = 0,
    clients_only: bool = False,
) -> Dataset:
    """Return the arrays at `path` (x, y as for by_user_npz) dealt out to `clients` made-up clients.

    `partitioner` is iid; dirichlet, where each class is spread over the clients by Dirichlet(`alpha`) shares
    (Hsu et al. 2019); shards, where each client gets `shards` pieces of the examples sorted by label
    (McMahan et al. 2017); pathological, where each client gets examples of two classes; or another one of flwr-datasets,
    by its name there (client.data.partitioners). `partitioner_settings` are arguments of its class. Clients that get
    nothing are left out. The test set is split = 1, or a fifth of all examples drawn by a public seed; with `clients_only` no
    test input is read. Raises `DataError` for a missing or malformed file, `SettingError` for a partitioner that cannot deal them.
    """
    path = Path(path)
    check_at_least("clients", clients, 1)
    check_at_least("shards", shards, 1)
    check_positive("alpha", alpha)
    defaults = DEFAULTS | {"alpha": alpha, "num_shards_per_partition": shards}
    dealer = Dealer(partitioner, clients, partitioner_settings or {}, defaults, partition_seed)
    arrays = read_arrays(path)
    check_arrays(path, arrays, ("x", "y"))
    x, y = arrays["x"], arrays["y"]
    test = (
        arrays["split"] == 1 if "split" in arrays else fifth_of_each(np.zeros(len(y), int), seed=SPLIT_SEED)
    )
    train_rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
    if min(len(train_rows), len(test_rows)) == 0 or clients > len(train_rows):
        raise DataError(
            f"{path} has {len(train_rows)} training and {len(test_rows)} test examples; "
            f"it must have at least one for each of {clients} clients, and one to test on: set clients to fewer, or mark "
            "test examples with split = 1."
        )
    unit, overlap = f"one made-up client ({partitioner} partition) = one client", tuple[str, ...]()
    if dealer.groups_users and "user" in arrays:
        unit = f"one group of users, each whole in it ({partitioner} partition) = one client"
        overlap = shared_users(arrays["user"][train_rows], arrays["user"][test_rows])
    parts = dealer.deal(y[train_rows], arrays["user"][train_rows] if "user" in arrays else None)
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Dataset(
        name="partitioned",
        clients=ArrayClients(x, y, train_rows[np.concatenate(parts)], bounds),
        test=stored_examples(x, y, test_rows, clients_only=clients_only),
        input_shape=tuple(x.shape[1:]),
        classes=count_classes(path, f"A test example in {path}", np.unique(y[test_rows]).tolist(), classes),
        task=CLASSIFICATION,
        licence=LICENCE,
        source=path.name,
        unit=unit,
        uncovered=(DEALT_BY_LABEL,) * dealer.looks_at_labels + overlap,
    )
