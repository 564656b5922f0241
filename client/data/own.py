"""Your own data: whose the rows are, what the settings of texts and tables are, and arrays with users or without.

Arrays without users are dealt out to made-up clients by a partitioner of flwr-datasets. Every draw comes from one public
seed. Partitioners without draws of their own are given the rows in an order drawn from it, since the order of a file may
follow the labels.
"""

import hashlib
import inspect
import logging
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from client.data.clients import ArrayClients, by_user, stored_examples
from client.data.dataset import (
    CLASSIFICATION,
    Dataset,
    Public,
    as_float32,
    describe_unit,
    shared_users,
)
from client.data.reading import reading
from client.data.rows import Rows
from client.imports import need
from client.settings import PARTITIONERS
from fedmf.checks import check_at_least, check_choice, check_positive
from fedmf.errors import DataError, SettingError

log = logging.getLogger(__name__)

LICENCE = "the file's own"
SPLIT_SEED = 0
"""Public and fixed: it chooses the test examples of files without a split, whatever a run's seed is."""
MOST_CLASSES = 10**6
"""How many classes the largest test label may stand for by itself: more is a mistake, or must be said."""
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
_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64 (Steele, Lea and Flood 2014)


def fifth_of_each(
    users: np.ndarray, *, seed: int, names: np.ndarray | Sequence[str | int] | None = None
) -> np.ndarray:
    """Return a boolean mask [N] that chooses floor(n/5) of the n rows of each user, by a public seed.

    Which rows of a user are chosen follows from the seed, the user's name and number of rows, and from nothing of other
    users: what a client trains on must be a function of its own data. `users` [N] are names, or, where `names` are given,
    places among these.

    >>> mask = fifth_of_each(np.repeat([4, 9], [10, 4]), seed=0)
    >>> int(mask[:10].sum()), int(mask[10:].sum())
    (2, 0)
    """
    held, numbers, counts = np.unique(users, return_inverse=True, return_counts=True)
    found = held.tolist() if names is None else [names[place] for place in held]
    starts = np.cumsum(counts) - counts
    place = np.empty(len(users), dtype=np.int64)  # among the rows of its user
    within = np.arange(len(users)) - np.repeat(starts, counts)
    place[np.argsort(numbers, kind="stable")] = within
    streams = _mixed(_as_numbers(found) + np.uint64(seed))
    draws = _mixed(streams[numbers] + place.astype(np.uint64) * _STEP)
    place[np.lexsort((draws, numbers))] = within  # and now in the order of the draws
    chosen: np.ndarray = place < counts[numbers] // 5
    return chosen


