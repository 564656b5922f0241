"""The benchmarks' files as TFF, LEAF and the hub publish them (published.py says where), and the folders that are imported.

TFF's file names are those of its download module and its loaders (tensorflow_federated/python/simulation/datasets/
download.py, emnist.py, shakespeare.py, stackoverflow.py). What `fedmf data import` writes is what the files say, to the bit.
"""

import bz2
import gzip
import io
import json
import lzma
import pickle
import resource
import sqlite3
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import big_data
import small_files
from client.data import IGNORED_TARGET, Dataset, benchmark, load, rows, sources
from client.data.benchmark import as_bytes
from client.data.clients import digest_clients
from client.data.dataset import as_float32
from client.data.own import fifth_of_each
from client.data.registry import import_data
from client.data.sources import examples
from client.data.text import BOS, EOS, LEAF_CHARACTERS, OOV, PAD, SPECIAL
from client.scoring import score
from fedmf.errors import DataError, SettingError
from fedmf.randomness import SecretKey
from published import handwriting, named, serialise, write_hdf5, write_sqlite

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


# What the files hold.


@pytest.mark.parametrize("form", ["hdf5", "sqlite"])
def test_femnist_of_tff_has_ink_as_one_and_its_clients_survive_pickling(tmp_path: Path, form: str) -> None:
    data = handwriting()
    if form == "hdf5":
        path = write_hdf5(tmp_path, named(data, "fed_emnist_train", "fed_emnist_test"))
    else:
        path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    dataset = load("femnist", path=path)
    assert (len(dataset.clients), len(dataset.test), dataset.input_shape, dataset.classes) == (
        3, 9, (28, 28), 62,
    )  # fmt: skip
    copies = pickle.loads(pickle.dumps(dataset.clients))
    for client, copy, columns in zip(dataset.clients, copies, data["train"].values(), strict=True):
        assert client.x.dtype == np.float32
        np.testing.assert_allclose(client.x, 1 - columns["pixels"], atol=1e-6)
        np.testing.assert_array_equal(client.x, copy.x)
        assert client.y.tolist() == columns["label"].tolist()
    tested = {tuple(image.ravel().round(3)) for image in dataset.test.x}
    expected = {
        tuple(np.round(1 - image.ravel(), 3)) for user in data["test"].values() for image in user["pixels"]
    }
    assert tested == expected
    assert "not the writer" in load("femnist", path=path, examples_per_client=2).unit


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


def slow_leaf(folder: Path, split: str) -> list[tuple[str, np.ndarray, int]]:
    """Return (user, x, y) of each example of a LEAF split, in the files' order, by a slow, obvious reading."""
    return [
        (user, 1 - np.array(x, np.float32).reshape(28, 28), y)
        for file in sorted((folder / split).glob("*.json"))
        for user, held in json.loads(file.read_text())["user_data"].items()
        for x, y in zip(held["x"], held["y"], strict=True)
    ]


@pytest.mark.parametrize("odd", [False, True])
def test_leafs_images_are_bit_for_bit_those_of_the_files(tmp_path: Path, odd: bool) -> None:
    path = write_leaf(tmp_path / "leaf", odd)
    for place in (path, imported(path, tmp_path / "out")):
        dataset = load("femnist", path=str(place))
        for client, user in zip(dataset.clients, ("ann", "bob", "zoe"), strict=True):
            own = [(x, y) for who, x, y in slow_leaf(path, "train") if who == user]
            assert client.x.tobytes() == np.stack([x for x, _ in own]).tobytes()
            assert client.y.tolist() == [y for _, y in own]
        np.testing.assert_array_equal(dataset.test.x, np.stack([x for _, x, _ in slow_leaf(path, "test")]))
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


def test_shakespeare_snippets_become_windows_of_eighty_characters(tmp_path: Path) -> None:
    data = {
        "train": {"HAMLET": {"snippets": [b"To be", b"x" * 100]}, "LEAR": {"snippets": [b"Howl\xc3\xa9"]}},
        "test": {"HAMLET": {"snippets": [b"or not"]}, "LEAR": {"snippets": [b"howl"]}},
    }
    path = write_hdf5(tmp_path, named(data, "shakespeare_train", "shakespeare_test"))
    dataset = load("shakespeare", path=path)
    hamlet, lear = dataset.clients
    assert hamlet.x.shape == (3, 80)
    numbers = [LEAF_CHARACTERS.index(character) + SPECIAL for character in "To be"]
    assert hamlet.x[0, :7].tolist() == [BOS, *numbers, PAD]
    assert hamlet.y[0, :7].tolist() == [*numbers, EOS, IGNORED_TARGET]
    assert (hamlet.y[1:] != IGNORED_TARGET).sum() == 101
    assert lear.y[0, 4] == OOV
    assert (len(dataset.test), dataset.classes) == (2, 90)


