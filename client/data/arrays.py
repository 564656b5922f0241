"""Arrays of your own, with users or without, in an .npz file, a folder of .npy files or MNIST's four idx files.

Examples without users, of whatever files, are dealt out to made-up clients by a partitioner of flwr-datasets. Every draw comes
from one public seed. Partitioners without draws of their own are given the rows in an order drawn from it, since the order of a
file may follow the labels.
"""

import gzip
import inspect
import logging
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client.data.clients import ArrayClients, stored_examples
from client.data.dataset import Dataset, Public
from client.data.own import Owned, OwnSettings, count_classes, owned
from client.data.reading import reading
from client.imports import need
from client.settings import PARTITIONERS
from fedmf.checks import check_at_least, check_positive
from fedmf.errors import DataError, SettingError

log = logging.getLogger(__name__)

REQUIRED = ("x", "y", "user")
KINDS = {
    "x": ("f", "uint8 (0 to 255) or floats"),
    "y": ("iu", "integer labels from 0"),
    "user": ("iuUS", "integers or strings"),
    "split": ("iufb", "0 (train) or 1 (test)"),
}
"""numpy's letters for the types that each array may have, besides uint8 for x, and what these are."""
DEALT_BY_LABEL = (
    "Made-up clients: which rows a client has follows from the labels of all training rows, which is not covered. "
    "Use such clients to study a method; real users belong in by_user_npz."
)
DEFAULTS = {"min_partition_size": 0, "self_balancing": False, "num_classes_per_partition": 2}
"""Settings of partitioners that have no key of their own."""
OURS = {"num_partitions": "clients", "seed": "partition_seed", "shuffle": None, "partition_by": None}
"""Arguments of flwr-datasets that are given here, with the setting that says them."""
OF_USERS = "GroupedNaturalIdPartitioner"
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
"""numpy's types for the third byte of an idx file (LeCun's MNIST page)."""
_IDX = re.compile(r"(train|t10k|test)-(images|labels)[-.]idx\d-ubyte(\.gz)?$")


def load_arrays(name: str, path: Path, settings: OwnSettings, public: Public | None) -> Dataset:
    """Return the classification data set `name` stored at `path`.

    The file holds x [N, ...] (uint8, divided by the public constant 255, or floats taken as they are), y [N]
    (integer labels from 0), user [N] (integers or strings) and optionally split [N] (0 train, 1 test; users
    may overlap or not). Without `split` a fifth of each user's examples, chosen by a public seed, is the test
    set. A folder of .npy files of the same names is memory-mapped; one of idx files has no users. The number of classes is
    public: where no setting has it the test labels, which are treated as public, say how many there are. With `public` only
    clients are made.

    Raises `DataError` for a missing or malformed file. The values of training examples are not looked at before their
    client is read.
    """
    return _by_user(
        name, path, read_arrays(path, REQUIRED if settings.has_users else REQUIRED[:2]), settings, public
    )


def _by_user(
    name: str,
    path: Path,
    arrays: Mapping[str, np.ndarray],
    settings: OwnSettings,
    public: Public | None = None,
) -> Dataset:
    y = arrays["y"]
    owners = arrays["user"] if settings.has_users else np.zeros(len(y), int)
    names, users = np.unique(owners, return_inverse=True)
    said = arrays["split"] == 1 if "split" in arrays else None
    rows = owned(path, users, names.tolist(), said, "split = {}", public, settings)
    shown = np.unique(y[rows.test]).tolist()
    known = public.classes if public else count_classes(f"A test example in {path}", shown, settings.classes)
    return rows.dataset(name, arrays["x"], y, known)


