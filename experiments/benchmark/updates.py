"""Rows of one client's update: rotation, mask, and its addition to the sum."""

from functools import partial

import numpy as np

from experiments.benchmark.row import Row
from fedmf.randomness import SecretKey, uniform_words
from fedmf.updates.masks import kept_coordinates
from fedmf.updates.rotation import hadamard
from server.aggregation import FixedPoint


def rotation(dimension: int) -> Row:
    """The orthonormal Hadamard transform of one vector; `dimension` is a power of two."""
    vector = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    return Row(
        partial(hadamard, vector),
        partial(_pass_twice, vector, np.empty_like(vector)),
        f"two read-write passes over {dimension:,} float32",
        20,
    )


def mask(dimension: int, keep_probability: float) -> Row:
    """The kept coordinates of one client."""
    key, kept = SecretKey.generate(), round(keep_probability * dimension)
    return Row(
        partial(kept_coordinates, key, dimension, keep_probability),
        partial(uniform_words, key, kept),
        f"AES counter mode: 8 bytes for each of {kept:,} kept coordinates",
        4,
    )


def add_message(dimension: int, keep_probability: float) -> Row:
    """Adding one client's values to the sum, exactly and whatever the order of the replies."""
    coordinates = kept_coordinates(SecretKey.generate(), dimension, keep_probability)
    values = np.random.default_rng(0).uniform(-1, 1, len(coordinates)).astype(np.float32)
    grid = FixedPoint.fit(1.0, 100)
    return Row(
        partial(grid.add, grid.zeros(dimension), coordinates, values),
        partial(np.add.at, np.zeros(dimension, np.float32), coordinates, values),
        f"numpy add.at of {len(values):,} float32, whose sum depends on the order",
        1.5 / 1.1,
    )


def _pass_twice(vector: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, vector)
    np.copyto(vector, target)