@pytest.mark.parametrize("form", ["leaf", "csv"])
def test_shakespeare_pairs_ask_for_the_next_character_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(sources, "AT_ONCE", 4)
    dataset = load(**small_files.settings(f"shakespeare_{form}", tmp_path))
    numbers = {character: number for number, character in enumerate(LEAF_CHARACTERS, start=SPECIAL)}
    context = [numbers.get(character, OOV) for character in small_files.LINE]
    ends = [numbers[character] for character in "abcdef"]
    tested = [] if form == "leaf" else dataset.test.y[:, -1].tolist()
    for place, client in enumerate(dataset.clients):
        left = [end for end in ends if form == "leaf" or end != tested[place]]
        assert (client.x.dtype, client.y.dtype) == (np.int64, np.int64)
        assert client.x.tolist() == [context] * len(left)
        assert client.y[:, -1].tolist() == left
        assert (client.y[:, :-1] == IGNORED_TARGET).all()


@pytest.mark.parametrize("form", ["hdf5", "sqlite"])
def test_stack_overflow_rows_are_sentences_cut_after_twenty_words(tmp_path: Path, form: str) -> None:
    data = {
        "train": {"10": {"tokens": [b"how to do", b"a " * 30]}, "7": {"tokens": [b"how"]}},
        "test": {str(user): {"tokens": [b"to do", b"how"]} for user in range(20)},
    }
    if form == "hdf5":
        path = write_hdf5(tmp_path, named(data, "stackoverflow_train", "stackoverflow_test"))
    else:
        path = write_sqlite(tmp_path / "stackoverflow.sqlite", data)
    (tmp_path / "words.txt").write_text("a\nto\nhow\n")
    dataset = load("stackoverflow", path=path, vocabulary=str(tmp_path / "words.txt"))
    first = dataset.clients[0]
    assert first.x.shape == (2, 20)
    assert first.x[0, :5].tolist() == [BOS, 6, 5, OOV, PAD]
    assert first.y[0, :5].tolist() == [6, 5, OOV, EOS, IGNORED_TARGET]
    assert first.y[1].tolist() == [4] * 20
    assert (len(dataset.clients), len(dataset.test)) == (2, 20)


# TFF's own files.


def test_the_reader_of_examples_agrees_with_tensorflows_message() -> None:
    values = {
        "bytes": b"\x00two words\xff",
        "floats": np.array([1.5, -2.0, 1e30], dtype=np.float32),
        "integers": np.array([0, 1, -1, 2**62, -(2**63)]),
        "none": b"",
    }
    got = {name: column[0] for name, column in examples([serialise(**values)], list(values)).items()}
    assert (got["bytes"], got["none"]) == (values["bytes"], b"")
    np.testing.assert_array_equal(np.float32(got["floats"]), values["floats"])
    np.testing.assert_array_equal(got["integers"], values["integers"])
    for message in (serialise(tokens=b"some words")[:-3], b"\xff", "text", None):
        with pytest.raises(DataError, match=r"is no tf\.train\.Example"):
            examples([message], ["tokens"])


def test_a_client_of_sqlite_has_all_its_examples_whatever_the_metadata_count(tmp_path: Path) -> None:
    """TFF asks client_metadata for distinct names (sql_client_data.py)."""
    data = handwriting()
    path = write_sqlite(tmp_path / "emnist_all.sqlite", named(data, "all_train", "all_test"))
    with sqlite3.connect(path) as file:
        again = "SELECT client_id, split_name, 1 FROM client_metadata WHERE client_id = 'f0001_41'"
        file.execute(f"INSERT INTO client_metadata {again}")
        file.execute("UPDATE client_metadata SET num_examples = 1")
    file.close()
    dataset = load("femnist", path=path)
    assert [client.y.tolist() for client in dataset.clients] == [
        data["train"][user]["label"].tolist() for user in sorted(data["train"])
    ]
    for split in ("all_train", "all_test"):
        with sqlite3.connect(path) as file:
            file.execute(f"UPDATE client_metadata SET num_examples = 0 WHERE split_name = '{split}'")
            file.execute(f"DELETE FROM examples WHERE split_name = '{split}'")
        file.close()
        with pytest.raises(
            DataError, match=r"emnist_all\.sqlite holds no example in the split 'all_train'; fetch"
        ):
            load("femnist", path=path)


def test_the_folder_of_tff_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names: emnist_all.sqlite, shakespeare.sqlite and stackoverflow.sqlite side by side, and others of TFF's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".tff"
    folder.mkdir()
    plays = {"HAMLET": {"snippets": [b"To be"]}, "LEAR": {"snippets": [b"Howl"]}}
    posts = {str(user): {"tokens": [b"how to"]} for user in range(3)}
    write_sqlite(folder / "emnist_all.sqlite", named(handwriting(), "all_train", "all_test"))
    for name, users in (("shakespeare", plays), ("stackoverflow", posts), ("cifar100", posts)):
        write_sqlite(folder / f"{name}.sqlite", dict.fromkeys(("train", "test"), users))
    (tmp_path / "words").write_text("how\nto\n")
    assert [len(client) for client in load("femnist", path="~/.tff").clients] == [3, 5, 1]
    assert len(load("shakespeare", path=str(folder)).clients) == 2
    assert len(load("stackoverflow", path="~/.tff", vocabulary="~/words").clients) == 3
    (folder / "fed_emnist_train.h5").write_text("")
    with pytest.raises(DataError, match=r"HDF5 files and emnist_all\.sqlite, of which either may be meant"):
        load("femnist", path="~/.tff")
    one = {"a": {"tokens": np.array([b"how to"])}}
    path = write_sqlite(tmp_path / "stackoverflow.sqlite", {"train": one, "test": one})
    with pytest.raises(DataError, match=r"stackoverflow\.sqlite holds 1 sentence .* set test=test"):
        load("stackoverflow", path=path, vocabulary="~/words", test="validation")


