"""Examples without users, in any form of your own data, dealt out to made-up clients by a partitioner of flwr-datasets.

Every draw comes from one public seed. Partitioners without draws of their own are given the rows in an order drawn from it,
since the order of a file may follow the labels.
"""

import inspect
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from client.data.clients import ArrayClients
from client.data.dataset import Dataset
from client.imports import need
from client.settings import PARTITIONERS
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import DataError, SettingError

log = logging.getLogger(__name__)

# Settings of partitioners that have no key of their own.
DEFAULTS = {"min_partition_size": 0, "self_balancing": False, "num_classes_per_partition": 2}
# Arguments of flwr-datasets that are given here, with the setting that says them.
OURS = {"num_partitions": "clients", "seed": "partition_seed", "shuffle": None, "partition_by": None}


def load_partitioned(
    read: Callable[[str, bool, Mapping[str, Any]], Dataset],
    path: str,
    *,
    clients: int = 100,
    partitioner: str = "iid",
    partitioner_settings: Mapping[str, Any] | None = None,
    alpha: float = 0.5,
    shards: int = 2,
    partition_seed: int = 0,
    **given: Any,
) -> Dataset:
    """Return the examples at `path`, the training examples of which are dealt out to `clients` made-up clients.

    `read(path, has_users, given)` returns them as one client, or with the partitioner grouped as one for each user; `given`
    are settings of their form, which need name no users. The test set is a share of all examples where there is no split.

    `partitioner` is iid; dirichlet, where each class is spread over the clients by Dirichlet(`alpha`) shares (Hsu et al. 2019);
    shards, where each client gets `shards` pieces of the examples sorted by label (McMahan et al. 2017); pathological, where
    each client gets examples of two classes; or another one of flwr-datasets, by its name there. `partitioner_settings` are
    arguments of its class. Clients that get nothing are left out, and counted in a warning. Raises `DataError` for too few
    examples, `SettingError` for a partitioner that cannot deal them.
    """
    check_choice("partitioner", partitioner, (*PARTITIONERS, *PARTITIONERS.values()))
    check_at_least("clients", clients, 1)
    whole = read(path, is_of_users(partitioner), given)
    held = whole.clients
    assert isinstance(held, ArrayClients)
    sizes, rows = held.owned(range(len(held)))
    order = np.argsort(rows)
    rows, users = rows[order], np.repeat(np.arange(len(sizes)), sizes)[order]
    if clients > len(rows):
        raise DataError(
            f"{path} has {len(rows)} training examples; it must have at least one for each of {clients} clients: set clients to "
            "fewer."
        )
    labels, unit = held.y[rows], f"one made-up client ({partitioner} partition) = one client"
    uncovered = whole.uncovered
    if is_of_users(partitioner):
        unit = f"one group of users, each whole in it ({partitioner} partition) = one client"
    elif "partition_by" in _partitioner(partitioner)[1]:
        if labels.ndim > 1:
            raise SettingError(
                f"partitioner={partitioner} deals by classes, which the task {whole.task} lacks; choose iid, say."
            )
        uncovered += (
            "Made-up clients: which rows a client has follows from the labels of all training rows, which is not covered. "
            "Use such clients to study a method; real users belong in by_user_npz.",
        )
    parts = deal(
        partitioner,
        clients,
        partitioner_settings or {},
        partition_seed,
        labels if labels.ndim == 1 else np.zeros(len(rows), int),
        users,
        {"alpha": alpha, "num_shards_per_partition": shards},
    )
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return replace(
        whole,
        name="partitioned",
        clients=replace(held, order=rows[np.concatenate(parts)], bounds=bounds),
        unit=unit,
        uncovered=uncovered,
        person=None,
        warnings=(
            f"The partitioner {partitioner} gave no example to {clients - len(parts)} of {clients} clients: {len(parts)} are "
            "left.",
        )
        * (len(parts) < clients),
    )


def is_of_users(partitioner: str) -> bool:
    """Return whether a partitioner deals users, each whole, and not examples."""
    return PARTITIONERS.get(partitioner, partitioner) == PARTITIONERS["grouped"]


def deal(
    name: str,
    clients: int,
    settings: Mapping[str, Any],
    seed: int,
    labels: np.ndarray,
    users: np.ndarray,
    usual: Mapping[str, Any] = {},
) -> list[np.ndarray]:
    """Return the rows of each client that got any from the partitioner `name`, sorted; no row is dealt twice.

    `labels` [rows] and `users` [rows] are what partitioners look at; `settings` are arguments of its class, `usual`
    others that it is given where it takes them, `seed` is public.
    Rows that a partitioner leaves out are counted in a warning. Raises `SettingError` for settings with which the rows
    cannot be dealt.
    """
    maker, takes = _partitioner(name)
    by = "user" if is_of_users(name) else "label"
    order = np.arange(len(labels))
    if ours := next((key for key in settings if key in OURS), None):
        instead = f"set {OURS[ours]} instead" if OURS[ours] else "it is chosen here"
        raise SettingError(f"partitioner_settings holds {ours}; leave it out: {instead}.")
    if "seed" not in takes and by != "user":
        order = np.random.default_rng(seed).permutation(len(labels))
    table = {"label": labels[order].astype(np.int64), "row": order, "user": users[order]}
    ours_given = {"num_partitions": clients, "partition_by": by, "seed": seed, "shuffle": False}
    given = {key: value for key, value in {**DEFAULTS, **usual, **ours_given}.items() if key in takes}
    given |= settings
    if "distribution_array" in given:
        given["distribution_array"] = np.array(given["distribution_array"])
    held = need("datasets", "Partitioning").Dataset.from_dict(table)
    try:
        with warnings.catch_warnings():
            # datasets 4.8 sorts with an option that pyarrow 25 deprecates; rows left out are counted below
            warnings.simplefilter("ignore")
            dealer = maker(**given)
            dealer.dataset = held
            parts = [
                dealer.load_partition(number).with_format("numpy", ["row"])[:]["row"].astype(np.int64)
                for number in range(dealer.num_partitions)
            ]
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AssertionError) as error:
        shown = ", ".join(f"{key}={value}" for key, value in given.items() if key not in OURS)
        raise SettingError(
            f"partitioner={name} cannot deal {len(held)} examples to {clients} clients with {shown or 'no settings'}: "
            f"{' '.join(str(error).split())}"
        ) from error
    if len(parts) != clients:
        raise SettingError(
            f"partitioner={name} deals to {len(parts)} clients, but clients is {clients}; set clients to "
            f"{len(parts)}, or change partitioner_settings."
        )
    dealt = np.concatenate(parts)
    if len(np.unique(dealt)) < len(dealt) or not len(dealt):
        raise SettingError(
            f"partitioner={name} deals {len(dealt)} rows, some of them twice or none at all; every row must go to "
            "at most one client: change partitioner_settings."
        )
    if left := len(labels) - len(dealt):
        log.warning("partitioner %s leaves %d of %d training examples to no client", name, left, len(labels))
    return [np.sort(part) for part in parts if len(part)]


def _partitioner(name: str) -> tuple[Any, list[str]]:
    """Return (the class of flwr-datasets' partitioners with this name, here or there, its arguments)."""
    maker = getattr(need("flwr_datasets.partitioner", f"partitioner={name}"), PARTITIONERS.get(name, name))
    return maker, [*inspect.signature(maker.__init__).parameters][1:]
