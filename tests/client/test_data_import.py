"""What `fedmf data import` writes is what the files say, to the bit; and it leaves nothing that it should not.

TFF's file names are those of its download module and its loaders (tensorflow_federated/python/simulation/datasets/
download.py, emnist.py, shakespeare.py, stackoverflow.py).
"""

import bz2
import gzip
import io
import json
import lzma
import resource
import stat
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import big_data
import small_files
from client.data import Dataset, benchmark, load, rows, sources
from client.data.benchmark import as_bytes
from client.data.clients import digest_clients
from client.data.dataset import as_float32
from client.data.own import fifth_of_each
from client.data.registry import import_data
from client.data.text import LEAF_CHARACTERS, OOV, SPECIAL
from client.scoring import score
from fedmf.errors import DataError
from fedmf.randomness import SecretKey

EXACT = [k / 255 for k in range(256)]
PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),  # what TFF distributes
}
IMPORTED = sorted(
    form for form, (name, *_) in small_files.FORMS.items() if name in ("femnist", "shakespeare", "stackoverflow")
)  # fmt: skip


def imported(source: object, out: Path) -> Path:
    import_data(str(source), out)
    return out


def assert_same(one: Dataset, other: Dataset) -> None:
    key = SecretKey.reproducible(0)
    assert digest_clients(one.clients, key) == digest_clients(other.clients, key)
    for a, b in zip([*one.clients, one.test], [*other.clients, other.test], strict=True):
        assert (a.x.dtype, np.asarray(a.x).tobytes()) == (b.x.dtype, np.asarray(b.x).tobytes())
        np.testing.assert_array_equal(a.y, b.y)
    assert (one.unit, one.uncovered, one.classes) == (other.unit, other.uncovered, other.classes)


@pytest.mark.parametrize("form", [*IMPORTED, "npz"])
def test_an_imported_folder_holds_what_its_files_hold(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    told: list[int] = []
    assert import_data(given["path"], tmp_path / "out", told.append) == given["name"]
    assert sum(told) > 0 or form == "npz"
    for more in ({}, {"examples_per_client": 2, "max_examples_per_user": 3}):
        whole, out = load(**given, **more), load(**given | {"path": str(tmp_path / "out")}, **more)
        assert_same(whole, out)
    for path in (tmp_path / "out").rglob("*.npy"):
        assert isinstance(np.load(path, mmap_mode="r"), np.memmap)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    with pytest.raises(DataError, match="exists already"):
        import_data(given["path"], tmp_path / "out")


def write_leaf(folder: Path, odd: bool) -> Path:
    """Write two files of a LEAF femnist a split; `odd`: the second holds a number that is no k / 255."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
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
    return folder


def slow_leaf(folder: Path, split: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return user -> (x, y) of a LEAF split, by a slow, obvious reading."""
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    for file in sorted((folder / split).glob("*.json")):
        for user, held in json.loads(file.read_text())["user_data"].items():
            x, y = found.setdefault(user, ([], []))
            x += held["x"]
            y += held["y"]
    return {
        user: (1 - np.array(x, dtype=np.float32).reshape(-1, 28, 28), np.array(y))
        for user, (x, y) in found.items()
    }


@pytest.mark.parametrize("odd", [False, True])
def test_leafs_images_are_bit_for_bit_those_of_the_files(tmp_path: Path, odd: bool) -> None:
    path = write_leaf(tmp_path / "leaf", odd)
    for place in (path, imported(path, tmp_path / "out")):
        dataset = load("femnist", path=str(place))
        for client, (x, y) in zip(
            dataset.clients, [held for _, held in sorted(slow_leaf(path, "train").items())], strict=True
        ):
            assert (client.x.dtype, client.x.tobytes()) == (x.dtype, x.tobytes())
            np.testing.assert_array_equal(client.y, y)
        slow = [json.loads(file.read_text()) for file in sorted((path / "test").glob("*"))]
        x = np.array([row for one in slow for held in one["user_data"].values() for row in held["x"]])
        np.testing.assert_array_equal(dataset.test.x, 1 - x.astype(np.float32).reshape(-1, 28, 28))
    assert "3 of 3 users" in dataset.uncovered[0]
    assert np.load(tmp_path / "out" / "train" / "x.npy").dtype == (np.float32 if odd else np.uint8)


def test_every_pixel_of_eight_bits_is_kept_as_a_byte_and_no_other_number() -> None:
    x = np.array(json.loads(json.dumps(EXACT))).astype(np.float32)
    held = as_bytes(x)
    assert held is not None
    assert as_float32(held).tobytes() == x.tobytes()
    for near in (np.nextafter(x[77], np.float32(2)), np.float32(-0.0), np.float32(np.nan), np.float32(1.001)):
        assert as_bytes(np.append(x, near)) is None


def test_the_hubs_pictures_are_bit_for_bit_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "AT_ONCE", 4)
    pictures = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    column = []
    for picture in pictures:
        data = io.BytesIO()
        Image.fromarray(picture).save(data, "png")
        column.append({"bytes": data.getvalue(), "path": None})
    column[6] = {"bytes": b"no picture", "path": None}
    users = ["b"] * 10 + ["a"] * 10
    path = small_files.parquet(tmp_path / "hub", image=column, writer_id=users, character=list(range(20)))
    dataset = load("femnist", path=str(path))
    test = fifth_of_each(np.repeat(["b", "a"], 10), seed=0)
    np.testing.assert_array_equal(dataset.test.x, as_float32(255 - pictures[test]))
    assert dataset.clients[0].x.tobytes() == as_float32(255 - pictures[10:][~test[10:]]).tobytes()
    with pytest.raises(DataError, match="could not be read"):
        dataset.clients[1]


