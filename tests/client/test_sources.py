"""Raw files as they are found: without users, header or split."""

import gzip
import struct
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import small_files
from client.data import Dataset, load
from fedmf.errors import DataError, SettingError

X, Y = np.arange(60, dtype=np.uint8).reshape(30, 2), np.arange(30) % 3
NAMES = {"a": X[:, 0] * 1.5, "b": -(X[:, 1].astype(float) ** 2), "label": Y}


def idx(folder: Path) -> None:
    """Write four idx files, of which one part is packed."""
    folder.mkdir()
    for part, rows in (("train", slice(24)), ("t10k", slice(24, 30))):
        count = len(Y[rows])
        images = struct.pack(">BBBBii", 0, 0, 8, 2, count, 2) + X[rows].tobytes()
        labels = struct.pack(">BBBBi", 0, 0, 8, 1, count) + Y[rows].astype(np.uint8).tobytes()
        (folder / f"{part}-images-idx2-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{part}-labels.idx1-ubyte").write_bytes(labels)


def write(folder: Path, form: str) -> dict[str, Any]:
    """Write thirty examples without users, and return the settings that read them."""
    path, given = folder / form, dict[str, Any](features=["a", "b"])
    if form == "idx":
        idx(path)
        given = {}
    elif form == "data.tra":
        rows = np.column_stack(list(NAMES.values()))
        np.savetxt(path, rows, delimiter=",", fmt="%d", header="from the net\nby hand")
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:9], "# 4,5,6", "# seven", *lines[9:]]))
        given = {"header": False, "comment": "#", "label": "f2", "features": ["f0", "f1"]}
    elif form == "data.parquet":
        pyarrow.parquet.write_table(pyarrow.table(NAMES), path)
    elif form == "saved":
        datasets.Dataset.from_dict(NAMES).save_to_disk(str(path))
    elif form == "pictures":
        for row, label in enumerate(Y):
            file = path / str(label) / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(small_files.png((8, 8))["bytes"])
        given = {}
    else:
        path.write_text('{"text": "to be"}\n' * 30)
        given = {"level": "characters"}
    return {"path": str(path), **given}


FORMS = ["idx", "data.tra", "data.parquet", "saved", "pictures", "texts.jsonl"]


@pytest.mark.parametrize("form", FORMS)
def test_examples_of_any_form_without_users_are_dealt_out(tmp_path: Path, form: str) -> None:
    given = write(tmp_path, form)
    dataset: Dataset = load("partitioned", clients=4, **given)
    assert (len(dataset.clients), sum(map(len, dataset.clients)), len(dataset.test)) == (4, 24, 6)
    assert dataset.unit == "one made-up client (iid partition) = one client"
    assert not [sentence for sentence in dataset.uncovered if "users of the test split" in sentence]
    if form == "idx":
        np.testing.assert_allclose(dataset.test.x * 255, X[24:], rtol=1e-6)
        assert dataset.test.y.tolist() == Y[24:].tolist()
        return
    half = load("partitioned", clients=4, test_share=0.5, **given)
    assert (sum(map(len, half.clients)), len(half.test)) == (15, 15)


def test_what_a_form_does_not_use_or_lacks_is_an_error(tmp_path: Path) -> None:
    given = write(tmp_path, "idx")
    with pytest.raises(SettingError, match=r"features is .*read as dataset by_user_npz, does not use it"):
        load("partitioned", features=["a"], **given)
    with pytest.raises(SettingError, match=r"test_share is 0\.5, but the data have a split"):
        load("partitioned", test_share=0.5, **given)
    with pytest.raises(DataError, match=r"lacks user; .* without users choose dataset=partitioned"):
        load("by_user_npz", **given)
    (tmp_path / "idx" / "train-labels.idx1-ubyte").unlink()
    with pytest.raises(DataError, match="holds 3 idx files; it must hold images and labels"):
        load("partitioned", **given)
    texts = write(tmp_path, "texts.jsonl")
    with pytest.raises(SettingError, match="deals by labels, which texts lack"):
        load("partitioned", partitioner="dirichlet", clients=4, **texts)


def test_a_share_of_the_users_is_the_test_set_whoever_else_is_in_the_file(tmp_path: Path) -> None:
    def read(first: int, **given: Any) -> Dataset:
        user = np.arange(200)[first:].repeat(2)
        np.savez(tmp_path / "a.npz", x=user[:, None] / 200, y=np.arange(len(user)) % 2, user=user)
        return load("by_user_npz", path=str(tmp_path / "a.npz"), **given)

    whole, some = (read(first, test="users", test_share=0.25) for first in (0, 100))
    held = {round(200 * float(x)) for x in whole.test.x[:, 0]}
    assert len(whole.test) == 2 * len(held) == 400 - 2 * len(whole.clients)
    assert abs(len(held) - 50) < 25  # four standard deviations
    assert {round(200 * float(x)) for x in some.test.x[:, 0]} == {user for user in held if user >= 100}
    assert whole.uncovered == ()
    with pytest.raises(DataError, match=r"the share 1e-09 is the test set, .* no test example; set another"):
        read(0, test="users", test_share=1e-9)
