"""The data sets that ship or come as arrays: what a client is, what is public, and what a bad file says."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from client.data import Dataset, Examples, digits, load
from client.data.clients import group_by_user
from client.data.own import fifth_of_each
from fedmf.errors import DataError, SettingError


def arrays(count: int = 30, users: int = 4) -> dict[str, np.ndarray]:
    """Return arrays of a small well-formed file; x[i] holds i, so that rows can be told apart."""
    rng = np.random.default_rng(3)
    x = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 3, 2)).copy()
    return {"x": x, "y": np.arange(count) % 5, "user": rng.integers(0, users, count)}


def save(folder: Path, **contents: np.ndarray) -> str:
    """Write an .npz file and return its path."""
    np.savez(folder / "data.npz", **contents)
    return str(folder / "data.npz")


def rows(dataset: Dataset) -> list[list[int]]:
    """Return which rows of `arrays` each client holds."""
    return [np.rint(client.x[:, 0, 0] * 255).astype(int).tolist() for client in dataset.clients]


def test_digits_are_1437_clients_of_one_image_each() -> None:
    dataset = load("digits")
    assert (len(dataset.clients), len(dataset.test), dataset.classes, dataset.input_shape) == (
        1437,
        360,
        10,
        (8, 8),
    )
    assert {len(client) for client in dataset.clients} == {1}
    assert dataset.clients[0].x.dtype == np.float32
    assert dataset.clients[0].y.dtype == dataset.test.y.dtype == np.int64
    assert dataset.uncovered == ()


def test_digits_pixels_are_scaled_by_public_constants_and_the_split_is_the_fixed_one() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=360, stratify=y, random_state=0)
    dataset = load("digits")
    np.testing.assert_allclose(dataset.test.x.reshape(360, -1), x_test / 16 - 0.3, atol=1e-6)
    np.testing.assert_array_equal(dataset.test.y, y_test)
    np.testing.assert_allclose(dataset.clients[77].x.reshape(-1), x_train[77] / 16 - 0.3, atol=1e-6)
    assert dataset.clients[77].y.tolist() == [y_train[77]]


@pytest.mark.parametrize("size", [10, 17, 361, 1000])
def test_the_split_of_digits_is_scikit_learns_whatever_must_be_rounded(size: int) -> None:
    from sklearn.model_selection import train_test_split

    _, labels = digits.read()
    train, test = train_test_split(np.arange(len(labels)), test_size=size, stratify=labels, random_state=0)
    for drawn, twin in zip(digits.split(labels, size), (train, test), strict=True):
        np.testing.assert_array_equal(drawn, twin)


def test_whoever_reads_the_digits_again_is_given_those_of_the_file() -> None:
    images, labels = digits.read()
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0  # they are read once for all who ask
    labels[:] = 0
    assert digits.read()[1].max() == 9


def test_digits_are_the_same_where_scikit_learn_keeps_them_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits.read()
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    elsewhere = digits.read()
    for array, twin in zip((images, labels), elsewhere, strict=True):
        assert array.dtype == twin.dtype
        np.testing.assert_array_equal(array, twin)


def test_clients_of_an_npz_file_are_its_users_and_keep_every_training_row_once(tmp_path: Path) -> None:
    contents = arrays() | {"split": (np.arange(30) >= 24).astype(np.uint8)}
    dataset = load("by_user_npz", path=save(tmp_path, **contents))
    expected = [np.flatnonzero(contents["user"][:24] == user).tolist() for user in range(4)]
    assert rows(dataset) == expected
    assert dataset.clients[1].y.tolist() == [row % 5 for row in expected[1]]
    np.testing.assert_allclose(dataset.test.x[:, 0, 0], np.arange(24, 30) / 255, rtol=1e-6)
    assert dataset.unit == "one user = one client"


def test_cut_clients_hold_one_user_only_and_the_unit_says_so(tmp_path: Path) -> None:
    contents = arrays() | {"split": (np.arange(30) >= 24).astype(np.uint8)}
    dataset = load("by_user_npz", path=save(tmp_path, **contents), examples_per_client=2)
    held = rows(dataset)
    assert sorted(row for client in held for row in client) == list(range(24))
    assert all(len(set(contents["user"][client])) == 1 and len(client) <= 2 for client in held)
    assert "the unit of privacy is the cut client, not the user" in dataset.unit


def test_without_a_split_a_fifth_of_each_user_is_the_test_set(tmp_path: Path) -> None:
    contents = arrays(count=60)
    dataset = load("by_user_npz", path=save(tmp_path, **contents))
    counts = np.bincount(contents["user"])
    assert [len(client) for client in dataset.clients] == (counts - counts // 5).tolist()
    assert len(dataset.test) == (counts // 5).sum()
    assert any("treated as public" in sentence for sentence in dataset.uncovered)


def test_the_public_split_depends_on_its_seed_alone_and_not_on_the_file_order_of_others() -> None:
    users = np.repeat([1, 2, 3], 50)
    np.testing.assert_array_equal(fifth_of_each(users, seed=0), fifth_of_each(users, seed=0))
    assert (fifth_of_each(users, seed=0) != fifth_of_each(users, seed=1)).any()


def test_disjoint_test_users_leave_nothing_uncovered(tmp_path: Path) -> None:
    contents = arrays()
    split = np.isin(contents["user"], [0]).astype(np.uint8)
    dataset = load("by_user_npz", path=save(tmp_path, **contents, split=split))
    assert (len(dataset.clients), dataset.uncovered) == (3, ())


def test_a_folder_of_npy_files_is_memory_mapped_and_equals_the_npz_file(tmp_path: Path) -> None:
    contents = arrays() | {"split": (np.arange(30) >= 24).astype(np.uint8)}
    (tmp_path / "folder").mkdir()
    for name, array in contents.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    mapped = load("by_user_npz", path=str(tmp_path / "folder"))
    assert isinstance(mapped.clients.held.x, np.memmap)  # type: ignore[attr-defined]
    assert rows(mapped) == rows(load("by_user_npz", path=save(tmp_path, **contents)))


def test_the_number_of_classes_comes_from_public_labels_only(tmp_path: Path) -> None:
    contents = arrays() | {"split": (np.arange(30) >= 25).astype(np.uint8)}
    contents["y"][25:] = [0, 1, 2, 1, 0]
    path = save(tmp_path, **contents)
    assert load("by_user_npz", path=path).classes == 3
    with pytest.raises(DataError, match=r"label 2 .* 2 classes.* at least 3"):
        load("by_user_npz", path=path, classes=2)
    assert load("by_user_npz", path=path, classes=6).classes == 6


def test_unknown_names_and_settings_that_do_not_apply_are_refused() -> None:
    with pytest.raises(SettingError, match="digits, synthetic, by_user_npz"):
        load("mnist")
    with pytest.raises(SettingError, match="digits does not use it"):
        load("digits", path="somewhere")
    with pytest.raises(SettingError, match=r"^path is missing"):
        load("by_user_npz")


def test_grouping_agrees_with_the_obvious_loop() -> None:
    users = np.random.default_rng(0).integers(0, 7, 100)
    order, bounds = group_by_user(users)
    obvious = [[row for row in range(100) if users[row] == user] for user in sorted(set(users.tolist()))]
    assert [order[a:b].tolist() for a, b in pairwise(bounds)] == obvious


def test_clients_behave_like_a_sequence() -> None:
    clients = load("digits").clients
    assert len(clients[3:6]) == 3
    np.testing.assert_array_equal(clients[-1].x, clients[1436].x)
    with pytest.raises(IndexError):
        clients[1437]


def test_examples_refuse_unequal_lengths() -> None:
    with pytest.raises(DataError, match="2 inputs but 3 targets"):
        Examples(np.zeros((2, 1), np.float32), np.zeros(3, np.int64))


@pytest.mark.parametrize("kind", [int, str], ids=["numbers", "names"])
def test_the_split_of_a_user_does_not_depend_on_what_other_users_have(kind: type) -> None:
    def split(first: int) -> np.ndarray:
        users = np.repeat(np.arange(50), [first, *[10] * 49])
        return fifth_of_each(users.astype(kind), seed=0)[first:]

    np.testing.assert_array_equal(split(10), split(11))
    without = fifth_of_each(np.repeat(np.arange(1, 50), 10).astype(kind), seed=0)
    np.testing.assert_array_equal(split(10), without)


def test_the_split_chooses_every_place_of_a_user_as_often() -> None:
    chosen = fifth_of_each(np.repeat(np.arange(20_000), 10), seed=0).reshape(-1, 10)
    assert (chosen.sum(axis=1) == 2).all()
    assert np.abs(chosen.mean(axis=0) - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 20_000)
    pairs = chosen.T.astype(float) @ chosen / 20_000  # of ten places two: each pair once in 45
    off = pairs[~np.eye(10, dtype=bool)]
    assert np.abs(off - 1 / 45).max() < 5 * np.sqrt(1 / 45 / 20_000)
    neighbours = (chosen[1:] & chosen[:-1]).mean()  # of one user and the next
    assert abs(neighbours - 0.04) < 5 * np.sqrt(0.04 / 200_000)


def test_a_tilde_is_the_home_folder_for_a_loader_of_ones_own_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save(tmp_path, **arrays())
    assert len(load("by_user_npz", path="~/data.npz").clients) == 4
    (tmp_path / "tilde_loader.py").write_text(
        "from pathlib import Path\nfrom client.data import Dataset, load as built\n"
        "def load(path: str) -> Dataset:\n    assert Path(path).is_file()\n    return built('digits')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("tilde_loader:load", path="~/data.npz").name == "digits"
