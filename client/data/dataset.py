"""What a federated dataset is: many small clients, one public test set, and what is public of all examples.

Examples are arrays, or `Rows`, which are made when they are asked for.

A run may be refused only for what is public: the test set, and of the training data what the format says for all users
alike (names of users and fields, types, shapes that a file stores as such). The values of one user are checked when the
client is read, where an error becomes a zero update (`client.app`): one user's values must not decide whether a run
happens (docs/privacy.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from fedmf.checks import check_at_least, check_choice
from fedmf.errors import DataError, FedmfError, SettingError

CLASSIFICATION = "classification"
NEXT_TOKEN = "next_token"
REGRESSION = "regression"
MULTILABEL = "multilabel"
TASKS = (CLASSIFICATION, NEXT_TOKEN, REGRESSION, MULTILABEL)
# Tasks whose targets are a row of numbers for each example, and a model's outputs another: amounts, or 0 and 1 for each label.
OF_NUMBERS = (REGRESSION, MULTILABEL)

# A target that neither the loss nor the accuracy counts (padding); torch's own default `ignore_index`.
IGNORED_TARGET = -100
# The label, or token, of an example that is there but cannot be read: its client cannot be trained.
UNREADABLE = -1
# How many classes a largest label may stand for by itself: more is a mistake, or must be said.
MOST_CLASSES = 10**6
# Bytes of converted inputs, or targets, up to which they are made once and held; more are made batch by batch.
HELD = 1 << 26
_AT_ONCE = 1 << 24  # bytes that are looked at together


class Rows(ABC):
    """An array [n, ...] as far as clients and test sets need one: `rows[numbers]` and `rows[start:stop]` are arrays.

    A subclass has `shape`. A row that cannot be made raises `DataError`, which concerns its client alone.
    """

    dtype = np.dtype(object)  # not comparable as stored: clients are identified by what is made of them
    shape: tuple[int, ...]

    @abstractmethod
    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows with these numbers, as an array [len(rows), ...]."""

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        return self.take(np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)


