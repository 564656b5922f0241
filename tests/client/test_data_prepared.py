"""What is prepared once in the cache is what the files say, to the bit; and the cache keeps nothing that it should not.

Each loader is held against a slow, obvious reading of the same files.
"""

import io
import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import big_data
import small_files
from client.data import arrays as converted, hub, leaf, load, sqlite_index, sqlite_store
from client.data.dataset import Dataset, as_float32
from client.data.maps import ArrayFile, as_bytes, mapped
from client.data.split import fifth_of_each
from client.data.text import LEAF_CHARACTERS, OOV, SPECIAL
from client.scoring import score
from fedmf.errors import DataError

EXACT = [k / 255 for k in range(256)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDMF_DATA_CACHE", raising=False)


def entries(tmp_path: Path, kind: str = "") -> list[Path]:
    """Return the folders in the cache whose names begin with `kind`."""
    found = (tmp_path / "cache" / "data").glob(f"{kind}*")
    return sorted(path for path in found if path.is_dir() and path.name != "digests")


def write_leaf(folder: Path, odd: bool) -> str:
    """Write two files of a LEAF femnist a split; `odd`: the second holds a number that is no k / 255."""
    rng = np.random.default_rng(0)
    for split in leaf.SPLITS:
        (folder / split).mkdir(parents=True)
        for number, users in enumerate((("zoe", "ann"), ("bob", "zoe"))):
            data = {}
            for user in users:
                x = [[EXACT[k] for k in rng.integers(0, 256, 784)] for _ in range(3)]
                data[user] = {"x": x, "y": rng.integers(0, 62, 3).tolist()}
            if odd and number:
                data["bob"]["x"][1][5] = 0.3333
            document = {"users": list(users), "num_samples": [3, 3], "user_data": data}
            (folder / split / f"part_{number}.json").write_text(json.dumps(document))
    return str(folder)


def slow_leaf(folder: str, split: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return user -> (x, y) of a LEAF split, read whole, as it was before anything was mapped."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for file in sorted((Path(folder) / split).glob("*.json")):
        for user, held in json.loads(file.read_text())["user_data"].items():
            x, y = found.setdefault(user, ([], []))
            x += held["x"]
            y += held["y"]
    return {
        user: (1 - np.array(x, dtype=np.float32).reshape(-1, 28, 28), np.array(y))
        for user, (x, y) in found.items()
    }


def assert_clients(dataset: Dataset, expected: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Assert that the clients are `expected`, bit for bit."""
    assert len(dataset.clients) == len(expected)
    for client, (x, y) in zip(dataset.clients, expected, strict=True):
        assert (client.x.dtype, client.x.tobytes()) == (x.dtype, x.tobytes())
        assert client.y.dtype == np.int64
        np.testing.assert_array_equal(client.y, y)


@pytest.mark.parametrize("odd", [False, True])
def test_leafs_images_are_bit_for_bit_those_of_the_files(tmp_path: Path, odd: bool) -> None:
    path = write_leaf(tmp_path / "leaf", odd)
    for _ in ("made", "found again"):
        dataset = load("femnist", path=path)
        assert_clients(dataset, [held for _, held in sorted(slow_leaf(path, "train").items())])
        slow = [json.loads(file.read_text()) for file in sorted((tmp_path / "leaf" / "test").glob("*"))]
        x = np.array([row for one in slow for held in one["user_data"].values() for row in held["x"]])
        np.testing.assert_array_equal(dataset.test.x, 1 - x.astype(np.float32).reshape(-1, 28, 28))
    assert "2 of 3 users" not in dataset.uncovered[0]
    assert "3 of 3 users" in dataset.uncovered[0]
    (train,) = entries(tmp_path, "femnist-leaf-train")
    assert mapped(train / "x.npy").dtype == (np.float32 if odd else np.uint8)


def test_every_pixel_of_eight_bits_is_kept_as_a_byte_and_no_other_number() -> None:
    x = np.array(json.loads(json.dumps(EXACT))).astype(np.float32)
    held = as_bytes(x)
    assert held is not None
    assert as_float32(held).tobytes() == x.tobytes()
    for near in (np.nextafter(x[77], np.float32(2)), np.float32(-0.0), np.float32(np.nan), np.float32(1.001)):
        assert as_bytes(np.append(x, near)) is None


def test_an_array_file_that_turns_into_floats_keeps_what_it_had(tmp_path: Path) -> None:
    parts = [np.float32([[0, 1]]), np.float32([[0.2, 0.5]]), np.float32([[1, 1]])]
    with ArrayFile(tmp_path / "x.npy", pixels=True) as file:
        for part in parts:
            file.append(part)
    assert mapped(tmp_path / "x.npy").tobytes() == np.concatenate(parts).tobytes()


def test_the_hubs_pictures_are_bit_for_bit_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "AT_ONCE", 4)
    pictures = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    column = []
    for picture in pictures:
        data = io.BytesIO()
        Image.fromarray(picture).save(data, "png")
        column.append({"bytes": data.getvalue(), "path": None})
    column[6] = {"bytes": b"no picture", "path": None}
    labels = list(range(20))
    path = small_files.parquet(
        tmp_path / "hub", image=column, writer_id=["b"] * 10 + ["a"] * 10, character=labels
    )
    dataset = load("femnist", path=str(path))
    test = fifth_of_each(np.repeat(["b", "a"], 10), seed=0)
    np.testing.assert_array_equal(dataset.test.x, as_float32(255 - pictures[test]))
    assert dataset.clients[0].x.tobytes() == as_float32(255 - pictures[10:][~test[10:]]).tobytes()
    with pytest.raises(DataError, match="could not be read"):
        dataset.clients[1]
    column[6], column[17] = column[8], column[6]  # a letter now, which only_digits does not use
    small_files.parquet(tmp_path / "hub", image=column, writer_id=["b"] * 10 + ["a"] * 10, character=labels)
    digits = load("femnist", path=str(path), only_digits=True)
    assert len(digits.clients[0]) == 8


@pytest.mark.parametrize("form", ["leaf", "csv"])
def test_shakespeares_tokens_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(hub, "AT_ONCE", 4)
    given = small_files.settings(f"shakespeare_{form}", tmp_path)
    dataset = load(**given)
    numbers = {character: number for number, character in enumerate(LEAF_CHARACTERS, start=SPECIAL)}
    context = [numbers.get(character, OOV) for character in small_files.LINE]
    ends = [numbers[character] for character in "abcdef"]
    held = {"leaf": len(dataset.clients[0]), "csv": 5}[form]
    assert [client.x.tolist() for client in dataset.clients] == [[context] * held] * 3
    assert all(client.x.dtype == client.y.dtype == np.int64 for client in dataset.clients)
    tested = [] if form == "leaf" else dataset.test.y[:, -1].tolist()
    for place, client in enumerate(dataset.clients):
        left = [end for end in ends if form == "leaf" or end != tested[place]]
        assert client.y[:, -1].tolist() == left
        assert (client.y[:, :-1] == -100).all()


@pytest.mark.parametrize(
    "form", ["npz", "npy", "femnist_leaf", "femnist_parquet", "shakespeare_csv", "dealt"]
)
def test_a_test_set_too_big_to_hold_is_the_same_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    given = small_files.settings(form, tmp_path)
    held = load(**given).test
    monkeypatch.setattr(converted, "HELD", 0)
    test = load(**given, max_test_examples=2).test
    assert isinstance(test.x, converted.Converted)
    assert len(test) == 2
    test = load(**given).test
    assert (test.x.dtype, test.x.shape, test.y.dtype) == (held.x.dtype, held.x.shape, held.y.dtype)
    assert test.x[:].tobytes() == held.x.tobytes()
    assert np.asarray(test.y).tobytes() == held.y.tobytes()
    np.testing.assert_array_equal(test.x[1:3], held.x[1:3])
    np.testing.assert_array_equal(test.x[np.array([2, 0])], held.x[np.array([2, 0])])


def test_a_test_set_too_big_to_hold_is_scored_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    given = small_files.settings("npz", tmp_path)
    model = torch.nn.Linear(4, 3)
    before = score(model, load(**given).test, batch_size=2)
    monkeypatch.setattr(converted, "HELD", 0)
    assert score(model, load(**given).test, batch_size=2) == before


def test_a_second_start_does_not_parse_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_leaf(tmp_path / "leaf", odd=False)
    before = load("femnist", path=path)

    def parse(*given: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(leaf, "read_leaf", parse)
    for settings in ({}, {"only_digits": True}, {"as_published": True}):
        assert load("femnist", path=path, **settings).input_shape == before.input_shape
    (tmp_path / "leaf" / "train" / "part_1.json").write_text(
        (tmp_path / "leaf" / "test" / "part_1.json").read_text()
    )
    with pytest.raises(AssertionError, match="parsed again"):
        load("femnist", path=path)


def test_only_the_owner_may_read_what_is_prepared(tmp_path: Path) -> None:
    load("femnist", path=write_leaf(tmp_path / "leaf", odd=False))
    kept = [tmp_path / "cache" / "data", *(tmp_path / "cache" / "data").rglob("*")]
    assert len(entries(tmp_path)) == 2
    for path in kept:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_entry_is_made_anew(tmp_path: Path, damage: str) -> None:
    path = write_leaf(tmp_path / "leaf", odd=False)
    before = load("femnist", path=path)
    expected = [(client.x, client.y) for client in before.clients]
    (train,) = entries(tmp_path, "femnist-leaf-train")
    file = train / "x.npy"
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(content[:-5] if damage == "cut" else bytes(len(content)))
    assert_clients(load("femnist", path=path), expected)
    assert file.read_bytes() == content


def test_nothing_is_kept_of_a_file_that_is_refused(tmp_path: Path) -> None:
    path = write_leaf(tmp_path / "leaf", odd=False)
    file = tmp_path / "leaf" / "train" / "part_1.json"
    file.write_text(file.read_text()[:-9])
    for _ in ("once", "again"):
        with pytest.raises(DataError, match=r"part_1\.json cannot be read as JSON"):
            load("femnist", path=path)
        assert entries(tmp_path) == []


def test_what_could_not_be_read_is_said_at_every_start_with_the_folders_name_of_today(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two", "two"):
        folder = tmp_path / name
        given = {"name": "femnist", "path": str(folder)}
        small_files.leaf(folder, "femnist", lambda data: data["bob"]["x"][2].pop())
        caplog.clear()
        dataset = load(**given)
        assert f"'bob' in {folder / 'train'}" in caplog.text
        with pytest.raises(DataError, match="could not be read"):
            dataset.clients[1]
    assert len(entries(tmp_path)) == 2


def test_a_cache_that_is_off_keeps_nothing_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_leaf(tmp_path / "leaf", odd=False)
    expected = [(client.x, client.y) for client in load("femnist", path=path).clients]
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "other"))
    monkeypatch.setenv("FEDMF_DATA_CACHE", "off")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert_clients(load("femnist", path=path), expected)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert not (tmp_path / "other").exists()
    (tmp_path / "data.jsonl.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"FEDMF_DATA_CACHE=off forbids; unpack it yourself"):
        load("by_user_text", path=str(tmp_path / "data.jsonl.gz"))


def test_the_cache_can_lie_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMF_DATA_CACHE", str(tmp_path / "safe"))
    load("femnist", path=write_leaf(tmp_path / "leaf", odd=False))
    assert len(list((tmp_path / "safe").glob("femnist-leaf-*/x.npy"))) == 2
    assert entries(tmp_path) == []


def test_progress_is_said_once_where_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_leaf(tmp_path / "leaf", odd=False)
    load("femnist", path=path)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("client.data.progress._PATIENCE", -1)
    monkeypatch.setattr("client.data.progress._PAUSE", -1)
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "other"))
    load("femnist", path=path)
    said = capsys.readouterr().err
    assert said.count(f"preparing {tmp_path / 'leaf' / 'train'} in the cache, once") == 1


def test_a_sqlite_file_without_an_index_of_clients_gets_one_in_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_files.settings("femnist_sqlite", tmp_path)
    path = Path(given["path"])
    with sqlite3.connect(path) as file:  # rows of clients mixed, as no reader would guess
        file.execute("UPDATE examples SET rowid = (rowid * 7919) % 100003 + 1000000")
    file.close()
    before = path.read_bytes()
    plain = [(client.x, client.y) for client in load(**given).clients]
    assert entries(tmp_path) == []
    monkeypatch.setattr(sqlite_index, "SMALL", 0)
    for _ in ("made", "found again"):
        dataset = load(**given)
        assert_clients(dataset, plain)
    (entry,) = entries(tmp_path, "sqlite-index")
    assert (path.read_bytes(), sorted(file.name for file in tmp_path.iterdir())) == (
        before,
        ["cache", path.name],
    )
    store = dataset.clients.held.store  # type: ignore[attr-defined]
    plan = sqlite_store._sqlite(path, os.getpid(), store.index, store.state).execute(
        f"EXPLAIN QUERY PLAN {sqlite_store._BY_INDEX}", ("all_train", "ann", 9, 0)
    )
    assert not [row for row in plan if "SCAN" in row[-1]]
    assert entry / "index.sqlite" == store.index


@pytest.mark.parametrize("columns", ["client_id", "split_name, client_id"])
def test_a_sqlite_file_with_an_index_of_its_own_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    given = small_files.settings("femnist_sqlite", tmp_path)
    with sqlite3.connect(given["path"]) as file:
        file.execute(f"CREATE INDEX own ON examples ({columns})")
    file.close()
    monkeypatch.setattr(sqlite_index, "SMALL", 0)
    assert len(load(**given).clients) == 3
    assert entries(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "rows", "most"),
    # Megabytes beyond the libraries': the old lists took 36 kB an image, so that 40,000 of them were 1.4 GB; the float
    # arrays are 440 MB, of which a copy of a fifth was converted and held; of lists of pixels, 90 MB, parquet makes ten
    # times as much where it decodes all of them at once.
    [("leaf", 40_000, 200), ("npy", 140_000, 60), ("lists", 80_000, 400)],
)
def test_a_big_file_takes_little_memory(tmp_path: Path, what: str, rows: int, most: int) -> None:
    name, write = big_data.WRITES[what]
    write(tmp_path / what, rows, 200)
    empty = small_files.npz(tmp_path / "small.npz")
    base = big_data.measured("by_user_npz", empty, tmp_path / "cache")["alone_mb"]
    for _ in ("made", "found again"):
        assert big_data.measured(name, tmp_path / what, tmp_path / "cache")["alone_mb"] - base < most
