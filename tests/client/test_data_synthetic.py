"""Made-up and dealt-out clients."""

from pathlib import Path

import numpy as np
import pytest

from client.data import load
from fedmf.errors import DataError, SettingError


def test_a_client_is_a_function_of_the_seed_and_its_number_alone() -> None:
    few, many = load("synthetic", clients=5), load("synthetic", clients=10**9)
    np.testing.assert_array_equal(few.clients[3].x, many.clients[3].x)
    np.testing.assert_array_equal(many.clients[999_999_999].x, many.clients[999_999_999].x)
    assert all((few.clients[i].x != few.clients[j].x).all() for i in range(5) for j in range(i))
    assert (load("synthetic", clients=5, seed=1).clients[3].x != few.clients[3].x).all()


def test_points_lie_around_the_centre_of_their_class_moved_for_the_client() -> None:
    dataset = load("synthetic", clients=1, examples_per_client=20_000, classes=2, features=3, shift=5.0)
    client = dataset.clients[0]
    centres = np.array([client.x[client.y == label].mean(axis=0) for label in range(2)])
    true = dataset.clients.held.centres  # type: ignore[attr-defined]
    # Means of 10,000 points with standard deviation 1: 0.06 is six of theirs.
    np.testing.assert_allclose(centres[1] - centres[0], true[1] - true[0], atol=0.06)
    assert np.linalg.norm(centres[0] - true[0]) > 1
    assert client.x.std(axis=0) == pytest.approx(np.sqrt(1 + true.std(axis=0) ** 2), abs=0.05)


def test_synthetic_settings_are_checked() -> None:
    with pytest.raises(SettingError, match="at most 1,000,000,000"):
        load("synthetic", clients=10**9 + 1)
    with pytest.raises(SettingError, match=r"^features is 0"):
        load("synthetic", features=0)
    with pytest.raises(SettingError, match=r"^shift is -1"):
        load("synthetic", shift=-1.0)


LABELS = np.repeat(np.arange(5), 40)


def test_partitioned_arrays_keep_their_test_rows_apart(tmp_path: Path) -> None:
    x = np.arange(200, dtype=np.uint8).reshape(200, 1)
    np.savez(tmp_path / "data.npz", x=x, y=LABELS)
    dataset = load("partitioned", path=str(tmp_path / "data.npz"), clients=8, partitioner="shards")
    held = np.concatenate([client.x for client in dataset.clients] + [dataset.test.x])
    assert sorted(np.rint(held[:, 0] * 255).astype(int)) == list(range(200))
    assert (len(dataset.clients), len(dataset.test), dataset.classes) == (8, 40, 5)
    assert "made-up client (shards partition)" in dataset.unit


def test_partitioned_mistakes_are_sentences(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2)
    path = str(tmp_path / "data.npz")
    with pytest.raises(SettingError, match="iid, dirichlet, shards"):
        load("partitioned", path=path, partitioner="random")
    with pytest.raises(DataError, match="one for each of 50 clients"):
        load("partitioned", path=path, clients=50)
    np.savez(tmp_path / "data.npz", x=np.zeros((10, 2)))
    with pytest.raises(DataError, match="lacks y"):
        load("partitioned", path=path)
