"""Rows of single operations: design, normals and step of the mechanism; rotation, mask and addition of an update."""

from functools import partial

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from experiments.benchmark.row import Row
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.optimum.fixed_point import solve
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.randomness import SecretKey, gaussian_row
from fedmf.updates.masks import kept_coordinates
from fedmf.updates.rotation import hadamard
from server.aggregation import FixedPoint


def design_row(rounds: int) -> Row:
    """Return the row of the optimal factorization of `rounds` rounds to gap 1e-6."""
    number = np.arange(rounds // 2)
    gram = len(number) - np.maximum.outer(number, number).astype(float)  # (A^T A)_ij of prefix sums
    return Row(
        partial(solve, prefix_sum(rounds)),
        partial(np.linalg.cholesky, gram),
        f"numpy's Cholesky factor of the {len(gram)} x {len(gram)} Gram matrix, of which a dense solver of half the rounds needs "
        "one a step; for orientation, the goal is 100 ms",
    )


def normals(dimension: int) -> Row:
    """Return the row of one keyed row of normals."""
    return Row(
        partial(gaussian_row, SecretKey.generate(), 0, dimension),
        torch.empty(dimension).normal_,
        f"torch normal_ of {dimension:,} float32, neither keyed nor secret",
        4,
    )


def correlation_step(buffers: int, dimension: int) -> Row:
    """Return the row of one step of the optimal stream, in place."""
    stream = design("optimal", prefix_sum(1024), buffers=buffers).stream
    rng = np.random.default_rng(0)
    fresh, state = rng.standard_normal(dimension), StreamState(512, rng.standard_normal((buffers, dimension)))
    source = rng.standard_normal((buffers, dimension))
    return Row(
        partial(stream.next, lambda number: fresh, state, donate=True),
        partial(np.copyto, source.copy(), source),
        f"a copy of the state, {buffers} x {dimension:,} float64",
        2,
    )


def rotation(dimension: int) -> Row:
    """Return the row of the Hadamard transform of one vector; `dimension` is a power of two."""
    vector = np.random.default_rng(0).standard_normal(dimension, dtype=np.float32)
    return Row(
        partial(hadamard, vector),
        partial(_pass_twice, vector, np.empty_like(vector)),
        f"two read-write passes over {dimension:,} float32",
        20,
    )


def _pass_twice(vector: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, vector)
    np.copyto(vector, target)


def mask(dimension: int, keep_probability: float) -> Row:
    """Return the row of the kept coordinates of one client."""
    key, kept = SecretKey.generate(), round(keep_probability * dimension)
    zeros = bytes(8 * kept)
    return Row(
        partial(kept_coordinates, key, dimension, keep_probability),
        lambda: Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor().update(zeros),
        f"AES-256 in counter mode by the library `cryptography`: 8 bytes for each of {kept:,} kept coordinates",
        4,
    )


def add_message(dimension: int, keep_probability: float) -> Row:
    """Return the row of adding one client's values to the sum, exactly and in any order of the replies."""
    coordinates = kept_coordinates(SecretKey.generate(), dimension, keep_probability)
    values = np.random.default_rng(0).uniform(-1, 1, len(coordinates)).astype(np.float32)
    grid = FixedPoint.fit(1.0, 100)
    return Row(
        partial(grid.add, grid.zeros(dimension), coordinates, values),
        partial(np.add.at, np.zeros(dimension, np.float32), coordinates, values),
        f"numpy add.at of {len(values):,} float32, whose sum depends on the order",
        1.5 / 1.1,
    )
