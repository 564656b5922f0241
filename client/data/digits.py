"""Scanned digits that ship with scikit-learn: 1437 clients with one 8 x 8 image each, 360 test images."""

import numpy as np

from client.data.dataset import CLASSIFICATION, ArrayClients, Dataset, Examples

LICENCE = "CC BY 4.0"
SOURCE = "UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998), shipped with scikit-learn"
TEST_USERS = "no users: each image is a client, and is in one split only"
TEST_SIZE = 360


def load() -> Dataset:
    """Return the digits data set: pixels x/16 - 0.3 (public constants), inputs float32 [n, 8, 8], 10 classes.

    The split is fixed whatever a run's seed is, so that accuracies of different runs compare.

    >>> dataset = load()
    >>> len(dataset.clients), len(dataset.test), dataset.clients[0].x.shape
    (1437, 360, (1, 8, 8))
    """
    from sklearn.datasets import load_digits  # takes a second to import, so only when asked for
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    x = (images / 16 - 0.3).astype(np.float32).reshape(-1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        x, labels, test_size=TEST_SIZE, stratify=labels, random_state=0
    )
    one_each = np.arange(len(y_train) + 1)
    return Dataset(
        name="digits",
        clients=ArrayClients(x_train, y_train, one_each[:-1], one_each),
        test=Examples(x_test, y_test.astype(np.int64)),
        input_shape=(8, 8),
        classes=10,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=SOURCE,
        unit="one image = one client",
    )
