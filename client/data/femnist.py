"""Federated EMNIST: handwritten digits and letters of 3,400 writers, 62 classes; TFF, LEAF or hub files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from client.data import hub, leaf
from client.data.by_user_npz import SPLIT_SEED, fifth_of_each
from client.data.dataset import (
    CLASSIFICATION,
    ArrayClients,
    Dataset,
    Examples,
    as_float32,
    describe_unit,
    group_by_user,
    shared_users,
    split_by_user,
)
from client.data.stores import (
    Columns,
    TffFiles,
    active_users,
    first_examples,
    given_path,
    open_tff,
    stored_clients,
)
from fedmf.errors import DataError

LICENCE = "NIST SD 19: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF emnist; hub flwrlabs/femnist"
TEST_USERS = "all train too; counted when loaded, and said in the privacy statement"
HUB = "flwrlabs/femnist"
CLASSES = 62
DIGITS = 10
SHAPE = (28, 28)
FILES = TffFiles(("all_train", "all_test"), ("fed_emnist_train.h5", "fed_emnist_test.h5"))
DIGIT_FILES = TffFiles(
    ("digits_only_train", "digits_only_test"),
    ("fed_emnist_digitsonly_train.h5", "fed_emnist_digitsonly_test.h5"),
)
WHERE = (
    "Dataset femnist needs files: set path to the folder of TFF's fed_emnist_train.h5 and "
    "fed_emnist_test.h5 (with only_digits fed_emnist_digitsonly_train.h5 and fed_emnist_digitsonly_test.h5), to TFF's "
    "emnist_all.sqlite, to a LEAF folder with train/*.json and test/*.json, "
    f"or to the folder of the parquet files of {HUB}; or set download=True."
)


@dataclass(frozen=True)
class Writers:
    """The data as a source holds them, and who wrote what is in each split."""

    clients: Sequence[Examples]
    test: Examples
    training: np.ndarray
    tested: np.ndarray


def load(
    path: str | None = None,
    *,
    only_digits: bool = False,
    as_published: bool = False,
    download: bool = False,
) -> Dataset:
    """Return Federated EMNIST; inputs float32 [n, 28, 28] with ink = 1 and paper = 0, 62 classes.

    `only_digits` are the 10 classes 0 to 9: TFF's own splits of them, of LEAF's and the hub's files the examples with
    such a label. TFF's and LEAF's pixels have white = 1, so they are subtracted from 1; the hub's pictures are black
    on white too. With `as_published` all are left so, paper = 1, as TFF and LEAF train on them.

    TFF and LEAF bring a test split of the same writers; of the hub's files, which have none, a fifth of each writer,
    chosen by a public seed, is the test set. Raises `DataError` with the file to put where, when there is none.
    """
    files = given_path(path, WHERE)
    if files is None and not download:
        raise DataError(WHERE)
    if files is None or hub.is_table(files):
        found = _from_hub(files, only_digits, as_published)
    elif leaf.is_leaf(files):
        found = _from_leaf(files, only_digits, as_published)
    else:
        found = _from_tff(files, only_digits, as_published)
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
        uncovered=shared_users(found.training, found.tested),
        person="writer",
    )


def _from_tff(path: Path, only_digits: bool, as_published: bool) -> Writers:
    """Return the data in TFF's files, of which the training examples stay on disk."""
    train, test = open_tff(path, DIGIT_FILES if only_digits else FILES)
    convert: Callable[[Columns], Examples] = partial(images, as_published=as_published)
    examples = first_examples(test, convert, seed=SPLIT_SEED)
    return Writers(stored_clients(train, convert), examples, active_users(train), active_users(test))


def images(columns: Columns, *, as_published: bool = False) -> Examples:
    """Return TFF's columns pixels (white = 1) and label as examples with ink = 1, or as published."""
    x = np.asarray(columns["pixels"], dtype=np.float32).reshape(-1, *SHAPE)
    return Examples(x if as_published else 1 - x, np.asarray(columns["label"]).astype(np.int64))


def _from_leaf(path: Path, only_digits: bool, as_published: bool) -> Writers:
    """Return the data in LEAF's files."""
    (train_x, train_y, training), (test_x, test_y, tested) = (
        _leaf_arrays(leaf.read_leaf(path, split), only_digits, as_published) for split in leaf.SPLITS
    )
    clients = ArrayClients(train_x, train_y, *group_by_user(training))
    return Writers(clients, Examples(test_x, test_y), training, tested)


def _leaf_arrays(
    rows: leaf.Rows, only_digits: bool, as_published: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x float32 [n, 28, 28] with ink = 1 or as published, y int64 [n], writers [n])."""
    x = np.array(rows.x, dtype=np.float32)
    if x.ndim != 2 or x.shape[1] != SHAPE[0] * SHAPE[1]:
        raise DataError(f"LEAF's inputs have the shape {x.shape}; each must hold 784 pixels.")
    x = x.reshape(-1, *SHAPE) if as_published else 1 - x.reshape(-1, *SHAPE)
    y, writers = np.array(rows.y, dtype=np.int64), np.array(rows.users)
    chosen = chosen_rows(y, only_digits)
    return x[chosen], y[chosen], writers[chosen]


def _from_hub(path: Path | None, only_digits: bool, as_published: bool) -> Writers:
    """Return the data in the hub's files, from disk or downloaded."""
    columns = ("image", "writer_id", "character")
    table = hub.download(HUB, columns) if path is None else hub.read_table(path, columns)
    y = np.array(table["character"], dtype=np.int64)
    chosen = chosen_rows(y, only_digits)
    x = np.stack([hub.pixels(table["image"][row]) for row in np.arange(len(y))[chosen]])
    y, writers = y[chosen], np.array(table["writer_id"])[chosen]
    test = fifth_of_each(writers, seed=SPLIT_SEED)
    split = split_by_user(x if as_published else 255 - x, y, writers, test, as_float32)
    return Writers(*split, writers[~test], writers[test])


def chosen_rows(labels: np.ndarray, only_digits: bool) -> np.ndarray | slice:
    """Return which rows are used: all, or those of the digits. Raises `DataError` where these are none."""
    if not only_digits:
        return slice(None)
    rows: np.ndarray = np.flatnonzero(labels < DIGITS)
    if not len(rows):
        raise DataError("only_digits is True, but the files hold no label below 10; they must hold digits.")
    return rows
