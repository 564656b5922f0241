"""Federated EMNIST: handwritten digits and letters of 3,400 writers, 62 classes; TFF, LEAF or hub files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from client.data import hub, leaf
from client.data.by_user_npz import OVERLAP, SPLIT_SEED, fifth_of_each
from client.data.checked import UNREADABLE
from client.data.dataset import (
    CLASSIFICATION,
    ArrayClients,
    Dataset,
    Examples,
    describe_unit,
    group_by_user,
    split_by_user,
)
from client.data.fields import FLOATS, INTEGERS, Field, numbers
from client.data.reading import Unreadable, reading, user_names
from client.data.stores import Columns, first_examples, given_path, open_tff, stored_clients
from fedmf.errors import DataError

LICENCE = "NIST SD 19: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF emnist; hub flwrlabs/femnist"
HUB = "flwrlabs/femnist"
CLASSES = 62
SHAPE = (28, 28)
FIELDS = {"pixels": Field(FLOATS, SHAPE), "label": Field(INTEGERS)}
AT_ONCE = 1000  # rows of a LEAF file that become arrays together
ALL = 10**9
WHERE = (
    "Dataset femnist needs files: set path to the folder of TFF's fed_emnist_train.h5 and "
    "fed_emnist_test.h5, to TFF's emnist_all.sqlite, to a LEAF folder with train/*.json and test/*.json, "
    f"or to the folder of the parquet files of {HUB}; or set download=True."
)


def load(
    path: str | None = None, *, examples_per_client: int | None = None, download: bool = False
) -> Dataset:
    """Return Federated EMNIST; inputs float32 [n, 28, 28] with ink = 1 and paper = 0, 62 classes.

    TFF's and LEAF's pixels have white = 1, so they are subtracted from 1; the hub's pictures are black on
    white too. TFF and LEAF bring a test split of the same writers; of the hub's files, which have none, a
    fifth of each writer, chosen by a public seed, is the test set. Raises `DataError` with the file to put
    where, when there is none.
    """
    files = given_path(path, WHERE)
    if files is None and not download:
        raise DataError(WHERE)
    if files is None or hub.is_table(files):
        return _from_hub(files, examples_per_client)
    return _from_disk(files, examples_per_client)


def _from_disk(path: Path, examples_per_client: int | None) -> Dataset:
    """Return the data set in TFF's or LEAF's files."""
    if leaf.is_leaf(path):
        (x, y, users), (x_test, y_test, _) = (_leaf_arrays(path, split) for split in leaf.SPLITS)
        order, bounds = group_by_user(users, examples_per_client)
        clients = ArrayClients(x, y, order, bounds)
        return _dataset(clients, Examples(x_test, y_test), examples_per_client)
    train_store, test_store = open_tff(path, FIELDS)
    test_examples = first_examples(test_store, images, ALL, seed=SPLIT_SEED)
    return _dataset(
        stored_clients(train_store, images, examples_per_client), test_examples, examples_per_client
    )


def images(columns: Columns) -> Examples:
    """Return TFF's columns pixels (white = 1) and label as examples with ink = 1."""
    x = numbers(columns, "pixels", FIELDS["pixels"]).astype(np.float32)
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError("A stored example holds pixels that are not 0 (black) to 1 (white).")
    return Examples(1 - x, numbers(columns, "label", FIELDS["label"]).astype(np.int64))


