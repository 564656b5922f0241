"""What all data of your own have in common: whose the rows are, which are test rows, how many classes, and the settings."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from client.data.clients import by_user, stored_examples
from client.data.dataset import (
    CLASSIFICATION,
    MOST_CLASSES,
    MULTILABEL,
    REGRESSION,
    Dataset,
    Public,
    Rows,
    as_float32,
    describe_unit,
    shared_users,
)
from client.settings import LEVELS, TEST_UNITS
from fedmf.checks import check_choice, check_open_unit
from fedmf.errors import DataError, SettingError

LICENCE = "the file's own"
# Tasks of data with labels; texts without are for next-token prediction.
OWN_TASKS = (CLASSIFICATION, REGRESSION, MULTILABEL)
# Public and fixed: it chooses the test examples of files without a split, whatever a run's seed is.
SPLIT_SEED = 0
# Of the rows of each user, or of the users, that are the test set of data without a split.
SHARE = 0.2
_ROUNDING = 1e-9  # 0.1 times 30 is below 3 in floating point
_STEP = np.uint64(0x9E3779B97F4A7C15)  # of SplitMix64 (Steele, Lea and Flood 2014)


def fifth_of_each(
    users: np.ndarray,
    *,
    seed: int,
    names: np.ndarray | Sequence[str | int] | None = None,
    share: float = SHARE,
) -> np.ndarray:
    """Return a boolean mask [N] that chooses floor(n/5), or floor(n `share`), of the n rows of each user, by a public seed.

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
    return place < np.floor(counts * share + _ROUNDING)[numbers]  # type: ignore[no-any-return]


def share_of_users(users: np.ndarray, *, seed: int, names: Sequence[str | int], share: float) -> np.ndarray:
    """Return a boolean mask [N] of all rows of the users that are drawn, each with probability `share` by a public seed.

    Whether a user is drawn follows from the seed and its name alone. `users` [N] are places among the `names`.

    >>> share_of_users(np.array([0, 0, 1]), seed=0, names=["ann", "bob"], share=0.5).tolist()
    [False, False, True]
    """
    drawn = _mixed(_as_numbers(names) + np.uint64(seed)) < share * 2.0**64
    return drawn[users]  # type: ignore[no-any-return]


