"""How much of a data set is used: the first examples of each user, users cut into clients, some clients, part of the test set.

One place for all loaders, which return whole users. A user of whom only some examples are used is still the unit of
privacy (Kairouz et al. 2021 use the first 256); a user who is cut into clients is not.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from client.data.dataset import Dataset, DivisibleClients, Examples, LazyClients, describe_unit, identify_each
from client.data.fingerprint import Fingerprint
from client.settings import HELD_OUT_USES
from fedmf.checks import check_at_least, check_choice, check_open_unit
from fedmf.errors import DataError, SettingError
from fedmf.permutation import Permutation
from fedmf.randomness import PublicSeed

TEST_SEED = 0
"""Public and fixed: it chooses test examples and held-out clients, whatever a run's seed is."""


@dataclass(frozen=True)
class FirstExamples(LazyClients):
    """At most the first `most` examples of each of `clients`, which are read whole."""

    clients: Sequence[Examples]
    most: int

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.clients)

    def client(self, i: int) -> Examples:
        """Return one client's first examples."""
        examples = self.clients[i]
        return Examples(examples.x[: self.most], examples.y[: self.most])

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write how many examples are kept, and what the clients say of themselves."""
        fingerprint.text(f"first {self.most}")
        if isinstance(self.clients, LazyClients):
            self.clients.identify(fingerprint, numbers)
        else:
            identify_each(self, fingerprint, numbers)


def limited(
    dataset: Dataset,
    *,
    max_examples_per_user: int | None = None,
    examples_per_client: int | None = None,
    max_test_examples: int | None = None,
) -> Dataset:
    """Return `dataset` with what is asked for, in this order.

    Of each user the first `max_examples_per_user` examples are kept and the others discarded; users are cut into
    clients of at most `examples_per_client` examples; `max_test_examples` test examples are kept, drawn by a public
    seed (fewer of them are always among more). `unit` says the first two. Raises `SettingError` for numbers below
    one, and for cutting clients that are nobody's.
    """
    if max_examples_per_user is not None:
        check_at_least("max_examples_per_user", max_examples_per_user, 1)
        clients = first_of_each(dataset.clients, max_examples_per_user)
        unit = f"{dataset.unit}, with at most the first {max_examples_per_user} examples of each"
        if dataset.person is not None:
            unit = describe_unit(dataset.person, None, max_examples_per_user)
        dataset = replace(dataset, clients=clients, unit=unit)
    if examples_per_client is not None:
        check_at_least("examples_per_client", examples_per_client, 1)
        if dataset.person is None or not isinstance(dataset.clients, DivisibleClients):
            raise SettingError(
                f"examples_per_client is {examples_per_client}, but the clients of dataset {dataset.name} cannot be "
                "cut; leave it out."
            )
        unit = describe_unit(dataset.person, examples_per_client, max_examples_per_user)
        dataset = replace(dataset, clients=dataset.clients.cut(examples_per_client), unit=unit)
    if max_test_examples is not None:
        check_at_least("max_test_examples", max_test_examples, 1)
        dataset = replace(dataset, test=subsample(dataset.test, max_test_examples))
    return dataset


def first_of_each(clients: Sequence[Examples], count: int) -> LazyClients:
    """Return the clients with at most the first `count` examples of each."""
    return clients.first(count) if isinstance(clients, DivisibleClients) else FirstExamples(clients, count)


def subsample(examples: Examples, count: int) -> Examples:
    """Return `count` examples drawn by the public seed, or all where there are no more, in their order."""
    if len(examples) <= count:
        return examples
    rows = np.sort(np.random.default_rng(TEST_SEED).permutation(len(examples))[:count])
    return examples.take(rows)


@dataclass(frozen=True)
class SomeClients(LazyClients):
    """The clients of `everyone` whose numbers are the images of `places` under a public permutation."""

    everyone: LazyClients
    order: Permutation
    places: range

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.places)

    def client(self, i: int) -> Examples:
        """Return one client's examples."""
        return self.everyone[self._number(i)]

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write which places these are, and who the clients are; for all of them, who everyone is."""
        fingerprint.text(f"{self.places} of {self.order.size}")
        is_whole = len(numbers) == len(self)
        for number in [range(self.order.size)] if is_whole else map(self._alone, numbers):
            self.everyone.identify(fingerprint, number)

    def _number(self, i: int) -> int:
        return int(self.order(np.array([self.places[i]]))[0])

    def _alone(self, i: int) -> range:
        return range(self._number(i), self._number(i) + 1)


def hold_out(
    dataset: Dataset, share: float, use: str, max_test_examples: int | None = None, *, clients_only: bool
) -> Dataset:
    """Return `dataset` with floor(`share` N) of its N clients held out: the first ones of a public order of 0 .. N-1.

    `use` score: they do not train, and their examples, which count as public, are the test set. none: they do not train.
    train: no other clients train, so that settings can be tuned on them; the test set of the data scores both of these.
    With `clients_only` no test set is made. Raises `SettingError` for a share of which no client is left.
    """
    check_open_unit("held_out", share)
    check_choice("held_out_use", use, HELD_OUT_USES)
    clients = len(dataset.clients)
    count = math.floor(share * clients)
    if count == 0:
        raise SettingError(f"held_out is {share}, which is none of {clients} clients; give a larger share.")
    assert isinstance(dataset.clients, LazyClients)  # `checked` makes them so
    order = Permutation(clients, PublicSeed(TEST_SEED).digest("held out clients"))
    held = SomeClients(dataset.clients, order, range(count))
    trained = held if use == "train" else replace(held, places=range(count, clients))
    named = f"{count:,} of {clients:,} clients are held out"
    does = {"score": "do not train and score the model", "none": "do not train", "train": "train alone"}
    dataset = replace(dataset, clients=trained, notes=(*dataset.notes, f"{named}; they {does[use]}"))
    if use != "score" or clients_only:
        return dataset
    test = readable(held, dataset.name)
    if max_test_examples is not None:
        test = subsample(test, max_test_examples)
    said = (
        f"{named}: they do not train, the model is scored on their examples, and these are treated as public."
    )
    return replace(dataset, test=test, uncovered=(*dataset.uncovered, said))


def readable(clients: Sequence[Examples], name: str) -> Examples:
    """Return the examples of all clients that can be read. Raises `DataError` where none can: one alone decides nothing."""
    found = []
    for i in range(len(clients)):
        with suppress(Exception):  # as in training, where it becomes a zero update
            found.append(clients[i])
    if not found:
        raise DataError(f"No held-out client of dataset {name} can be read; the model could not be scored.")
    x, y = (np.concatenate([getattr(one, part) for one in found]) for part in ("x", "y"))
    return Examples(x, y)