def _as_numbers(names: Sequence[str | int]) -> np.ndarray:
    """Return a number for each user, uint64, by its name alone: a whole number is its own, a text has a digest."""
    if all(isinstance(name, int | np.integer) for name in names):
        return np.asarray(names).astype(np.uint64)
    texts = (str(name).encode("utf-8", "surrogatepass") for name in names)
    digests = b"".join(hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return draws that look uniform, uint64, each a function of one number: the steps of SplitMix64."""
    mixed = numbers + _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


@dataclass(frozen=True)
class Owned:
    """Whose the rows of the file at `path` are, and which are test rows.

    Row i belongs to user `users[i]`, a place among the names in their order; `test` [rows] says which rows are the test set.
    With `public` the test set is not used: no row is public then, and none must be right.
    """

    path: Path
    users: np.ndarray
    test: np.ndarray
    public: Public | None

    @property
    def shown(self) -> np.ndarray:
        """Which rows [rows] must be right: those of the test set, which is public."""
        return self.test if self.public is None else np.zeros_like(self.test)

    def check(self, wrong: np.ndarray, what: str, remedy: str) -> None:
        """Raise `DataError` where a row that must be right is `wrong` [rows]: `what`, with {} for its row."""
        odd = self.shown & wrong
        if odd.any():
            raise DataError(f"{what.format(f'row {int(np.argmax(odd)) + 1}, a test row')}; {remedy}.")

    def dataset(
        self,
        name: str,
        x: np.ndarray | Rows,
        y: np.ndarray,
        classes: int,
        *,
        rows: np.ndarray | None = None,
        convert: Callable[[np.ndarray], np.ndarray] = as_float32,
        task: str = CLASSIFICATION,
        uncovered: tuple[str, ...] = (),
        **more: Any,
    ) -> Dataset:
        """Return the data set `name` of inputs `x` [N, ...] and targets `y` [N, ...]; `rows` [N]: the row each is of."""
        users, test = self.users, self.test
        shape, array = tuple(x.shape[1:]), cast(np.ndarray, x)  # as far as clients need one
        of_x, is_test = (users, test) if rows is None else (users[rows], test[rows])
        if self.public is None:
            examples = stored_examples(array, y, np.flatnonzero(is_test), convert)
        elif shape != self.public.shape:
            raise DataError(
                f"{self.path} holds inputs {list(shape)}; those of this data set are {list(self.public.shape)}."
            )
        else:
            examples = self.public.none()
        return Dataset(
            name=name,
            clients=by_user(array, y, of_x, np.flatnonzero(~is_test), convert),
            test=examples,
            input_shape=shape,
            classes=classes,
            task=task,
            licence=LICENCE,
            source=self.path.name,
            unit=describe_unit("user"),
            uncovered=(*uncovered, *shared_users(users[~test], users[test])),
            person="user",
            **more,
        )


def owned(
    path: Path,
    users: np.ndarray,
    names: Sequence[str | int],
    said: np.ndarray | None,
    mark: str,
    public: Public | None,
) -> Owned:
    """Return whose the rows are; the test rows are those that the file at `path` `said` [rows], else a fifth of each user's.

    Raises `DataError` unless some are and others are not: without `public` there must be both. `mark` says how the file
    marks a row, with {} for 0 or 1.
    """
    test = fifth_of_each(users, seed=SPLIT_SEED, names=names) if said is None else said
    missing = "training" if test.all() else "test" if public is None and not test.any() else ""
    if missing and said is None:
        raise DataError(
            "A fifth of each user's examples is the test set where the data have no split, but no user has five: the "
            f"largest has {np.bincount(users).max()}. Mark test examples with split = 1 and the others with 0."
        )
    if missing:
        raise DataError(
            f"{path} has no {missing} example; mark some with {mark.format(int(missing == 'test'))}, or leave the split "
            "out: a fifth of each user's examples is the test set then."
        )
    return Owned(path, users, test, public)


@dataclass(frozen=True)
class OwnSettings:
    """The settings of texts and tables of your own: the one place that has their names, types and defaults.

    `user`, `label` and `split` name columns (None: user, label, and split if there is one). The input is one of
    `features`, columns of numbers (None: all other columns) or one of lists of numbers, `text`, a column of texts that is
    the target too, and `image`, a column of pictures. `labels` are the names of the classes, class 0 first. `file` is the
    column of a `table` of pictures that names files (None: file_name). `vocabulary`, `vocabulary_size`, `level` and
    `length` are those of `client.data.text.from_texts`.
    """

    user: str | None = None
    label: str | None = None
    features: Sequence[str] | None = None
    text: str | None = None
    image: str | None = None
    split: str | None = None
    classes: int | None = None
    labels: Sequence[str] | None = None
    delimiter: str = ","
    table: str | None = None
    file: str | None = None
    vocabulary: str | None = None
    vocabulary_size: int | None = None
    level: str | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` for what no column can be, and for more than one kind of input."""
        for key in ("features", "labels"):
            given = getattr(self, key)
            is_list = isinstance(given, Sequence) and not isinstance(given, str)
            if given is not None and not (is_list and all(isinstance(name, str) for name in given)):
                raise SettingError(f"{key} is {given!r}; it must be a list of names, such as ['one', 'two'].")
        if len(self.delimiter) != 1:
            raise SettingError(f"delimiter is {self.delimiter!r}; it must be one character.")
        inputs = [name for name in ("features", "text", "image") if getattr(self, name) is not None]
        if len(inputs) > 1:
            raise SettingError(f"{' and '.join(inputs)} are given; an input is one of them.")
        for role in ("user", "label", "split"):
            if (name := getattr(self, role) or role) in (self.features or ()):
                raise SettingError(
                    f"features holds {name!r}, which is the column of {role}; a column is either an input or that."
                )

    def refuse(self, why: str, *names: str) -> None:
        """Raise `SettingError` for one of the settings `names` that is given and would be ignored."""
        for name in names:
            if (value := getattr(self, name)) is not None:
                raise SettingError(
                    f"{name} is {value!r}, but {why}, so that it would be ignored; leave it out."
                )


TEXT_SETTINGS = ("vocabulary", "vocabulary_size", "level", "length")


def count_classes(who: str, shown: Sequence[int], classes: int | None) -> int:
    """Return the number of classes: the setting `classes`, or one more than the largest label.

    `shown` are the labels of the test examples, which are public; `who` has such a label. Raises `DataError` for one that
    is no class.
    """
    if classes is not None:
        check_at_least("classes", classes, 1)
    smallest, largest = min(shown), max(shown)
    if smallest < 0:
        raise DataError(f"{who} has the label {smallest}; labels count from 0.")
    if classes is None and largest >= MOST_CLASSES:
        raise DataError(
            f"{who} has the label {largest}, so that there would be {largest + 1} classes; labels count from 0. Set "
            "classes if there are as many."
        )
    if classes is not None and largest >= classes:
        raise DataError(
            f"{who} has the label {largest} but there are {classes} classes, as the setting says; set classes to at least "
            f"{largest + 1}."
        )
    return classes or largest + 1


def load(path: str | Path, *, classes: int | None = None, public: Public | None = None) -> Dataset:
    """Return the classification data set stored at `path`.

    The file holds x [N, ...] (uint8, divided by the public constant 255, or floats taken as they are), y [N]
    (integer labels from 0), user [N] (integers or strings) and optionally split [N] (0 train, 1 test; users
    may overlap or not). Without `split` a fifth of each user's examples, chosen by a public seed, is the test
    set. A folder of .npy files of the same names is memory-mapped. `classes` is public: without it the test
    labels, which are treated as public, say how many there are. With `public` only clients are made.

    Raises `DataError` for a missing or malformed file. The values of training examples are not looked at before their
    client is read.
    """
    path = Path(path)
    arrays = read_arrays(path, REQUIRED)
    names, users = np.unique(arrays["user"], return_inverse=True)
    said = arrays["split"] == 1 if "split" in arrays else None
    rows = owned(path, users, names.tolist(), said, "split = {}", public)
    y = arrays["y"]
    shown = np.unique(y[rows.test]).tolist()
    known = public.classes if public else count_classes(f"A test example in {path}", shown, classes)
    return rows.dataset("by_user_npz", arrays["x"], y, known)


def read_arrays(path: Path, required: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Return the arrays stored in an .npz file, or, memory-mapped, in a folder of .npy files.

    Raises `DataError` unless the `required` ones are there, with usable shapes and types.
    """
    with reading(path, "arrays of numbers or strings"):
        if path.is_dir():
            files = sorted(path.glob("*.npy"))
            arrays = {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}
        elif not path.is_file():
            raise DataError(f"The data file {path} does not exist; path must name an .npz file.")
        elif not zipfile.is_zipfile(path):
            raise DataError(f"{path} is no .npz file; it must be one, with {', '.join(REQUIRED)}.")
        else:
            with path.open("rb") as file, np.load(file) as archive:
                arrays = {name: archive[name] for name in archive.files}
    if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise DataError(f"{path} holds {foreign[0]}, which is no array; an .npz file holds arrays alone.")
    if absent := [name for name in required if name not in arrays]:
        held = ", ".join(arrays) or "nothing"
        raise DataError(
            f"{path} lacks {', '.join(absent)}; it holds {held} and must hold {', '.join(required)} (split "
            "may be left out)."
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


def load_partitioned(
    path: str | Path,
    *,
    clients: int = 100,
    partitioner: str = "iid",
    partitioner_settings: Mapping[str, Any] | None = None,
    alpha: float = 0.5,
    shards: int = 2,
    classes: int | None = None,
    partition_seed: int = 0,
) -> Dataset:
    """Return the arrays at `path` (x, y as for by_user_npz) dealt out to `clients` made-up clients.

    `partitioner` is iid; dirichlet, where each class is spread over the clients by Dirichlet(`alpha`) shares
    (Hsu et al. 2019); shards, where each client gets `shards` pieces of the examples sorted by label
    (McMahan et al. 2017); pathological, where each client gets examples of two classes; or another one of flwr-datasets,
    by its name there. `partitioner_settings` are arguments of its class. Clients that get
    nothing are left out. The test set is split = 1, or a fifth of all examples drawn by a public seed. Raises `DataError`
    for a missing or malformed file, `SettingError` for a partitioner that cannot deal them.
    """
    path = Path(path)
    check_at_least("clients", clients, 1)
    check_at_least("shards", shards, 1)
    check_positive("alpha", alpha)
    check_choice("partitioner", partitioner, (*PARTITIONERS, *PARTITIONERS.values()))
    arrays = read_arrays(path, REQUIRED[:2])
    x, y, users = arrays["x"], arrays["y"], arrays.get("user")
    everyone = np.zeros(len(y), int)
    test = arrays["split"] == 1 if "split" in arrays else fifth_of_each(everyone, seed=SPLIT_SEED)
    train_rows, test_rows = np.flatnonzero(~test), np.flatnonzero(test)
    if min(len(train_rows), len(test_rows)) == 0 or clients > len(train_rows):
        raise DataError(
            f"{path} has {len(train_rows)} training and {len(test_rows)} test examples; "
            f"it must have at least one for each of {clients} clients, and one to test on: set clients to fewer, or mark "
            "test examples with split = 1."
        )
    unit, uncovered = f"one made-up client ({partitioner} partition) = one client", tuple[str, ...]()
    kind = PARTITIONERS.get(partitioner, partitioner)
    if kind == OF_USERS and users is not None:
        unit = f"one group of users, each whole in it ({partitioner} partition) = one client"
        uncovered = shared_users(users[train_rows], users[test_rows])
    elif "partition_by" in _takes(kind):
        uncovered = (DEALT_BY_LABEL,)
    usual = {"alpha": alpha, "num_shards_per_partition": shards}
    trained = y[train_rows], None if users is None else users[train_rows]
    parts = deal(partitioner, clients, partitioner_settings or {}, partition_seed, *trained, usual)
    bounds = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return Dataset(
        name="partitioned",
        clients=ArrayClients(x, y, train_rows[np.concatenate(parts)], bounds),
        test=stored_examples(x, y, test_rows),
        input_shape=tuple(x.shape[1:]),
        classes=count_classes(f"A test example in {path}", np.unique(y[test_rows]).tolist(), classes),
        task=CLASSIFICATION,
        licence=LICENCE,
        source=path.name,
        unit=unit,
        uncovered=uncovered,
    )


def _takes(kind: str) -> list[str]:
    """Return the arguments of a class of flwr-datasets' partitioners."""
    maker = getattr(need("flwr_datasets.partitioner", f"partitioner={kind}"), kind)
    return [*inspect.signature(maker.__init__).parameters][1:]


def deal(
    name: str,
    clients: int,
    settings: Mapping[str, Any],
    seed: int,
    labels: np.ndarray,
    users: np.ndarray | None,
    usual: Mapping[str, Any] = {},
) -> list[np.ndarray]:
    """Return the rows of each client that got any from the partitioner `name`, sorted; no row is dealt twice.

    `labels` [rows] and `users` [rows] are what partitioners look at; `settings` are arguments of its class, `usual`
    others that it is given where it takes them, `seed` is public.
    Rows that a partitioner leaves out are counted in a warning. Raises `SettingError` for settings with which the rows
    cannot be dealt.
    """
    kind = PARTITIONERS.get(name, name)
    takes, order = _takes(kind), np.arange(len(labels))
    if kind == OF_USERS and users is None:
        raise SettingError(f"partitioner={name} groups users, but the data have no array user; add it.")
    if ours := next((key for key in settings if key in OURS), None):
        instead = f"set {OURS[ours]} instead" if OURS[ours] else "it is chosen here"
        raise SettingError(f"partitioner_settings holds {ours}; leave it out: {instead}.")
    if "seed" not in takes and kind != OF_USERS:
        order = np.random.default_rng(seed).permutation(len(labels))
    table = {"label": labels[order].astype(np.int64), "row": order}
    if users is not None:
        table["user"] = users[order]
    held = need("datasets", "Partitioning").Dataset.from_dict(table)
    by = "user" if kind == OF_USERS else "label"
    given = {**DEFAULTS, **usual} | {
        "num_partitions": clients,
        "partition_by": by,
        "seed": seed,
        "shuffle": False,
    }
    given = {key: value for key, value in given.items() if key in takes} | dict(settings)
    if "distribution_array" in given:
        given["distribution_array"] = np.array(given["distribution_array"])
    try:
        with warnings.catch_warnings():
            # datasets 4.8 sorts with an option that pyarrow 25 deprecates; rows left out are counted below
            warnings.simplefilter("ignore")
            maker = getattr(need("flwr_datasets.partitioner", f"partitioner={name}"), kind)(**given)
            maker.dataset = held
            parts = [maker.load_partition(number)["row"] for number in range(maker.num_partitions)]
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AssertionError) as error:
        said = " ".join(str(error).split())
        if isinstance(error, ZeroDivisionError):
            said = "a part would have no example; give numbers of at least 1, and fewer or larger parts."
        shown = (
            ", ".join(f"{key}={value}" for key, value in given.items() if key not in OURS) or "no settings"
        )
        raise SettingError(
            f"partitioner={name} cannot deal {len(held)} examples to {clients} clients with {shown}: {said}"
        ) from error
    if len(parts) != clients:
        raise SettingError(
            f"partitioner={name} deals to {len(parts)} clients, but clients is {clients}; set clients to "
            f"{len(parts)}, or change partitioner_settings."
        )
    parts = [np.sort(np.array(part, dtype=np.int64)) for part in parts if len(part)]
    dealt = np.concatenate(parts) if parts else order[:0]
    if len(np.unique(dealt)) < len(dealt) or not len(dealt):
        raise SettingError(
            f"partitioner={name} deals {len(dealt)} rows, some of them twice or none at all; every row must go to "
            "at most one client: change partitioner_settings."
        )
    if left := len(labels) - len(dealt):
        log.warning("partitioner %s leaves %d of %d training examples to no client", name, left, len(labels))
    return parts