# Files that are missing, too big, packed, or something else.


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        (
            "femnist",
            {},
            "fed_emnist_train.h5.* `python -m experiments.data import flwrlabs/femnist FOLDER` wrote",
        ),
        ("shakespeare", {}, "shakespeare_train.h5"),
        ("stackoverflow", {}, "stackoverflow.sqlite"),
        ("stackoverflow", {"path": "."}, "public vocabulary"),
        ("femnist", {"path": "{tmp}"}, "lacks fed_emnist_train.h5; it holds no HDF5 file"),
        ("femnist", {"path": "{tmp}/no.sqlite"}, "does not exist"),
    ],
)
def test_without_files_a_sentence_says_what_to_put_where(
    tmp_path: Path, name: str, settings: dict[str, str], sentence: str
) -> None:
    settings = {key: value.format(tmp=tmp_path) for key, value in settings.items()}
    with pytest.raises(DataError, match=sentence):
        load(name, **settings)  # type: ignore[arg-type]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_files.hdf5(tmp_path, "femnist")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SettingError, match=r"needs the package h5py.*fedmf\[data\]"):
        load("femnist", path=str(tmp_path))


def test_a_download_is_imported_by_its_natural_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    columns = {"character_id": ["A"] * 6 + ["B"] * 6, "x": [small_files.LINE] * 12, "y": list("abcdefabcdef")}

    def load_dataset(name: str, split: str) -> Any:
        if split != "train" or name != "flwrlabs/shakespeare":
            raise ConnectionError("no route to the hub")
        return datasets.Dataset.from_dict(columns)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert import_data("flwrlabs/shakespeare", tmp_path / "out") == "shakespeare"
    dataset = load("shakespeare", path=str(tmp_path / "out"))
    assert [len(client) for client in dataset.clients] == [5, 5]
    with pytest.raises(DataError, match=r"no route to the hub.*put its files .*name that"):
        import_data("flwrlabs/femnist", tmp_path / "other")


def test_files_too_big_to_be_converted_at_every_start_say_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_files.settings("femnist_sqlite", tmp_path)
    whole = load(**given)
    monkeypatch.setattr(benchmark, "SMALL", 0)
    said = r"emnist_all\.sqlite holds 0 MB, .*`python -m experiments\.data import /.*sqlite FOLDER`"
    with pytest.raises(DataError, match=said):
        load(**given)
    assert_same(load("femnist", path=str(imported(given["path"], tmp_path / "out"))), whole)
    with pytest.raises(DataError, match="holds femnist, not shakespeare"):
        load("shakespeare", path=str(tmp_path / "out"))
    small_files.hdf5(tmp_path / "h5", "femnist")
    imported(tmp_path / "h5", tmp_path / "letters")
    with pytest.raises(DataError, match="holds no split digits_train"):
        load("femnist", path=str(tmp_path / "letters"), only_digits=True)


@pytest.mark.parametrize(
    "form", ["femnist_leaf", "femnist_sqlite", "stackoverflow_sqlite", "shakespeare_leaf"]
)
def test_what_a_source_is_is_seen_in_it_whatever_it_is_called(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    path = Path(given["path"])
    assert import_data(str(path.rename(path.with_name("own"))), tmp_path / "out") == given["name"]


@pytest.mark.parametrize("kind", PACKERS)
def test_a_packed_file_is_imported_and_nothing_of_it_is_left(tmp_path: Path, kind: str) -> None:
    given = small_files.settings("shakespeare_sqlite", tmp_path)
    (folder := tmp_path / "packed").mkdir()
    packed = folder / f"plays.sqlite.{kind}"
    packed.write_bytes(PACKERS[kind](Path(given["path"]).read_bytes()))
    assert_same(load("shakespeare", path=str(imported(packed, folder / "out"))), load(**given))
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
    out = imported(tmp_path / name, tmp_path / "out")
    assert_same(load("femnist", path=str(out)), load("femnist", path=str(leaf)))


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "leaf"]


@pytest.mark.parametrize(
    "form", ["npz", "npy", "femnist_leaf", "femnist_parquet", "shakespeare_csv", "dealt"]
)
def test_a_test_set_too_big_to_hold_is_the_same_batch_by_batch_and_scored_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    import torch

    given, model = small_files.settings(form, tmp_path), torch.nn.Linear(4, 3)
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
    if form == "npz":
        assert score(model, test, batch_size=2) == score(model, held, batch_size=2)


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
