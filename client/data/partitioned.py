"""Your own arrays without users, dealt out to made-up clients by a partitioner of flwr-datasets.

Every draw comes from one public seed. Partitioners without draws of their own are given the rows in an order drawn
from it, since the order of a file may follow the labels.
"""

import inspect
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.data.by_user_npz import LICENCE, SOURCE, check_arrays, read_arrays
from client.data.checked import count_classes
from client.data.dataset import CLASSIFICATION, ArrayClients, Dataset, shared_users, stored_examples
from client.data.split import SPLIT_SEED, fifth_of_each
from client.imports import need
from client.settings import PARTITIONERS
from fedmf.checks import check_at_least, check_choice, check_positive
from fedmf.errors import DataError, SettingError

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
    by its name there. `partitioner_settings` are arguments of its class. Clients that get
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


_log = logging.getLogger(__name__)

KNOWN = (*PARTITIONERS, *PARTITIONERS.values())
OURS = {"num_partitions": "clients", "seed": "partition_seed", "shuffle": None, "partition_by": None}
"""Arguments of flwr-datasets that are given here, with the setting that says them."""
OF_USERS = "GroupedNaturalIdPartitioner"


@dataclass(frozen=True)
class Dealer:
    """How rows are dealt out: the partitioner's name, to how many clients, its settings, and the public seed.

    `defaults` are settings that hold where `settings` say nothing else and the partitioner takes them.
    """

    name: str
    clients: int
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    seed: int

    def __post_init__(self) -> None:
        """Raise `SettingError` for an unknown partitioner, or for settings that are not its own."""
        check_choice("partitioner", self.name, KNOWN)
        if not isinstance(self.settings, Mapping):
            raise SettingError(
                f"partitioner_settings is {self.settings!r}; it must be a mapping such as {{alpha: 0.1}}."
            )
        own = [name for name in self._takes() if name not in OURS]
        for key, value in self.settings.items():
            if key not in own:
                instead = (
                    f"leave it out: set {OURS[key]} instead"
                    if OURS.get(key)
                    else f"{self.name} takes {', '.join(own) or 'no settings'}"
                )
                raise SettingError(f"partitioner_settings holds {key}={value!r}; {instead}.")

    def deal(self, labels: np.ndarray, users: np.ndarray | None) -> list[np.ndarray]:
        """Return the rows of each client that got any, sorted; no row is dealt twice.

        `labels` [rows] and `users` [rows] are what partitioners look at. Rows that a partitioner leaves out are counted
        in a warning.
        """
        if self._kind == OF_USERS and users is None:
            raise SettingError(
                f"partitioner={self.name} groups users, but the data have no array user; add it."
            )
        rows = np.arange(len(labels))
        if "seed" not in self._takes() and self._kind != OF_USERS:
            rows = np.random.default_rng(self.seed).permutation(len(labels))
        table = {"label": labels[rows].astype(np.int64), "row": rows} | (
            {} if users is None else {"user": users[rows]}
        )
        parts = [part for part in self._parts(table) if len(part)]
        dealt = np.concatenate(parts) if parts else rows[:0]
        if len(np.unique(dealt)) < len(dealt) or not len(dealt):
            raise SettingError(
                f"partitioner={self.name} deals {len(dealt)} rows, some of them twice or none at all; every row must go to "
                "at most one client: change partitioner_settings."
            )
        if len(dealt) < len(labels):
            left = len(labels) - len(dealt)
            _log.warning(
                "partitioner %s leaves %d of %d training examples to no client", self.name, left, len(labels)
            )
        return parts

    @property
    def looks_at_labels(self) -> bool:
        """Say whether the labels decide which rows a client gets."""
        return "partition_by" in self._takes() and not self.groups_users

    @property
    def groups_users(self) -> bool:
        """Say whether the clients are groups of whole users of the file."""
        return self._kind == OF_USERS

    @property
    def _kind(self) -> str:
        return PARTITIONERS.get(self.name, self.name)

    def _class(self) -> Any:
        return getattr(need("flwr_datasets.partitioner", f"partitioner={self.name}"), self._kind)

    def _takes(self) -> list[str]:
        return [name for name in inspect.signature(self._class().__init__).parameters if name != "self"]

    def _arguments(self) -> dict[str, Any]:
        """Return everything that the partitioner is made with; what else it needs, its class says."""
        of_rows = {
            "num_partitions": self.clients,
            "partition_by": "user" if self._kind == OF_USERS else "label",
            "seed": self.seed,
            "shuffle": False,
        }
        takes = self._takes()
        given = {key: value for key, value in (of_rows | dict(self.defaults)).items() if key in takes}
        given |= {
            key: np.array(value) if key == "distribution_array" else value
            for key, value in self.settings.items()
        }
        return given

    def _parts(self, table: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the rows of each client, as the partitioner deals them."""
        arguments = self._arguments()
        held = need("datasets", "Partitioning").Dataset.from_dict(dict(table))
        try:
            with warnings.catch_warnings():
                # datasets 4.8 sorts with an option that pyarrow 25 deprecates
                warnings.simplefilter("ignore", FutureWarning)
                # rows left out are counted by `deal`
                warnings.simplefilter("ignore", UserWarning)
                maker = self._class()(**arguments)
                maker.dataset = held
                parts = [maker.load_partition(number)["row"] for number in range(maker.num_partitions)]
        except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AssertionError) as error:
            said = " ".join(str(error).split())
            if isinstance(error, ZeroDivisionError):
                said = "a part would have no example; give numbers of at least 1, and fewer or larger parts."
            given = ", ".join(f"{key}={value}" for key, value in arguments.items() if key not in OURS)
            raise SettingError(
                f"partitioner={self.name} cannot deal {len(held)} examples to {self.clients} clients with {given or 'no settings'}: {said}"
            ) from error
        if len(parts) != self.clients:
            raise SettingError(
                f"partitioner={self.name} deals to {len(parts)} clients, but clients is {self.clients}; set clients to "
                f"{len(parts)}, or change partitioner_settings."
            )
        return [np.sort(np.array(part, dtype=np.int64)) for part in parts]