def _as_numbers(names: Sequence[str | int]) -> np.ndarray:
    """Return a number for each user, uint64, by its name alone: a whole number itself mod 2^64, of a text a digest."""
    numbers = (
        int(name) % (1 << 64)
        if isinstance(name, int | np.integer)
        else int.from_bytes(
            hashlib.blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
        )
        for name in names
    )
    return np.fromiter(numbers, dtype=np.uint64)


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
    With `public` the test set is not used: no row is public then, and none must be right. Without users (`has_users`) all
    rows are those of place 0.
    """

    path: Path
    users: np.ndarray
    test: np.ndarray
    public: Public | None
    has_users: bool = True

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
        rows: np.ndarray | slice = slice(None),
        convert: Callable[[np.ndarray], np.ndarray] = as_float32,
        task: str = CLASSIFICATION,
        uncovered: tuple[str, ...] = (),
        **more: Any,
    ) -> Dataset:
        """Return the dataset `name` of inputs `x` [N, ...] and targets `y` [N, ...]; `rows` [N]: the row each is of."""
        shape, array = tuple(x.shape[1:]), cast(np.ndarray, x)  # as far as clients need one
        users, is_test = self.users[rows], self.test[rows]
        if self.public is None:
            examples = stored_examples(array, y, np.flatnonzero(is_test), convert)
        elif shape != self.public.shape:
            raise DataError(
                f"{self.path} holds inputs {list(shape)}; those of this dataset are {list(self.public.shape)}."
            )
        else:
            examples = self.public.none()
        return Dataset(
            name=name,
            clients=by_user(array, y, users, np.flatnonzero(~is_test), convert),
            test=examples,
            input_shape=shape,
            classes=classes,
            task=task,
            licence=LICENCE,
            source=self.path.name,
            unit=describe_unit("user"),
            uncovered=(
                *uncovered,
                *(shared_users(users[~is_test], users[is_test]) if self.has_users else ()),
            ),
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
    settings: "OwnSettings",
) -> Owned:
    """Return whose the rows are; the test rows are those that the file at `path` `said` [rows], else a share by `settings`.

    Raises `DataError` unless some are and others are not: without `public` there must be both. `mark` says how the file
    marks a row, with {} for 0 or 1.
    """
    share = settings.test_share
    if said is not None:
        settings.refuse("the data have a split", "test", "test_share")
        test = said
    elif settings.test == "users":
        test = share_of_users(users, seed=SPLIT_SEED, names=names, share=share)
    else:
        test = fifth_of_each(users, seed=SPLIT_SEED, names=names, share=share)
    missing = "training" if test.all() else "test" if public is None and not test.any() else ""
    if not missing:
        return Owned(path, users, test, public, settings.has_users)
    if settings.test == "users":
        raise DataError(
            f"Of the {len(names)} users of {path} the share {share:g} is the test set, by a public draw, which leaves no "
            f"{missing} example; set another test_share, or mark test examples."
        )
    if said is None:
        raise DataError(
            f"{'A fifth' if share == SHARE else f'The share {share:g}'} of each user's examples is the test set where the data "
            f"have no split, but no user has {'five' if share == SHARE else 'enough'}: the largest has "
            f"{np.bincount(users).max()}. Mark test examples with split = 1 and the others with 0 (give from_arrays a test)."
        )
    raise DataError(
        f"{path} has no {missing} example; mark some with {mark.format(int(missing == 'test'))}, or leave the split out: a fifth "
        "of each user's examples is the test set then."
    )


@dataclass(frozen=True)
class OwnSettings:
    """The settings of texts and tables of your own: the one place that has their names, types and defaults.

    `user`, `label` and `split` name columns (None: user, label, and split if there is one), `label` also several. `task` is
    one of `OWN_TASKS` (None: see `task_of`). The input is one of
    `features`, columns of numbers (None: all other columns) or one of lists of numbers, `text`, a column of texts that is
    the target too, and `image`, a column of pictures. `labels` are the names of the classes, class 0 first. `file` is the
    column of a `table` of pictures that names files (None: file_name). `vocabulary`, `vocabulary_size`, `level` and
    `length` are those of `client.data.text.from_texts`. A CSV file without a `header` has the columns f0, f1, ...; its lines
    that begin with `comment` are left out. Without a split `test_share` of each user's rows, or with `test`
    users of the users, is the test set. Data without users (`has_users`) are dealt to made-up clients afterwards.
    """

    user: str | None = None
    label: str | Sequence[str] | None = None
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
    vocabulary_size: int = 10_000
    level: str = LEVELS[0]
    length: int | None = None
    header: bool = True
    comment: str | None = None
    test: str = TEST_UNITS[0]
    test_share: float = SHARE
    task: str | None = None
    has_users: bool = True

    def __post_init__(self) -> None:
        """Raise `SettingError` for what no column can be, and for more than one kind of input."""
        for key in ("features", "labels"):
            given = getattr(self, key)
            is_list = isinstance(given, Sequence) and not isinstance(given, str)
            if given is not None and not (is_list and all(isinstance(name, str) for name in given)):
                raise SettingError(f"{key} is {given!r}; it must be a list of names, such as ['one', 'two'].")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in "\r\n":
            raise SettingError(f"delimiter is {self.delimiter!r}; it must be one ASCII character.")
        check_choice("level", self.level, LEVELS)
        check_choice("test", self.test, TEST_UNITS)
        check_open_unit("test_share", self.test_share)
        inputs = [name for name in ("features", "text", "image") if getattr(self, name) is not None]
        if len(inputs) > 1:
            raise SettingError(f"{' and '.join(inputs)} are given; an input is one of them.")
        check_choice("task", self.task or CLASSIFICATION, OWN_TASKS)
        columns: dict[str, Sequence[str | None]] = {
            "user": [self.user or "user"] * self.has_users,
            "split": [self.split or "split"],
            "label": self.label_columns * (self.text is None),
            "image": [self.image] * (self.image is not None),
            "features": self.features or (),
        }
        role_of: dict[str | None, str] = {}
        for role, name in ((role, name) for role, names in columns.items() for name in names):
            if name in role_of:
                raise SettingError(
                    f"{role} holds {name!r}, which is the column of {role_of[name]} already; name each column once."
                )
            role_of[name] = role

    @property
    def label_columns(self) -> list[str]:
        """The names of the columns of labels, one or several."""
        label = self.label or "label"
        return [label] if isinstance(label, str) else [*label]

    def refuse(self, why: str, *names: str) -> None:
        """Raise `SettingError` for one of the settings `names` that is given and would be ignored."""
        for name in names:
            if (value := getattr(self, name)) != getattr(OwnSettings, name):
                raise SettingError(
                    f"{name} is {value!r}, but {why}, so that it would be ignored; leave it out."
                )


TEXT_SETTINGS = ("vocabulary", "vocabulary_size", "level", "length")


def task_of(shown: np.ndarray, who: str, *, typed: bool = True) -> str:
    """Return the task of targets, as those of the test set, `shown` [m] or [m, k], make it plain. `who` has them.

    Integers [m] are classes, rows of 0 and 1 are labels, and numbers that are not whole are amounts. Raises `DataError` for any
    other: whole numbers in a type of floats may be either, and rows with one 1 each are probably classes. What is not
    `typed` has no type of integers.
    """
    if shown.ndim == 1 and shown.dtype.kind in "iu":
        return CLASSIFICATION
    if (np.isfinite(shown) & (np.rint(shown) != shown)).any():
        return REGRESSION
    if shown.ndim > 1 and np.isin(shown, (0, 1)).all() and (shown.sum(axis=1) != 1).any():
        return MULTILABEL
    what = (
        "rows of whole numbers"
        if shown.ndim > 1
        else "true and false"
        if shown.dtype.kind == "b"
        else "whole numbers as floats"
    )
    remedy = (
        "store one integer an example for classes, or set task to"
        if typed or shown.ndim > 1
        else "set task to classification or"
    )
    raise DataError(
        f"{who} holds {what} in the test rows, which may mean classes: {remedy} "
        f"{f'{MULTILABEL} or ' if shown.ndim > 1 else ''}{REGRESSION}."
    )


def count_classes(who: str, shown: Sequence[int], classes: int | None) -> int:
    """Return the number of classes: the setting `classes`, or one more than the largest label.

    `shown` are the labels of the test examples, which are public; `who` has such a label. Raises `DataError` for one that
    is no class.
    """
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
