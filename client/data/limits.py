"""What is done to every dataset once it is loaded: its clients are checked when they are read, cut, limited, held out."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from client.data.clients import ArrayClients, Fingerprint, LazyClients, identify_clients
from client.data.dataset import IGNORED_TARGET, Dataset, Examples, Public, describe_unit, pieces
from client.imports import own_code
from client.settings import HELD_OUT_USES
from fedmf.checks import check_at_least, check_choice, check_open_unit
from fedmf.errors import DataError, SettingError
from fedmf.participation import permuted
from fedmf.randomness import PublicSeed

# Public and fixed: it chooses test examples and held-out clients, whatever a run's seed is.
TEST_SEED = 0


@dataclass(frozen=True)
class CheckedClients(LazyClients):
    """The clients `held`, each checked when it is read, with at most the first `most` examples of each.

    Raises `DataError` for examples that are not what is `public`, and for whatever a user's own code of clients raises.
    """

    held: Sequence[Examples]
    public: Public
    dataset: str
    most: int | None = None

    def __len__(self) -> int:
        return len(self.held)

    def client(self, i: int) -> Examples:
        who = f"client {i} of dataset {self.dataset}"
        with own_code(f"{who} failed", DataError):
            examples = self.held[i]
            if self.most is not None and isinstance(examples, Examples):
                examples = Examples(examples.x[: self.most], examples.y[: self.most])
            self.public.check(examples, who)
        return examples

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write how many examples are kept, if not all, and who the clients are, as they say it themselves."""
        if self.most is not None:
            fingerprint.text(f"first {self.most}")
        with own_code(f"identify of the clients of dataset {self.dataset} failed", DataError):
            identify_clients(self.held, fingerprint, numbers)


def check_counted(dataset: Dataset) -> None:
    """Raise `DataError` where the accuracy would count no target of the test set: padding, or unknown words, alone."""
    y, left_out = dataset.test.y, (IGNORED_TARGET, *dataset.uncounted)
    if y.dtype.kind != "f" and all(np.isin(part, left_out).all() for part in pieces(y)):
        raise DataError(
            f"The test set of dataset {dataset.name} has no target that the accuracy counts: all are padding, unknown or "
            "ends of texts. Give test texts that are not empty, of words that the vocabulary knows."
        )


def limited(
    dataset: Dataset,
    public: Public | None = None,
    *,
    max_examples_per_user: int | None = None,
    examples_per_client: int | None = None,
    max_test_examples: int | None = None,
    path: object = None,
) -> Dataset:
    """Return `dataset` with its clients checked when they are read, and with what is asked for, in this order.

    Of each user the first `max_examples_per_user` examples are kept and the others discarded; users are cut into
    clients of at most `examples_per_client` examples; `max_test_examples` test examples are kept, drawn by a public
    seed (fewer of them are always among more). `unit` states the first two. Raises `SettingError` for numbers below
    one, and for cutting clients that are no person's.

    With `public` clients are compared with it, and the test set is empty; otherwise with what the test set shows, which is
    checked now. `path`: where it was read, for the messages. Raises `DataError` for a test set, shape or number of classes
    that cannot be right.
    """
    clients, unit, person, most = dataset.clients, dataset.unit, dataset.person, max_examples_per_user
    for name, value in (
        ("max_examples_per_user", most),
        ("examples_per_client", examples_per_client),
        ("max_test_examples", max_test_examples),
    ):
        if value is not None:
            check_at_least(name, value, 1)
    if most is not None:
        unit = (
            f"{unit}, with at most the first {most} examples of each"
            if person is None
            else describe_unit(person, None, most)
        )
        if isinstance(clients, ArrayClients):
            clients, most = clients.first(most), None
    if examples_per_client is not None:
        if person is None or not isinstance(clients, ArrayClients):
            raise SettingError(
                f"examples_per_client is {examples_per_client}, but the clients of dataset {dataset.name} cannot be "
                "cut; leave it out."
            )
        clients = clients.cut(examples_per_client)
        unit = describe_unit(person, examples_per_client, max_examples_per_user)
    if public is None:
        public = dataset.public
        test = subsample(dataset.test, max_test_examples)
        public.check(test, f"the test set of dataset {dataset.name}{'' if path is None else f' at {path}'}")
    else:
        test = public.none()
    return replace(
        dataset,
        unit=unit,
        test=test,
        input_shape=public.shape,
        classes=public.classes,
        task=public.task,
        labels=public.labels,
        clients=CheckedClients(clients, public, dataset.name, most),
    )


def subsample(examples: Examples, count: int | None) -> Examples:
    """Return `count` examples drawn by the public seed, or all where there are no more, in their order."""
    if count is None or len(examples) <= count:
        return examples
    rows = np.sort(np.random.default_rng(TEST_SEED).permutation(len(examples))[:count])
    return Examples(examples.x[rows], examples.y[rows])


@dataclass(frozen=True)
class SomeClients(LazyClients):
    """The clients of `everyone` whose numbers are the images of `places` under a public permutation."""

    everyone: Sequence[Examples]
    key: bytes
    places: range

    def __len__(self) -> int:
        return len(self.places)

    def client(self, i: int) -> Examples:
        return self.everyone[self._number(i)]

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write which places these are, and who the clients are; for all of them, who everyone is."""
        fingerprint.text(f"{self.places} of {len(self.everyone)}")
        if len(numbers) == len(self):
            identify_clients(self.everyone, fingerprint, range(len(self.everyone)))
        else:
            for number in map(self._number, numbers):
                identify_clients(self.everyone, fingerprint, range(number, number + 1))

    def _number(self, i: int) -> int:
        return int(permuted(np.array([self.places[i]]), len(self.everyone), self.key)[0])


def hold_out(dataset: Dataset, share: float, use: str, max_test_examples: int | None = None) -> Dataset:
    """Return `dataset` with floor(`share` N) of its N clients held out: the first ones of a public order of 0 .. N-1.

    `use` score: they do not train, and their examples, which count as public, are the test set. none: they do not train.
    train: no other clients train, so that settings can be tuned on them; the test set of the data scores both of these.
    Without test examples none are made. Raises `SettingError` for a share of which no client is left.
    """
    check_open_unit("held_out", share)
    check_choice("held_out_use", use, HELD_OUT_USES)
    clients = len(dataset.clients)
    count = int(share * clients)
    if count == 0:
        raise SettingError(f"held_out is {share}, which is none of {clients} clients; give a larger share.")
    held = SomeClients(dataset.clients, PublicSeed(TEST_SEED).digest("held out clients"), range(count))
    trained = held if use == "train" else replace(held, places=range(count, clients))
    named = f"{count:,} of {clients:,} clients are held out"
    does = {"score": "do not train and score the model", "none": "do not train", "train": "train alone"}
    dataset = replace(dataset, clients=trained, notes=(*dataset.notes, f"{named}; they {does[use]}"))
    if use != "score" or not len(dataset.test):
        return dataset
    test = subsample(readable(held, dataset.name), max_test_examples)
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