def from_arrays(
    x: Any, y: Any, user: Any, *, test: tuple[Any, Any] | None = None, classes: int | None = None
) -> Dataset:
    """Return the classification data set of arrays in memory, which may be tensors or columns of a table.

    `x` [N, ...], `y` [N] and `user` [N] are those of `load_arrays`. `test` is (x, y) of the test set, which is public; without it a
    fifth of each user's examples is. Nothing is copied: the arrays must stay as they are. Raises `DataError` as `load_arrays`.

    >>> rng = np.random.default_rng(0)
    >>> data = from_arrays(rng.normal(size=(60, 4)), np.arange(60) % 3, np.arange(60) // 6)
    >>> len(data.clients), len(data.test), data.classes
    (10, 10, 3)
    """
    place = Path("from_arrays")
    arrays = checked({"x": np.asarray(x), "y": np.asarray(y), "user": np.array([*user])}, place, REQUIRED)
    if test is None:
        return _by_user("arrays", place, arrays, OwnSettings(classes=classes))
    shown = checked(dict(zip(REQUIRED, map(np.asarray, test), strict=False)), Path("test"), REQUIRED[:2])
    kinds = [(held["x"].dtype == np.uint8, held["x"].shape[1:]) for held in (arrays, shown)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"x in test is {shown['x'].dtype} {list(kinds[1][1])}, but x is {arrays['x'].dtype} {list(kinds[0][1])}; both must "
            "be of one shape, and both bytes (0 to 255) or both floats."
        )
    users = np.unique(arrays["user"], return_inverse=True)[1]
    known = count_classes("A test example", np.unique(shown["y"]).tolist(), classes)
    rows = Owned(place, users, np.zeros(len(users), bool), None)
    dataset = rows.dataset("arrays", arrays["x"], arrays["y"], known)
    return replace(dataset, test=stored_examples(shown["x"], shown["y"], np.arange(len(shown["y"]))))