@dataclass(frozen=True, eq=False)
class Converted(Rows):
    """`convert(stored[rows])` of this shape and type; `stored` may be mapped, or make its rows itself."""

    stored: Any
    rows: np.ndarray
    convert: Callable[[np.ndarray], np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self.convert(self.stored[self.rows[rows]])


def converted(stored: Any, rows: np.ndarray, convert: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return `convert(stored[rows])`: in memory where that is small, else as `Converted`, which serves as an array."""
    first = convert(stored[rows[:1]])
    if len(rows) * first.nbytes <= HELD:
        return convert(stored[rows])
    made = Converted(stored, rows, convert, (len(rows), *first.shape[1:]), first.dtype)
    return cast(np.ndarray, made)


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield all rows of an array [n, ...], some at a time, so that no copy of all is made."""
    at_once = max(1, _AT_ONCE // max(1, array[:1].nbytes))
    for start in range(0, len(array), at_once):
        yield array[start : start + at_once]


@dataclass(frozen=True)
class Examples:
    """The examples of one client, or of the test set.

    `x` is float32 [n, *input_shape] and `y` int64 [n] for classification, float32 [n, k] for regression and multilabel; both
    are int64 [n, length] for text, where `y` is `x` moved on by one token and `IGNORED_TARGET` where `x` is padding. Of a big
    test set they may be `Converted`, whose slices and rows are arrays made when they are asked for.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        """Raise `DataError` when inputs and targets differ in number."""
        if len(self.x) != len(self.y):
            raise DataError(
                f"There are {len(self.x)} inputs but {len(self.y)} targets; there must be as many."
            )

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Public:
    """What is public of every example: shapes, types, and the numbers that a target or token may be.

    The process that has the public test set infers it once (`Dataset.public`); a process that only runs clients, a worker
    or a node, is given it, and a row that does not fit is its user's mistake. `classes` is the number of classes, the size
    of the vocabulary, or k, the numbers of a target of regression and multilabel; `labels` are their names where the data name them, class 0 first. `dtype` and `target_dtype` are
    numpy's names of the types of inputs and targets.
    """

    shape: tuple[int, ...]
    classes: int
    task: str = CLASSIFICATION
    dtype: str = "float32"
    target_shape: tuple[int, ...] = ()
    target_dtype: str = "int64"
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `DataError` for what no dataset can be."""
        if not isinstance(self.shape, tuple):
            raise DataError(f"shape is {self.shape!r}; it must be a list of whole numbers of at least 1.")
        for name, value in (*(("shape", size) for size in self.shape), ("classes", self.classes)):
            check_at_least(name, value, 1)
        check_choice("task", self.task, TASKS)
        is_text = np.issubdtype(self.dtype, np.integer) and self.target_shape == self.shape
        if self.task == NEXT_TOKEN and not is_text:
            raise DataError(
                f"The task is {NEXT_TOKEN}, but inputs are {self.dtype} {list(self.shape)} and targets "
                f"{list(self.target_shape)}; tokens are integers, each with a target."
            )
        if self.task in OF_NUMBERS and (self.target_dtype, *self.target_shape) != ("float32", self.classes):
            raise DataError(
                f"The task is {self.task}, but targets are {self.target_dtype} {list(self.target_shape)}; they must be "
                f"float32 [{self.classes}], as many numbers as classes says."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Public":
        """Return what a setting such as {shape: [8, 8], classes: 10} says.

        >>> Public.of({"shape": [20], "classes": 104, "task": "next_token"}).dtype
        'int64'
        """
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
        }
        if values.get("task") == NEXT_TOKEN:
            values = {"dtype": "int64", "target_shape": values.get("shape"), **values}
        if values.get("task") in OF_NUMBERS:
            values = {"target_dtype": "float32", "target_shape": (values.get("classes"),), **values}
        try:
            return cls(**values)
        except (FedmfError, TypeError) as error:
            raise SettingError(
                f"public is {dict(given)}; it must be a mapping of shape, classes and, where they differ from the defaults, "
                f"{', '.join([*cls.__dataclass_fields__][2:])}: {str(error).removesuffix('.')}."
            ) from error

    def setting(self) -> dict[str, Any]:
        """Return what `of` makes this of.

        >>> Public((8, 8), 10).setting()
        {'shape': [8, 8], 'classes': 10}
        """
        of_task = Public.of({"shape": self.shape, "classes": self.classes, "task": self.task})
        usual = {**asdict(of_task), "shape": None, "classes": None, "task": CLASSIFICATION}
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value != usual[key]
        }

    def none(self) -> Examples:
        """Return no example: the test set of a process that only runs clients."""
        return Examples(
            np.zeros((0, *self.shape), self.dtype), np.zeros((0, *self.target_shape), self.target_dtype)
        )

    def check(self, examples: Examples, who: str) -> None:
        """Raise `DataError` about `who` for examples that are not what is promised; reads every value once."""
        check_examples(examples, who)
        if len(examples.x) == 0:
            raise DataError(f"{who} holds no example; it must hold at least one.")
        parts = (
            ("input", "token", examples.x, self.shape, self.dtype),
            ("target", "label", examples.y, self.target_shape, self.target_dtype),
        )
        for name, number, array, shape, dtype in parts:
            if array.shape[1:] != shape or array.dtype != np.dtype(dtype):
                raise DataError(
                    f"{who} holds {name}s {array.dtype} {list(array.shape[1:])}; an {name} of this dataset is "
                    f"{dtype} {list(shape)}."
                )
            is_number = name == "target" or self.task == NEXT_TOKEN
            for part in pieces(array):
                if part.dtype.kind == "f" and not np.isfinite(part).all():
                    raise DataError(f"{who} holds {name}s that are not finite; all must be finite numbers.")
                if name == "target" and self.task == MULTILABEL and not np.isin(part, (0, 1)).all():
                    raise DataError(f"{who} holds labels other than 0 and 1; each must be one of them.")
                if part.dtype.kind != "f" and is_number:
                    may_be_ignored = name == "target" and (self.task == NEXT_TOKEN or part.ndim > 1)
                    values = part[part != IGNORED_TARGET] if may_be_ignored else part
                    if values.size and not 0 <= values.min() <= values.max() < self.classes:
                        raise DataError(f"{who} holds {self._wrong(number, values)}.")

    def _wrong(self, number: str, values: np.ndarray) -> str:
        """Return what is wrong with `values`, which are labels or tokens ("label" or "token" is their `number`)."""
        least, largest = int(values.min()), int(values.max())
        if largest < self.classes and least == UNREADABLE:
            return f"a {number} that could not be read, or is none of the {self.classes}"
        remedy = ""
        if number == "label" and self.task == CLASSIFICATION and self.classes <= largest < MOST_CLASSES:
            remedy = f": set dataset.classes={largest + 1} if there are as many"
        wrong = largest if largest >= self.classes else least
        return f"the {number} {wrong}; with classes={self.classes} it must be 0 to {self.classes - 1}{remedy}"


def check_examples(examples: object, who: str) -> None:
    """Raise `DataError` unless `examples` are `Examples` of arrays of numbers."""
    if not isinstance(examples, Examples):
        raise DataError(f"{who} is {type(examples).__name__}; it must be client.data.Examples.")
    for name, array in (("x", examples.x), ("y", examples.y)):
        if not isinstance(array, np.ndarray | Converted):
            raise DataError(f"{name} of {who} is {type(array).__name__}; it must be a numpy array.")
    if examples.x.dtype.kind not in "fiub" or examples.y.dtype.kind not in "fiu":
        raise DataError(
            f"{who} holds inputs {examples.x.dtype} and targets {examples.y.dtype}; they must be numbers, such "
            "as float32 and int64."
        )


@dataclass(frozen=True)
class Dataset:
    """A federated dataset. Everything but `clients` is public.

    `clients` has one entry per unit of privacy, each with at least one training example. `test` has no example in a process
    that only runs clients. `classes` is that of `Public`. `unit` describes one client;
    `uncovered` has a sentence for everything that the loader learnt from the training users outside the private
    mechanism. `uncounted` are targets left out of the accuracy though the loss counts them (out-of-vocabulary
    and end of sentence, as in the literature). `person` is whose examples one client has ("writer"), None where
    they are no person's: only then can clients not be cut. `notes` are sentences about public data for the user who starts a
    run; no statement repeats them. `warnings` are those about what is probably not as it was meant, which a run's page
    repeats. `labels` are the names of the classes, `columns` those of the numbers of an input, where the data name them.
    """

    name: str
    clients: Sequence[Examples]
    test: Examples
    input_shape: tuple[int, ...]
    classes: int
    task: str
    licence: str
    source: str
    unit: str
    uncovered: tuple[str, ...] = ()
    uncounted: tuple[int, ...] = ()
    person: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `DataError` for a dataset that cannot train anything."""
        if len(self.clients) == 0:
            raise DataError(
                f"Dataset {self.name} has no client with a training example; it must have at least one."
            )

    @cached_property
    def public(self) -> Public:
        """What is public of every example, as the test set shows it. Raises `DataError` for what cannot be right."""
        check_examples(self.test, f"the test set of dataset {self.name}")
        x, y = self.test.x, self.test.y
        shape = tuple(self.input_shape) if isinstance(self.input_shape, list) else self.input_shape
        try:
            return Public(
                shape, self.classes, self.task, x.dtype.name, y.shape[1:], y.dtype.name, self.labels
            )
        except FedmfError as error:
            raise DataError(f"Dataset {self.name} cannot be right. {error}") from error


def as_float32(x: np.ndarray) -> np.ndarray:
    """Return `x` as float32; uint8 is divided by the public constant 255.

    >>> as_float32(np.array([0, 51, 255], dtype=np.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore"):  # infinity, which the check of the examples refuses
        return x.astype(np.float32)


def as_targets(y: np.ndarray) -> np.ndarray:
    """Return amounts as float32, and numbers of classes or tokens as int64."""
    with np.errstate(over="ignore"):  # as above
        return y.astype(np.float32 if y.dtype.kind == "f" else np.int64)


def describe_unit(
    person: str, examples_per_client: int | None = None, max_examples_per_user: int | None = None
) -> str:
    """Return what one client is, in words, for the privacy statement.

    A user of whom only the first examples are used stays the unit; one who is cut does not.

    >>> describe_unit("writer")
    'one writer = one client'
    >>> describe_unit("writer", max_examples_per_user=256)
    "one writer = one client, with at most the writer's first 256 examples"
    """
    most = max_examples_per_user
    if examples_per_client is None:
        whole = f"one {person} = one client"
        return whole if most is None else f"{whole}, with at most the {person}'s first {most} examples"
    pieces = "" if most is None else f" (at most {-(-most // examples_per_client)} of one {person})"
    kept = "" if most is None else f", of whose examples at most the first {most} are used,"
    return (
        f"one {person}{kept} cut into clients of at most {examples_per_client} examples{pieces}: "
        f"the unit of privacy is the cut client, not the {person}"
    )


def shared_users(train: np.ndarray, test: np.ndarray) -> tuple[str, ...]:
    """Return what is not covered where users of the test split train too, as a sentence; none where none does.

    `train` and `test` name the users of the two splits, each any number of times.

    >>> shared_users(np.array(["a", "b"]), np.array(["b", "c", "b"]))[0].split(":")[0]
    '1 of 2 users of the test split also train'
    """
    tested = np.unique(test)
    both = int(np.isin(tested, train).sum())
    if not both:
        return ()
    return (
        f"{both:,} of {len(tested):,} users of the test split also train: "
        "their test examples are treated as public, and only their training examples are covered.",
    )
