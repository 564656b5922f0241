"""Made-up points of up to a billion clients: drawn when asked for, so that size costs neither time nor memory."""

from dataclasses import dataclass

import numpy as np

from client.data.dataset import CLASSIFICATION, Dataset, Examples, LazyClients
from client.data.identity import Fingerprint
from fedmf.checks import check_at_least, check_non_negative
from fedmf.errors import SettingError

LICENCE = "none needed"
SOURCE = "drawn by this program"
TEST_USERS = "no users: test points belong to no client"
MOST_CLIENTS = 10**9
CENTRES, CLIENT, TEST = range(3)
SPREAD = 2.0
"""Norm of a class centre over the standard deviation of a coordinate: the classes overlap."""


@dataclass(frozen=True)
class SyntheticClients(LazyClients):
    """Clients whose examples are a function of (seed, client number), drawn at each access."""

    clients: int
    examples_per_client: int
    centres: np.ndarray
    shift: float
    seed: int

    def __len__(self) -> int:
        """Return the number of clients."""
        return self.clients

    def client(self, i: int) -> Examples:
        """Return one client's examples."""
        return draw(
            self.centres,
            self.examples_per_client,
            self.shift,
            rng=np.random.default_rng([self.seed, CLIENT, i]),
        )

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write what the clients are drawn from: they are functions of it and of their numbers."""
        fingerprint.text(f"{self.examples_per_client} {self.shift!r} {self.seed}")
        fingerprint.array(self.centres)


def load(
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
    features]. The test set holds unmoved points. Client i is a function of (`seed`, i): a bigger data set
    begins with the same clients.

    >>> load(clients=10**9).clients[999_999_999].x.shape
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
        test=draw(centres, test_examples, 0.0, rng=np.random.default_rng([seed, TEST])),
        input_shape=(features,),
        classes=classes,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=SOURCE,
        unit="one made-up client = one client",
    )


def draw(centres: np.ndarray, count: int, shift: float, *, rng: np.random.Generator) -> Examples:
    """Return points around `centres` [classes, features], moved together by a vector of scale `shift`."""
    classes, features = centres.shape
    move = shift * rng.normal(size=features)
    y = rng.integers(0, classes, count)
    return Examples((centres[y] + move + rng.normal(size=(count, features))).astype(np.float32), y)