@pytest.mark.parametrize("form", ["leaf", "csv"])
def test_shakespeares_tokens_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(sources, "AT_ONCE", 4)
    dataset = load(**small_files.settings(f"shakespeare_{form}", tmp_path))
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


def test_files_too_big_to_be_converted_at_every_start_say_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_files.settings("femnist_sqlite", tmp_path)
    whole = load(**given)
    monkeypatch.setattr(benchmark, "SMALL", 0)
    with pytest.raises(
        DataError,
        match=r"emnist_all\.sqlite holds 0 MB, .*`python -m experiments\.data import /.*sqlite FOLDER`",
    ):
        load(**given)
    assert_same(load("femnist", path=str(imported(given["path"], tmp_path / "out"))), whole)


def test_a_folder_of_another_data_set_or_without_a_split_is_refused(tmp_path: Path) -> None:
    imported(small_files.settings("femnist_hdf5", tmp_path)["path"], tmp_path / "out")
    with pytest.raises(DataError, match="holds femnist, not shakespeare"):
        load("shakespeare", path=str(tmp_path / "out"))
    with pytest.raises(DataError, match="holds no split digits_train"):
        load("femnist", path=str(tmp_path / "out"), only_digits=True)


@pytest.mark.parametrize(
    "form", ["femnist_leaf", "femnist_sqlite", "stackoverflow_sqlite", "shakespeare_leaf"]
)
@pytest.mark.parametrize("name", ["own", None])
def test_what_a_source_is_is_seen_in_it_whatever_it_is_called(
    tmp_path: Path, form: str, name: str | None
) -> None:
    given = small_files.settings(form, tmp_path)
    path = Path(given["path"])
    path = path.rename(path.with_name(name)) if name else path
    assert import_data(str(path), tmp_path / "out") == given["name"]