def _leaf_arrays(path: Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x float32 [n, 28, 28] with ink = 1, y int64 [n], writers [n]) of one split of a LEAF folder.

    An example that cannot be read has the label `UNREADABLE`.
    """
    unreadable = Unreadable(path / split, is_public=split == "test")
    rows = leaf.read_leaf(path, split, unreadable)
    x = np.zeros((len(rows.x), SHAPE[0] * SHAPE[1]), dtype=np.float32)
    y = np.full(len(x), UNREADABLE, dtype=np.int64)
    for start in range(0, len(x), AT_ONCE):
        chosen = slice(start, start + AT_ONCE)
        try:
            x[chosen], y[chosen] = _leaf_numbers(rows.x[chosen], rows.y[chosen], x.shape[1])
        except DataError:  # once more, to find those that fail
            for row in range(start, min(start + AT_ONCE, len(x))):
                if rows.x[row] is leaf.UNEQUAL:  # noted by `read_leaf`
                    continue
                try:
                    x[row : row + 1], y[row : row + 1] = _leaf_numbers(
                        rows.x[row : row + 1], rows.y[row : row + 1], x.shape[1]
                    )
                except DataError as error:
                    who = f"An example of {rows.users[row]!r} in {unreadable.where}"
                    if not _are_numbers(rows.x[row], rows.y[row]):
                        raise DataError(
                            f"{who} is not a list of numbers and a whole number; it must be."
                        ) from error
                    unreadable.note(f"{who}: {error}")
    unreadable.warn()
    return 1 - x.reshape(-1, *SHAPE), y, np.array(rows.users)


def _leaf_numbers(x: list[Any], y: list[Any], pixels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of a LEAF file as arrays [n, pixels] and [n]; raise `DataError` if one is not as it must be."""
    with reading("It", f"{pixels} pixels and a label"):  # numpy's own view of lists of many lengths and types
        inputs, labels = np.array(x), np.array(y)
    if inputs.dtype.kind not in "iuf" or inputs.shape != (len(x), pixels):
        raise DataError(f"It holds inputs {inputs.dtype} {inputs.shape[1:]}; each must hold {pixels} pixels.")
    if labels.dtype.kind != "i" or labels.shape != (len(x),):
        raise DataError(
            f"It holds labels {labels.dtype} {labels.shape[1:]}; each must be 0 to {CLASSES - 1}."
        )
    if not ((inputs >= 0) & (inputs <= 1)).all():
        raise DataError("It holds pixels that are not 0 (black) to 1 (white).")
    return inputs.astype(np.float32), labels


def _are_numbers(x: object, y: object) -> bool:
    """Say whether an example of a LEAF file is of the right types: a list of numbers, and a whole number."""
    is_list = isinstance(x, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in x
    )
    return is_list and isinstance(y, int) and not isinstance(y, bool)


def _from_hub(path: Path | None, examples_per_client: int | None) -> Dataset:
    """Return the data set in the hub's files, from disk or downloaded."""
    columns = ("image", "writer_id", "character")
    table = hub.download(HUB, columns) if path is None else hub.read_table(path, columns)
    where = path or HUB
    # Marked examples that turn out to be test examples are refused with the test set.
    unreadable = Unreadable(where, is_public=False)
    if wrong := [
        label for label in table["character"] if not isinstance(label, int) or isinstance(label, bool)
    ]:
        raise DataError(f"character in {where} holds {wrong[0]!r}; it must hold integer labels from 0.")
    x = np.zeros((len(table["image"]), *SHAPE), dtype=np.uint8)
    y, writers = np.array(table["character"], dtype=np.int64), user_names(where, table["writer_id"])
    for row, image in enumerate(table["image"]):
        try:
            x[row] = 255 - hub.pixels(image, SHAPE)
        except DataError as error:
            y[row] = UNREADABLE
            unreadable.note(f"Row {row + 1} of {where}: {error}")
    unreadable.warn()
    test = fifth_of_each(writers, seed=SPLIT_SEED)
    return _dataset(*split_by_user(x, y, writers, test, examples_per_client), examples_per_client)


def _dataset(clients: Sequence[Examples], test: Examples, examples_per_client: int | None) -> Dataset:
    """Return the data set with what is the same for all sources."""
    return Dataset(
        name="femnist",
        clients=clients,
        test=test,
        input_shape=SHAPE,
        classes=CLASSES,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=SOURCE,
        unit=describe_unit("writer", examples_per_client),
        uncovered=(OVERLAP,),
    )
