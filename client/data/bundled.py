"""Datasets that need no files: scikit-learn's digits, and made-up points of up to a billion clients."""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution

import numpy as np

from client.data.clients import ArrayClients, Fingerprint, LazyClients
from client.data.dataset import CLASSIFICATION, Dataset, Examples
from fedmf.checks import check_at_least, check_non_negative
from fedmf.errors import SettingError

# Scanned digits.
DIGITS = {
    "licence": "CC BY 4.0",
    "source": "UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak 1998), shipped with scikit-learn",
}
_Whole = np.typing.NDArray[np.int64]


def load_digits() -> Dataset:
    """Return 1437 clients with one 8 x 8 image each, and 360 test images: inputs float32 [n, 8, 8], 10 classes.

    Pixels are x/16 - 0.3, public constants.
    The split is fixed whatever a run's seed is, so that accuracies of different runs compare.

    >>> dataset = load_digits()
    >>> len(dataset.clients), len(dataset.test), dataset.clients[0].x.shape
    (1437, 360, (1, 8, 8))
    """
    images, labels = read_digits()
    x = (images / 16 - 0.3).astype(np.float32).reshape(-1, 8, 8)
    train, test = split_digits(labels, test_size=360)
    one_each = np.arange(len(train) + 1)
    return Dataset(
        name="digits",
        clients=ArrayClients(x[train], labels[train], one_each[:-1], one_each),
        test=Examples(x[test], labels[test]),
        input_shape=(8, 8),
        classes=10,
        task=CLASSIFICATION,
        licence=DIGITS["licence"],
        source=DIGITS["source"],
        unit="one image = one client",
    )


@cache
def read_digits() -> tuple[np.typing.NDArray[np.float64], _Whole]:
    """Return the images [1797, 64], whole numbers from 0 to 16, and their labels [1797], which must not be changed.

    Scikit-learn's file is read without importing it, which takes longer than a worker process needs in all.
    """
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = np.loadtxt(str(file), delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def split_digits(labels: _Whole, test_size: int) -> tuple[_Whole, _Whole]:
    """Return the rows to train on and `test_size` to test on, with each class in both in proportion.

    The rows are those of scikit-learn's `train_test_split(stratify=labels, random_state=0)`, in its order.
    """
    rng = np.random.RandomState(0)  # the generator with which the published split was drawn
    rows_of = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    counts = np.array([len(rows) for rows in rows_of])
    exact = counts / counts.sum() * (len(labels) - test_size)
    trained = np.floor(exact).astype(np.int64)
    # The largest remainders are rounded up, ties in an order drawn.
    for remainder in np.unique(exact % 1)[::-1]:
        (tied,) = np.nonzero(exact % 1 == remainder)
        if (missing := len(labels) - test_size - int(trained.sum())) == 0:
            break
        trained[rng.choice(tied, size=min(len(tied), missing), replace=False)] += 1
    mixed = [rows[rng.permutation(len(rows))] for rows in rows_of]
    train = [rows[:first] for rows, first in zip(mixed, trained, strict=True)]
    test = [rows[first:] for rows, first in zip(mixed, trained, strict=True)]
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


# Made-up points.
SYNTHETIC = {"licence": "none needed", "source": "drawn by this program"}
MOST_CLIENTS = 10**9
# What is drawn: each has a stream of its own under the seed.
CENTRES, CLIENT, TEST = range(3)
# Norm of a class centre over the standard deviation of a coordinate: the classes overlap.
SPREAD = 2.0


@dataclass(frozen=True)
class SyntheticClients(LazyClients):
    """Clients whose examples are a function of (seed, client number), drawn at each access."""

    clients: int
    examples_per_client: int
    centres: np.ndarray
    shift: float
    seed: int

    def __len__(self) -> int:
        return self.clients

    def client(self, i: int) -> Examples:
        return _draw(
            self.centres,
            self.examples_per_client,
            self.shift,
            rng=np.random.default_rng([self.seed, CLIENT, i]),
        )

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write what the clients are drawn from: they are functions of it and of their numbers."""
        fingerprint.text(f"{self.examples_per_client} {self.shift!r} {self.seed}")
        fingerprint.array(self.centres)


def load_synthetic(
    clients: int = 1000,
    *,
    examples_per_client: int = 10,
    features: int = 32,
    classes: int = 10,
    shift: float = 0.5,
    test_examples: int = 2000,
    seed: int = 0,
) -> Dataset:
    """Return Gaussian classes whose centres every client sees moved by a vector of its own.

    x = centre of class y + `shift` N(0, I) of the client + N(0, I), with y uniform; inputs float32 [n,
    features]. The test set holds unmoved points. Client i is a function of (`seed`, i): a bigger dataset
    begins with the same clients.

    >>> load_synthetic(clients=10**9).clients[999_999_999].x.shape
    (10, 32)
    """
    for name, value in {
        "clients": clients,
        "examples_per_client": examples_per_client,
        "features": features,
        "classes": classes,
        "test_examples": test_examples,
    }.items():
        check_at_least(name, value, 1)
    check_non_negative("shift", shift)
    if clients > MOST_CLIENTS:
        raise SettingError(f"clients is {clients}; it must be at most {MOST_CLIENTS:,}.")
    directions = np.random.default_rng([seed, CENTRES]).normal(size=(classes, features))
    centres = SPREAD * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return Dataset(
        name="synthetic",
        clients=SyntheticClients(clients, examples_per_client, centres, shift, seed),
        test=_draw(centres, test_examples, 0.0, rng=np.random.default_rng([seed, TEST])),
        input_shape=(features,),
        classes=classes,
        task=CLASSIFICATION,
        licence=SYNTHETIC["licence"],
        source=SYNTHETIC["source"],
        unit="one made-up client = one client",
    )


def _draw(centres: np.ndarray, count: int, shift: float, *, rng: np.random.Generator) -> Examples:
    """Return points around `centres` [classes, features], moved together by a vector of scale `shift`."""
    classes, features = centres.shape
    move = shift * rng.normal(size=features)
    y = rng.integers(0, classes, count)
    return Examples((centres[y] + move + rng.normal(size=(count, features))).astype(np.float32), y)