@pytest.mark.parametrize("kind", PACKERS)
def test_a_packed_file_is_imported_and_nothing_of_it_is_left(tmp_path: Path, kind: str) -> None:
    given = small_files.settings("shakespeare_sqlite", tmp_path)
    (folder := tmp_path / "packed").mkdir()
    packed = folder / f"plays.sqlite.{kind}"
    packed.write_bytes(PACKERS[kind](Path(given["path"]).read_bytes()))
    assert_same(load("shakespeare", path=str(imported(packed, folder / "out"))), load(**given))
    assert sorted(path.name for path in folder.iterdir()) == ["out", packed.name]
    whole = packed.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"something else"):
        packed.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"plays\.sqlite\.{kind} cannot be read as a \.{kind} file"):
            import_data(str(packed), folder / "again")
    assert sorted(path.name for path in folder.iterdir()) == ["out", packed.name]


@pytest.mark.parametrize("name", ["a.tgz", "a.tbz2", "a.txz", "a.tar.gz", "a.tar.bz2"])
def test_an_archive_is_imported_without_what_macos_added(tmp_path: Path, name: str) -> None:
    leaf = small_files.leaf(tmp_path / "top", "femnist")
    (leaf / "train" / "._all_data.json").write_text("no JSON")
    mode = {"gz": "gz", "z2": "bz2", "xz": "xz"}[name[-2:]]
    with tarfile.open(tmp_path / name, f"w:{mode}") as archive:
        archive.add(leaf, "top")
    (leaf / "train" / "._all_data.json").unlink()
    assert_same(
        load("femnist", path=str(imported(tmp_path / name, tmp_path / "out"))),
        load("femnist", path=str(leaf)),
    )


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/../../outside"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
    with pytest.raises(DataError):
        import_data(str(tmp_path / "evil.tar.gz"), tmp_path / "out")
    assert not list(tmp_path.rglob("outside"))


def test_nothing_is_kept_of_files_that_are_refused_and_of_a_disk_without_room(tmp_path: Path) -> None:
    path = write_leaf(tmp_path / "leaf", odd=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"out cannot be written \(File too large\)"):
            import_data(str(path), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(DataError, match="no is no folder"):
        import_data(str(path), tmp_path / "no" / "out")
    file = path / "train" / "part_1.json"
    file.write_text(file.read_text()[:-9])
    with pytest.raises(DataError, match=r"part_1\.json cannot be read as JSON"):
        import_data(str(path), tmp_path / "out")
    for wrong in ("none", str(small_files.own_csv(tmp_path / "a.csv"))):
        with pytest.raises(DataError, match=r"does not exist|lacks the column"):
            import_data(wrong, tmp_path / "out")
    (tmp_path / "shakespeare.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(DataError, match="cannot be read as a sqlite file of TFF"):
        import_data(str(tmp_path / "shakespeare.sqlite"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "leaf", "shakespeare.sqlite"]


@pytest.mark.parametrize(
    "form", ["npz", "npy", "femnist_leaf", "femnist_parquet", "shakespeare_csv", "dealt"]
)
def test_a_test_set_too_big_to_hold_is_the_same_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    given = small_files.settings(form, tmp_path)
    held = load(**given).test
    monkeypatch.setattr(rows, "HELD", 0)
    test = load(**given, max_test_examples=2).test
    assert isinstance(test.x, rows.Converted)
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
    monkeypatch.setattr(rows, "HELD", 0)
    assert score(model, load(**given).test, batch_size=2) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "count", "most"),
    # Megabytes beyond the libraries': the float arrays are 440 MB, of which a copy of a fifth was converted and held; of
    # lists of pixels, 90 MB, parquet makes ten times as much where it decodes all of them at once.
    [("leaf", 40_000, 200), ("npy", 140_000, 60), ("lists", 80_000, 400)],
)
def test_a_big_file_takes_little_memory(tmp_path: Path, what: str, count: int, most: int) -> None:
    name, write = big_data.WRITES[what]
    write(tmp_path / what, count, 200)
    base = big_data.measured("by_user_npz", small_files.npz(tmp_path / "small.npz"))["alone_mb"]
    path = imported(tmp_path / what, tmp_path / "out") if what == "leaf" else tmp_path / what
    assert big_data.measured(name, path)["alone_mb"] - base < most
