"""How much of a data set is used: the first examples of each user, users cut into clients, part of the test set.

One place for all loaders, which return whole users. A user of whom only some examples are used is still the unit of
privacy (Kairouz et al. 2021 use the first 256); a user who is cut into clients is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from client.data.dataset import Dataset, DivisibleClients, Examples, LazyClients, describe_unit, identify_each
from client.data.fingerprint import Fingerprint
from fedmf.checks import check_at_least
from fedmf.errors import SettingError

TEST_SEED = 0
"""Public and fixed: it chooses the test examples of `max_test_examples`, whatever a run's seed is."""


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
