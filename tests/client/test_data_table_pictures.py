"""Pictures and lists in tables of one's own."""

from pathlib import Path

import datasets
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from client.data import load, rows as lazy
from client.data.clients import digest_clients
from fedmf.errors import DataError
from fedmf.randomness import SecretKey
from own_tables import IMAGES, nested, opened, png, rows, with_pictures


@pytest.mark.parametrize("kind", ["bytes", "struct", "lists"])
def test_pictures_of_a_column_are_the_pixels_over_255(tmp_path: Path, kind: str) -> None:
    dataset = opened(tmp_path, "parquet", with_pictures(kind), image="image")
    assert dataset.input_shape == (4, 5, 3)
    np.testing.assert_allclose(dataset.clients[1].x, IMAGES[[1, 4, 7]] / 255, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x, IMAGES[9:] / 255, atol=1e-6)


def test_a_saved_data_set_may_have_declared_pictures_class_names_and_splits(tmp_path: Path) -> None:
    table = with_pictures("struct")
    del table["split"]
    features = datasets.Features(
        {
            "user": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes", "unsure"]),
            "image": datasets.Image(),
        }
    )
    whole = datasets.Dataset.from_dict(table, features=features)
    parts = {"train": whole.select(range(9)), "test": whole.select([11, 9]), "other": whole.select([10])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    dataset = load("by_user_hub", path=str(tmp_path / "saved"), image="image")
    assert ([len(client) for client in dataset.clients], dataset.classes) == ([3, 3, 3], 3)
    np.testing.assert_allclose(dataset.clients[2].x, IMAGES[[0, 3, 6]] / 255, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x, IMAGES[[11, 9]] / 255, atol=1e-6)


def test_a_declared_array_of_a_saved_data_set_is_an_input(tmp_path: Path) -> None:
    values = np.arange(72, dtype=np.float32).reshape(12, 2, 3)
    kinds = {
        "user": datasets.Value("string"),
        "label": datasets.Value("int8"),
        "split": datasets.Value("bool"),
    }
    features = datasets.Features({**kinds, "x": datasets.Array2D((2, 3), "float32")})
    table = rows() | {"x": list(values), "split": [n >= 9 for n in range(12)]}
    del table["place"], table["height"]
    datasets.Dataset.from_dict(table, features=features).save_to_disk(str(tmp_path / "saved"))
    dataset = load("by_user_hub", path=str(tmp_path / "saved"), features=["x"])
    np.testing.assert_array_equal(dataset.clients[2].x, values[[0, 3, 6]])
    np.testing.assert_array_equal(dataset.test.x, values[9:])


def test_lists_in_many_chunks_are_taken_in_any_order(tmp_path: Path) -> None:
    for number in range(3):
        table = {"user": [1, 2, 1, 2], "label": [0] * 4, "split": [0, 0, 1, 1]}
        lists = [[float(number), float(row)] for row in range(4)]
        pyarrow.parquet.write_table(pyarrow.table({**table, "x": lists}), tmp_path / f"{number}.parquet")
    dataset = load("by_user_parquet", path=str(tmp_path), features=["x"])
    assert dataset.clients[1].x.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert dataset.test.x.tolist() == [[n, row] for n in range(3) for row in (2, 3)]
    assert dataset.clients.held.x[np.array([11, 9, 0, 4])].tolist() == [[2, 3], [2, 1], [0, 0], [1, 0]]  # type: ignore[attr-defined]


def test_one_picture_is_decoded_once_more_for_the_shape_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of 800,000 pictures take ten seconds to decode."""
    decoded: list[int] = []

    def decode(source: lazy.FileBytes | lazy.ColumnBytes, row: int) -> np.ndarray:
        decoded.append(int(row))
        return original(source, row)

    original = lazy.decode
    monkeypatch.setattr(lazy, "HELD", 0)
    monkeypatch.setattr(lazy, "decode", decode)
    opened(tmp_path, "parquet", with_pictures("bytes"), image="image")
    assert sorted(set(decoded)) == [9, 10, 11]
    assert decoded.count(11) == decoded.count(10) == 1


@pytest.mark.parametrize("kind", ["bytes", "lists"])
def test_a_bad_picture_concerns_its_user_alone_and_clients_stay_recognisable(
    tmp_path: Path, kind: str
) -> None:
    table = with_pictures(kind)
    values = table["image"] if kind == "bytes" else table["image"].to_pylist()  # type: ignore[attr-defined]
    values[1] = png(IMAGES[1])[:40] if kind == "bytes" else values[1][:-1]
    table["image"] = values if kind == "bytes" else pyarrow.array(values, nested(pyarrow.uint8(), 3))  # type: ignore[assignment]
    dataset = opened(tmp_path, "parquet", table, image="image")
    assert len(dataset.clients[0]) == len(dataset.clients[2]) == 3
    with pytest.raises(DataError):
        dataset.clients[1]
    key = SecretKey.reproducible(0)
    before = digest_clients(dataset.clients, key)
    assert before == digest_clients(
        load("by_user_parquet", path=str(tmp_path / "data.parquet"), image="image").clients, key
    )
    values[2] = values[0]  # of a user whose pictures can be read
    table["image"] = values if kind == "bytes" else pyarrow.array(values, nested(pyarrow.uint8(), 3))  # type: ignore[assignment]
    assert before != digest_clients(opened(tmp_path, "parquet", table, image="image").clients, key)
