"""The partitioners of flwr-datasets that deal out arrays with labels, by name, and their settings.

Every draw comes from one public seed. Partitioners without draws of their own are given the rows in an order drawn
from client.settings import PARTITIONERS
from it, since the order of a file may follow the labels.
"""

import inspect
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.imports import need
from client.settings import PARTITIONERS
from fedmf.checks import check_choice
from fedmf.errors import SettingError

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
        for key, value in self.settings.items():
            if key in OURS:
                instead = f"set {OURS[key]} instead" if OURS[key] else "it is given already"
                raise SettingError(f"partitioner_settings holds {key}={value!r}; leave it out: {instead}.")
            if key not in self._takes():
                own = ", ".join(name for name in self._takes() if name not in OURS) or "no settings"
                raise SettingError(f"partitioner_settings holds {key}={value!r}; {self.name} takes {own}.")

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
            _log.warning(
                "partitioner %s leaves %d of %d training examples to no client",
                self.name,
                len(labels) - len(dealt),
                len(labels),
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
        """Return everything that the partitioner is made with."""
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
        required = inspect.signature(self._class().__init__).parameters
        if absent := [
            key for key in takes if required[key].default is inspect.Parameter.empty and key not in given
        ]:
            raise SettingError(
                f"partitioner={self.name} needs {', '.join(absent)}; give it as partitioner_settings={{{absent[0]}: ...}}."
            )
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
                count = maker.num_partitions
                if count != self.clients:
                    raise SettingError(
                        f"partitioner={self.name} deals to {count} clients, but clients is {self.clients}; set clients to "
                        f"{count}, or change partitioner_settings."
                    )
                return [
                    np.sort(np.array(maker.load_partition(number)["row"], dtype=np.int64))
                    for number in range(count)
                ]
        except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AssertionError) as error:
            if isinstance(error, SettingError):
                raise
            if isinstance(error, ZeroDivisionError):
                given = ", ".join(f"{key}={value}" for key, value in arguments.items() if key not in OURS)
                raise SettingError(
                    f"partitioner={self.name} cannot deal {len(held)} examples to {self.clients} clients with {given}: a "
                    "part would have no example; give numbers of at least 1, and fewer or larger parts."
                ) from error
            raise SettingError(
                f"partitioner={self.name} cannot deal to {self.clients} clients: {' '.join(str(error).split())}"
            ) from error
