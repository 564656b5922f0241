"""Rows of one client's update: rotation, mask, and its addition to the sum."""

from functools import partial

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from client.on_device import DevicePrivatizer
from client.training import pick_device
from experiments.benchmark.row import Row
from fedmf.randomness import PublicSeed, SecretKey
from fedmf.updates.masks import kept_coordinates
from fedmf.updates.rotation import Rotation, hadamard
from fedmf.updates.wire import Bounds
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
        partial(_keystream, bytes(32), bytes(8 * kept)),
        f"AES-256 in counter mode by the library `cryptography`: 8 bytes for each of {kept:,} kept coordinates",
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


def on_device(dimension: int, keep_probability: float, device: str) -> Row:
    """What a client does to its update on the device that trained it, until its kept values are on this side."""
    place = pick_device(device)
    update = torch.randn(dimension, device=place)
    privatizer = DevicePrivatizer(
        bounds=Bounds(l2_norm=1.0, linf_norm=0.01),
        rotation=Rotation("hadamard", dimension, PublicSeed(0)),
        keep_probability=keep_probability,
        device=place,
    )
    return Row(
        partial(privatizer.privatize, update, mask_key=SecretKey.generate()),
        partial(_fetch, update),
        f"the way of all {dimension:,} float32 from the device to the host, without which nothing is done there",
    )


def _keystream(key: bytes, zeros: bytes) -> bytes:
    """Return as many bytes of AES-256 in counter mode as `zeros` has, of the library alone."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(zeros)


def _fetch(update: torch.Tensor) -> torch.Tensor:
    return update.to("cpu", copy=True)


def _pass_twice(vector: np.ndarray, target: np.ndarray) -> None:
    np.copyto(target, vector)
    np.copyto(vector, target)
