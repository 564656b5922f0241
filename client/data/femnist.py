"""Federated EMNIST: handwritten digits and letters of 3,400 writers, 62 classes; TFF, LEAF or hub files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from client.data import hub, leaf
from client.data.by_user_npz import OVERLAP, SPLIT_SEED, fifth_of_each
from client.data.dataset import (
    CLASSIFICATION,
    ArrayClients,
    Dataset,
    Examples,
    describe_unit,
    group_by_user,
    split_by_user,
)
from client.data.stores import Columns, first_examples, given_path, open_tff, stored_clients
from fedmf.errors import DataError

LICENCE = "NIST SD 19: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF emnist; hub flwrlabs/femnist"
HUB = "flwrlabs/femnist"
CLASSES = 62
SHAPE = (28, 28)
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
        train, test = leaf.read_leaf(path, "train"), leaf.read_leaf(path, "test")
        order, bounds = group_by_user(np.array(train.users), examples_per_client)
        x, y = _leaf_arrays(train)
        clients = ArrayClients(x, y, order, bounds)
        return _dataset(clients, Examples(*_leaf_arrays(test)), examples_per_client)
    train_store, test_store = open_tff(path)
    test_examples = first_examples(test_store, images, ALL, seed=SPLIT_SEED)
    return _dataset(
        stored_clients(train_store, images, examples_per_client), test_examples, examples_per_client
    )


def images(columns: Columns) -> Examples:
    """Return TFF's columns pixels (white = 1) and label as examples with ink = 1."""
    x = np.asarray(columns["pixels"], dtype=np.float32).reshape(-1, *SHAPE)
    return Examples(1 - x, np.asarray(columns["label"]).astype(np.int64))


def _leaf_arrays(rows: leaf.Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return (x float32 [n, 28, 28] with ink = 1, y int64 [n])."""
    x = np.array(rows.x, dtype=np.float32)
    if x.ndim != 2 or x.shape[1] != SHAPE[0] * SHAPE[1]:
        raise DataError(f"LEAF's inputs have the shape {x.shape}; each must hold 784 pixels.")
    return 1 - x.reshape(-1, *SHAPE), np.array(rows.y, dtype=np.int64)


def _from_hub(path: Path | None, examples_per_client: int | None) -> Dataset:
    """Return the data set in the hub's files, from disk or downloaded."""
    columns = ("image", "writer_id", "character")
    table = hub.download(HUB, columns) if path is None else hub.read_table(path, columns)
    x = 255 - np.stack([hub.pixels(image) for image in table["image"]])
    y, writers = np.array(table["character"], dtype=np.int64), np.array(table["writer_id"])
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
