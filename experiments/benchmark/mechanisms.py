"""Rows of the mechanism: its design, its normals, its step."""

from functools import partial

import numpy as np
import torch

from experiments.benchmark.row import Row
from fedmf.mechanisms import design, prefix_sum
from fedmf.mechanisms.optimum.fixed_point import solve
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.randomness import SecretKey, gaussian_row


def design_row(rounds: int) -> Row:
    """The optimal factorization of `rounds` rounds to gap 1e-6."""
    number = np.arange(rounds // 2)
    gram = len(number) - np.maximum.outer(number, number).astype(float)  # (A^T A)_ij of prefix sums
    return Row(
        partial(solve, prefix_sum(rounds)),
        partial(np.linalg.cholesky, gram),
        f"numpy's Cholesky factor of the {len(gram)} x {len(gram)} Gram matrix, of which a dense solver of half the rounds needs "
        "one a step; a yardstick, the goal is 100 ms",
    )


def normals(dimension: int) -> Row:
    """One keyed row of normals."""
    buffer = torch.empty(dimension)
    return Row(
        partial(gaussian_row, SecretKey.generate(), 0, dimension),
        buffer.normal_,
        f"torch normal_ of {dimension:,} float32, neither keyed nor secret",
        4,
    )


def correlation_step(buffers: int, dimension: int) -> Row:
    """One step of the optimal stream, in place."""
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
