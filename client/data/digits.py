"""Scanned digits that ship with scikit-learn: 1437 clients with one 8 x 8 image each, 360 test images."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from client.data.clients import ArrayClients
from client.data.dataset import CLASSIFICATION, Dataset, Examples

LICENCE = "CC BY 4.0"
SOURCE = "UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998), shipped with scikit-learn"
TEST_USERS = "no users: each image is a client, and is in one split only"
TEST_SIZE = 360

_Whole = npt.NDArray[np.int64]


def load() -> Dataset:
    """Return the digits data set: pixels x/16 - 0.3 (public constants), inputs float32 [n, 8, 8], 10 classes.

    The split is fixed whatever a run's seed is, so that accuracies of different runs compare.

    >>> dataset = load()
    >>> len(dataset.clients), len(dataset.test), dataset.clients[0].x.shape
    (1437, 360, (1, 8, 8))
    """
    images, labels = read()
    x = (images / 16 - 0.3).astype(np.float32).reshape(-1, 8, 8)
    train, test = split(labels, TEST_SIZE)
    one_each = np.arange(len(train) + 1)
    return Dataset(
        name="digits",
        clients=ArrayClients(x[train], labels[train], one_each[:-1], one_each),
        test=Examples(x[test], labels[test]),
        input_shape=(8, 8),
        classes=10,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=SOURCE,
        unit="one image = one client",
    )


@cache
def read() -> tuple[npt.NDArray[np.float64], _Whole]:
    """Return the images [1797, 64], whole numbers from 0 to 16, and their labels [1797], which must not be changed.

    Scikit-learn's file is read without importing it, which takes longer than a worker process needs in all.
    """
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    table = np.loadtxt(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def split(labels: _Whole, test_size: int) -> tuple[_Whole, _Whole]:
    """Return the rows to train on and `test_size` to test on, with each class in both in proportion.

    The rows are those of scikit-learn's `train_test_split(stratify=labels, random_state=0)`, in its order.
    """
    rng = np.random.RandomState(0)  # the generator with which the published split was drawn
    rows_of = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    counts = np.array([len(rows) for rows in rows_of])
    trained = _in_proportion(counts, len(labels) - test_size, rng)
    tested = _in_proportion(counts - trained, test_size, rng)
    train, test = [], []
    for rows, first, then in zip(rows_of, trained, tested, strict=True):
        mixed = rows[rng.permutation(len(rows))]
        train.append(mixed[:first])
        test.append(mixed[first : first + then])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _in_proportion(counts: _Whole, total: int, rng: np.random.RandomState) -> _Whole:
    """Return whole parts of `total` in proportion to `counts`; the largest remainders are rounded up, ties by `rng`."""
    exact = counts / counts.sum() * total
    parts = np.floor(exact)
    for remainder in np.unique(exact - parts)[::-1]:
        (tied,) = np.nonzero(exact - np.floor(exact) == remainder)
        if (missing := int(total - parts.sum())) == 0:
            break
        parts[rng.choice(tied, size=min(len(tied), missing), replace=False)] += 1
    whole: _Whole = parts.astype(np.int64)
    return whole
