"""Loaders as a user might write them, found by their import path."""

from dataclasses import replace

import numpy as np

from client.data import ArrayClients, Dataset, Examples, LazyClients, Public


class Own(LazyClients):
    """Three clients of four examples, as somebody's own loader might have them."""

    def __len__(self) -> int:
        return 3

    def client(self, i: int) -> Examples:
        return Examples(np.full((4, 2), i, np.float32), np.arange(4))


def load() -> Dataset:
    test = Examples(np.zeros((3, 2), np.float32), np.zeros(3, np.int64))
    return Dataset("own", Own(), test, (2,), 4, "classification", "", "", "one thing = one client")


def load_of_people() -> Dataset:
    clients = ArrayClients(np.ones((7, 2), np.float32), np.arange(7) % 4, np.arange(7), np.array([0, 5, 7]))
    return replace(load(), clients=clients, person="child")


def load_cutting(examples_per_client: int = 4) -> Dataset:
    return load()


def load_capping(examples_per_client: int = 4, max_examples_per_user: int = 4) -> Dataset:
    return load()


def load_telling(public: Public | None = None) -> Dataset:
    return replace(load(), source="clients" if public else "clients and test set")


def load_with_an_odd_test_example() -> Dataset:
    test = load().test
    test.x[2], test.y[1:] = np.nan, 1
    return replace(load(), test=test, uncounted=(0,))