def read_arrays(path: Path, required: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the arrays stored in an .npz file, or, memory-mapped, in a folder of .npy files.

    Raises `DataError` unless the `required` ones are there, with usable shapes and types.
    """
    with reading(path, "arrays of numbers or strings"):
        if path.is_dir():
            files = sorted(path.glob("*.npy"))
            arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
            arrays = arrays or read_idx(path)
        elif zipfile.is_zipfile(path):
            with path.open("rb") as file, np.load(file) as archive:
                arrays = {name: array for name, array in archive.items() if isinstance(array, np.ndarray)}
        else:
            problem = "is no .npz file" if path.exists() else "does not exist"
            raise DataError(f"{path} {problem}; path must name an .npz file with {', '.join(REQUIRED)}.")
    return checked(arrays, path, required)


def checked(
    arrays: Mapping[str, np.ndarray], path: Path, required: Sequence[str]
) -> Mapping[str, np.ndarray]:
    """Return the arrays of `path`. Raises `DataError` unless the `required` ones are there, with usable shapes and types."""
    if absent := [name for name in required if name not in arrays]:
        held = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path} lacks {', '.join(absent)}; it holds {held} and must hold {', '.join(required)} (split "
            "may be left out; without users choose dataset=partitioned)."
        )
    count = len(arrays["x"]) if arrays["x"].ndim else 0
    if arrays["x"].ndim < 2 or arrays["x"].size == 0:
        raise DataError(
            f"x in {path} has the shape {arrays['x'].shape}; it must be [N, ...], each size at least 1."
        )
    for name, (kinds, right) in KINDS.items():
        if name not in arrays:
            continue
        array = arrays[name]
        if name != "x" and array.shape != (count,):
            raise DataError(
                f"{name} in {path} has the shape {array.shape}; it must be ({count},), one for each x."
            )
        is_bytes = name == "x" and array.dtype == np.uint8
        if array.dtype.kind not in kinds and not is_bytes:
            raise DataError(f"{name} in {path} is {array.dtype}; it must hold {right}.")
    if not np.isin(arrays.get("split", 0), (0, 1)).all():
        raise DataError(f"split in {path} holds something else; it must hold 0 (train) or 1 (test).")
    return arrays


def read_idx(folder: Path) -> dict[str, np.ndarray]:
    """Return x, y and split of four idx files, as MNIST, Fashion-MNIST and EMNIST are published; nothing where there is none."""
    files = {file: found for file in sorted(folder.iterdir()) if (found := _IDX.search(file.name))}
    held: dict[tuple[str, bool], np.ndarray] = {}
    for file, found in files.items():
        content = gzip.decompress(file.read_bytes()) if found[3] else file.read_bytes()
        shape = np.frombuffer(content, ">i4", content[3], 4)
        array = np.frombuffer(content, IDX_TYPES[content[2]], offset=4 + 4 * len(shape)).reshape(shape)
        held[found[2], found[1] != "train"] = array
    if files and (len(files), len(held)) != (4, 4):
        raise DataError(
            f"{folder} holds {len(files)} idx files; it must hold images and labels of train and of t10k (or test), one each."
        )
    if not held:
        return {}
    x, y = (np.concatenate([held[part, False], held[part, True]]) for part in ("images", "labels"))
    counts = [len(held["labels", is_test]) for is_test in (False, True)]
    return {"x": x, "y": y, "split": np.repeat([0, 1], counts)}


def deal_out(
    whole: Dataset,
    path: Path,
    *,
    clients: int,
    partitioner: str,
    partitioner_settings: Mapping[str, Any] | None,
    alpha: float,
    shards: int,
    partition_seed: int,
) -> Dataset:
    """Return the training examples of `whole`, which was read from `path`, dealt out to `clients` made-up clients.

    `whole` has one client, or with the partitioner grouped one for each user. `partitioner` is iid; dirichlet, where each class is spread over the clients by Dirichlet(`alpha`) shares
    (Hsu et al. 2019); shards, where each client gets `shards` pieces of the examples sorted by label
    (McMahan et al. 2017); pathological, where each client gets examples of two classes; or another one of flwr-datasets,
    by its name there. `partitioner_settings` are arguments of its class. Clients that get
    nothing are left out, and counted in a warning. Raises `DataError` for too few examples, `SettingError` for a partitioner that
    cannot deal them.
    """
    check_at_least("clients", clients, 1)
    check_at_least("shards", shards, 1)
    check_positive("alpha", alpha)
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
                f"partitioner={partitioner} deals by labels, which texts lack; choose iid, say."
            )
        uncovered = (*uncovered, DEALT_BY_LABEL)
    if labels.ndim > 1:
        labels = np.zeros(len(rows), int)
    usual = {"alpha": alpha, "num_shards_per_partition": shards}
    parts = deal(partitioner, clients, partitioner_settings or {}, partition_seed, labels, users, usual)
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    lost = f"The partitioner {partitioner} gave no example to {clients - len(parts)} of {clients} clients: {len(parts)} are left."
    return replace(
        whole,
        name="partitioned",
        clients=replace(held, order=rows[np.concatenate(parts)], bounds=bounds),
        unit=unit,
        uncovered=uncovered,
        person=None,
        warnings=(lost,) * (len(parts) < clients),
    )


def is_of_users(partitioner: str) -> bool:
    """Return whether a partitioner deals users, each whole, and not examples."""
    return PARTITIONERS.get(partitioner, partitioner) == OF_USERS


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
            parts = [dealer.load_partition(number)["row"] for number in range(dealer.num_partitions)]
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
    dealt = np.concatenate([np.array(part, dtype=np.int64) for part in parts])
    if len(np.unique(dealt)) < len(dealt) or not len(dealt):
        raise SettingError(
            f"partitioner={name} deals {len(dealt)} rows, some of them twice or none at all; every row must go to "
            "at most one client: change partitioner_settings."
        )
    if left := len(labels) - len(dealt):
        log.warning("partitioner %s leaves %d of %d training examples to no client", name, left, len(labels))
    return [np.sort(np.array(part, dtype=np.int64)) for part in parts if len(part)]


def _partitioner(name: str) -> tuple[Any, list[str]]:
    """Return (the class of flwr-datasets' partitioners with this name, here or there, its arguments)."""
    kind = PARTITIONERS.get(name, name)
    maker = getattr(need("flwr_datasets.partitioner", f"partitioner={name}"), kind)
    return maker, [*inspect.signature(maker.__init__).parameters][1:]
