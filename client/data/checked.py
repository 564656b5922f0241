"""What a data set must be before a run begins, and what a client's examples must be when they are read.

Which of the two a check is decides whether it is private (docs/data.md). A run may be refused only for what is public:
the test set, and of the training data what the format says for all users alike: names of users and fields, types, and
shapes that a file stores as such. What one user put in (labels, inputs, how long they are) is looked at when that client
is read, where an error becomes a zero update (`client.app`): one user's values must not decide whether a run happens
(docs/privacy.md, section 5).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.data.arrays import is_array, pieces
from client.data.dataset import IGNORED_TARGET, NEXT_TOKEN, Dataset, Examples, LazyClients, identify_each
from client.data.fingerprint import Fingerprint
from client.imports import own_code
from fedmf.checks import check_at_least
from fedmf.errors import DataError

UNREADABLE = -1
"""The label, or token, of an example that is there but cannot be read: its client cannot be trained."""

MOST_CLASSES = 10**6
"""How many classes the largest test label may stand for by itself: more is a mistake, or must be said."""


def count_classes(
    path: object,
    who: str,
    shown: Sequence[int],
    classes: int | None,
    declared: int | None = None,
    *,
    is_needed: bool = True,
) -> int:
    """Return the number of classes: the setting `classes`, or what a schema has `declared`, or one more than the largest label.

    `shown` are the labels of the test examples, which are public; `who` has such a label. Raises `DataError` for one that
    is no class. Where no test set `is_needed` they are not looked at if the number is known, and otherwise those that
    stand for no class are left out.
    """
    if classes is not None:
        check_at_least("classes", classes, 1)
    known = classes or declared
    if not is_needed:
        if known:
            return known
        shown = [label for label in shown if 0 <= label < MOST_CLASSES]
    if not len(shown):
        raise DataError(f"No test example in {path} says how many classes there are; set classes.")
    smallest, largest = min(shown), max(shown)
    if smallest < 0:
        raise DataError(f"{who} has the label {smallest}; labels count from 0.")
    if known is None and largest >= MOST_CLASSES:
        raise DataError(
            f"{who} has the label {largest}, so that there would be {largest + 1} classes; labels count from 0. Set "
            "classes if there are as many."
        )
    if known is not None and largest >= known:
        raise DataError(
            f"{who} has the label {largest} but there are {known} classes, as the {'setting' if classes else 'schema'} "
            f"says; set classes to at least {largest + 1}."
        )
    return known or largest + 1


_UNREADABLE = f" ({UNREADABLE} stands for what could not be read)"


@dataclass(frozen=True)
class Public:
    """What is public of every example: shapes, types, and the numbers that a target or token may be."""

    shape: tuple[int, ...]
    x_type: np.dtype
    target_shape: tuple[int, ...]
    y_type: np.dtype
    classes: int
    task: str

    def check(self, examples: Examples, who: str) -> None:
        """Raise `DataError` about `who` for examples that are not what is promised; reads every value once."""
        check_examples(examples, who)
        x, y = examples.x, examples.y
        if len(examples) == 0:
            raise DataError(f"{who} holds no example; it must hold at least one.")
        if x.shape[1:] != self.shape or x.dtype != self.x_type:
            raise DataError(
                f"{who} holds inputs {x.dtype} {list(x.shape[1:])}; an input of this data set is "
                f"{self.x_type} {list(self.shape)}."
            )
        if y.shape[1:] != self.target_shape or y.dtype != self.y_type:
            raise DataError(
                f"{who} holds targets {y.dtype} {list(y.shape[1:])}; a target of this data set is "
                f"{self.y_type} {list(self.target_shape)}."
            )
        for name, array in (("inputs", x), ("targets", y)):
            if array.dtype.kind == "f" and not all(np.isfinite(part).all() for part in pieces(array)):
                raise DataError(f"{who} holds {name} that are not finite; all must be finite numbers.")
        if self.task == NEXT_TOKEN:
            for part in pieces(x):
                _check_range(part, self.classes, who, "the token")
        if y.dtype.kind != "f":
            for part in pieces(y):
                counted = part[part != IGNORED_TARGET] if self.task == NEXT_TOKEN or y.ndim > 1 else part
                _check_range(counted, self.classes, who, "the label")


def _check_range(values: np.ndarray, classes: int, who: str, name: str) -> None:
    """Raise `DataError` unless all integers in `values` [...] are at least 0 and below `classes`."""
    if values.size == 0:
        return
    wrong = int(values.min()) if values.min() < 0 else int(values.max())
    if not 0 <= wrong < classes:
        raise DataError(
            f"{who} holds {name} {wrong}{_UNREADABLE * (wrong == UNREADABLE)}; with classes={classes} it must be "
            f"0 to {classes - 1}."
        )


def check_examples(examples: object, who: str) -> None:
    """Raise `DataError` unless `examples` are `Examples` of arrays of numbers."""
    if not isinstance(examples, Examples):
        raise DataError(f"{who} is {type(examples).__name__}; it must be client.data.Examples.")
    for name, array in (("x", examples.x), ("y", examples.y)):
        if not is_array(array):
            raise DataError(f"{name} of {who} is {type(array).__name__}; it must be a numpy array.")
    if examples.x.dtype.kind not in "fiub" or examples.y.dtype.kind not in "fiu":
        raise DataError(
            f"{who} holds inputs {examples.x.dtype} and targets {examples.y.dtype}; they must be numbers, such "
            "as float32 and int64."
        )


@dataclass(frozen=True)
class CheckedClients(LazyClients):
    """The clients `held`, each checked when it is read.

    Raises `DataError` for examples that are not what is `public`, and, of clients that are a user's `own_code`, for
    whatever that code raises.
    """

    held: Sequence[Examples]
    public: Public
    dataset: str
    is_own: bool

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.held)

    def client(self, i: int) -> Examples:
        """Return one client's examples, after a look at all their values."""
        who = f"client {i} of dataset {self.dataset}"
        if self.is_own:
            with own_code(who):
                examples = self.held[i]
        else:
            examples = self.held[i]
        self.public.check(examples, who)
        return examples

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write who the clients are, as they say it themselves."""
        if not isinstance(self.held, LazyClients):
            identify_each(self.held, fingerprint, numbers)
        elif self.is_own:
            with own_code(f"identify of the clients of dataset {self.dataset}"):
                self.held.identify(fingerprint, numbers)
        else:
            self.held.identify(fingerprint, numbers)


def checked(dataset: Dataset, *, path: object = None, is_own: bool = False) -> Dataset:
    """Return `dataset` with its clients checked when they are read, after a check of all that is public.

    `path`: where it was read, for the messages; `is_own`: its clients are code of the user's own. Raises `DataError` for a test set, shape or number of classes that
    cannot be right.
    """
    who = f"the test set of dataset {dataset.name}{'' if path is None else f' at {path}'}"
    check_examples(dataset.test, who)
    _check_numbers(dataset)
    shape, x, y = tuple(dataset.input_shape), dataset.test.x, dataset.test.y
    public = Public(shape, x.dtype, y.shape[1:], y.dtype, dataset.classes, dataset.task)
    public.check(dataset.test, who)
    if dataset.task == NEXT_TOKEN and (x.dtype.kind not in "iu" or y.shape != x.shape):
        raise DataError(
            f"{who} holds tokens {x.dtype} {list(x.shape)} and targets {list(y.shape)}; tokens are integers, each "
            "with a target."
        )
    held = dataset.clients
    return replace(
        dataset,
        input_shape=shape,
        clients=CheckedClients(
            held.held if isinstance(held, CheckedClients) else held, public, dataset.name, is_own
        ),
    )


def check_counted(dataset: Dataset) -> None:
    """Raise `DataError` where the accuracy would count no target of the test set: padding, or unknown words, alone."""
    y, left_out = dataset.test.y, (IGNORED_TARGET, *dataset.uncounted)
    if y.dtype.kind != "f" and all(np.isin(part, left_out).all() for part in pieces(y)):
        raise DataError(
            f"The test set of dataset {dataset.name} has no target that the accuracy counts: all are padding, unknown or "
            "ends of texts. Give test texts that are not empty, of words that the vocabulary knows."
        )


def _check_numbers(dataset: Dataset) -> None:
    """Raise `DataError` unless input_shape and classes of a data set are whole numbers above 0."""
    shape = dataset.input_shape
    if not isinstance(shape, tuple | list) or not all(_is_count(size) for size in shape):
        raise DataError(
            f"input_shape of dataset {dataset.name} is {shape!r}; it must be a tuple of whole numbers of at least 1."
        )
    if not _is_count(dataset.classes):
        raise DataError(
            f"classes of dataset {dataset.name} is {dataset.classes!r}; it must be a whole number of at least 1."
        )


def _is_count(value: object) -> bool:
    """Say whether `value` is a whole number of at least 1."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)
