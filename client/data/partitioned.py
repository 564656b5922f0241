"""Your own arrays without users, dealt out to made-up clients (iid, Dirichlet, shards) by flwr-datasets."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from client.data.by_user_npz import SPLIT_SEED, check_arrays, fifth_of_each, public_classes, read_arrays
from client.data.dataset import CLASSIFICATION, ArrayClients, Dataset, Examples, as_float32
from client.imports import need
from fedmf.checks import check_at_least, check_choice, check_positive
from fedmf.errors import DataError, SettingError

LICENCE = "the file's own"
SOURCE = "a file of the user's own"
TEST_USERS = "no users: clients are made up"
PARTITIONERS = ("iid", "dirichlet", "shards")


def load(
    path: str | Path,
    *,
    clients: int = 100,
    partitioner: str = "iid",
    alpha: float = 0.5,
    shards: int = 2,
    classes: int | None = None,
    partition_seed: int = 0,
) -> Dataset:
    """Return the arrays at `path` (x, y as for by_user_npz, no user) dealt out to `clients` made-up clients.

    `partitioner` is iid; dirichlet, where each class is spread over the clients by Dirichlet(`alpha`) shares
    (Hsu et al. 2019); or shards, where each client gets `shards` pieces of the examples sorted by label
    (McMahan et al. 2017). Clients that get nothing are left out. The test set is split = 1, or a fifth of all
    examples drawn by a public seed. Raises `DataError` for a missing or malformed file.
    """
    path = Path(path)
    check_choice("partitioner", partitioner, PARTITIONERS)
    check_at_least("clients", clients, 1)
    check_at_least("shards", shards, 1)
    check_positive("alpha", alpha)
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
            f"it must have at least one for each of {clients} clients, and one to test on."
        )
    parts = deal(y[train_rows].astype(np.int64), clients, partitioner, alpha, shards, seed=partition_seed)
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Dataset(
        name="partitioned",
        clients=ArrayClients(x, y, train_rows[np.concatenate(parts)], bounds),
        test=Examples(as_float32(x[test_rows]), y[test_rows].astype(np.int64)),
        input_shape=tuple(x.shape[1:]),
        classes=public_classes(path, y[test_rows], classes),
        task=CLASSIFICATION,
        licence=LICENCE,
        source=path.name,
        unit=f"one made-up client ({partitioner} partition) = one client",
    )


def deal(
    labels: np.ndarray, clients: int, partitioner: str, alpha: float, shards: int, *, seed: int
) -> list[np.ndarray]:
    """Return the rows of each client that got any, sorted; together they are every row once."""
    module = need("flwr_datasets.partitioner", f"partitioner={partitioner}")
    settings: dict[str, dict[str, Any]] = {
        "iid": {},
        "dirichlet": {
            "partition_by": "label",
            "alpha": alpha,
            "min_partition_size": 0,
            "self_balancing": False,
        },
        "shards": {"partition_by": "label", "num_shards_per_partition": shards},
    }
    kinds = {"iid": "IidPartitioner", "dirichlet": "DirichletPartitioner", "shards": "ShardPartitioner"}
    chosen = settings[partitioner] | ({} if partitioner == "iid" else {"seed": seed, "shuffle": False})
    maker = getattr(module, kinds[partitioner])(num_partitions=clients, **chosen)
    rows = (
        np.random.default_rng(seed).permutation(len(labels))
        if partitioner == "iid"
        else np.arange(len(labels))
    )
    table = need("datasets", "Partitioning").Dataset.from_dict({"label": labels[rows], "row": rows})
    maker.dataset = table
    try:
        with warnings.catch_warnings():
            # datasets 4.8 sorts with an option that pyarrow 25 deprecates
            warnings.simplefilter("ignore", FutureWarning)
            parts = [
                np.sort(np.array(maker.load_partition(number)["row"], dtype=np.int64))
                for number in range(clients)
            ]
    except ValueError as error:
        raise SettingError(f"partitioner={partitioner} cannot deal to {clients} clients: {error}") from error
    return [part for part in parts if len(part)]
