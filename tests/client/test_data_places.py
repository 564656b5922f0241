"""Where files lie: packed ones are unpacked once into the cache, ~ is the home folder, TFF's own folder is known.

TFF's file names are those of its download module and its loaders (tensorflow_federated/python/simulation/datasets/
download.py, emnist.py, shakespeare.py, stackoverflow.py): it unpacks NAME.sqlite.lzma to ~/.tff/NAME.sqlite.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import stat
import tarfile
from pathlib import Path

import numpy as np
import pytest

from client.data import load, made
from client.data.packed import unpacked
from fedmf.errors import DataError

PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda data: lzma.compress(data, format=lzma.FORMAT_ALONE),  # what TFF distributes
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def texts() -> bytes:
    """Return JSON lines of two users of five lines each."""
    return "".join(json.dumps({"user": "ab"[n % 2], "text": "to be"}) + "\n" for n in range(10)).encode()


def arrays(path: Path) -> Path:
    """Write by_user_npz's arrays, twenty rows of two users."""
    with path.open("wb") as file:
        np.savez(file, x=np.arange(20.0)[:, None], y=np.arange(20) % 2, user=np.arange(20) % 2)
    return path


@pytest.mark.parametrize("kind", PACKERS)
def test_a_packed_file_is_read_as_what_it_packs(tmp_path: Path, kind: str) -> None:
    (tmp_path / "plain.jsonl").write_bytes(texts())
    (tmp_path / f"data.jsonl.{kind}").write_bytes(PACKERS[kind](texts()))
    plain = load("by_user_text", path=str(tmp_path / "plain.jsonl"))
    packed = load("by_user_text", path=str(tmp_path / f"data.jsonl.{kind}"))
    assert [len(client) for client in packed.clients] == [4, 4]
    np.testing.assert_array_equal(packed.test.x, plain.test.x)


def test_every_loader_of_one_file_takes_it_packed_and_so_does_a_vocabulary(tmp_path: Path) -> None:
    arrays(tmp_path / "data.npz")
    (tmp_path / "data.npz.bz2").write_bytes(bz2.compress((tmp_path / "data.npz").read_bytes()))
    assert len(load("by_user_npz", path=str(tmp_path / "data.npz.bz2")).clients) == 2
    (tmp_path / "texts.jsonl").write_bytes(texts())
    (tmp_path / "words.xz").write_bytes(lzma.compress(b"to\nbe\n"))
    dataset = load("by_user_text", path=str(tmp_path / "texts.jsonl"), vocabulary=str(tmp_path / "words.xz"))
    assert dataset.classes == 6
    assert str(tmp_path / "words.xz") in dataset.notes[0]  # and not its unpacked form


def test_unpacking_happens_once_in_the_cache_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    source = tmp_path / "data" / "data.jsonl.gz"
    source.write_bytes(gzip.compress(texts()))
    first = unpacked(source)
    assert first.read_bytes() == texts()
    assert first.is_relative_to(tmp_path / "cache" / "data")
    assert [entry.name for entry in source.parent.iterdir()] == ["data.jsonl.gz"]
    captured = capsys.readouterr()
    assert captured.err.count(f"unpacking {source}") == 1
    assert captured.out == ""
    before = first.stat().st_mtime_ns
    assert unpacked(source) == first
    assert first.stat().st_mtime_ns == before
    assert capsys.readouterr().err == ""


def test_other_content_under_the_same_name_is_unpacked_anew(tmp_path: Path) -> None:
    source = tmp_path / "data.txt.gz"
    source.write_bytes(gzip.compress(b"one"))
    old = os.stat(source)
    assert unpacked(source).read_bytes() == b"one"
    source.write_bytes(gzip.compress(b"two"))
    os.utime(source, ns=(old.st_atime_ns, old.st_mtime_ns))  # as a copy that keeps times does
    assert unpacked(source).read_bytes() == b"two"


def test_a_digest_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(made, "_SETTLED", -1.0)
    file = tmp_path / "big"
    file.write_bytes(b"content")
    digest = made.digest_of(file)
    (note,) = (tmp_path / "cache" / "data" / "digests").iterdir()
    note.write_text("0" * 64)
    assert made.digest_of(file) == "0" * 64  # not read again
    file.write_bytes(b"contents")
    assert made.digest_of(file) not in (digest, "0" * 64)


def test_what_is_unpacked_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    source = tmp_path / "data.txt.gz"
    source.write_bytes(gzip.compress(b"private"))
    folder = unpacked(source).parent
    for private in (folder, tmp_path / "cache" / "data"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", PACKERS)
def test_a_damaged_file_is_a_sentence_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    whole = PACKERS[kind](texts() * 100)
    for damaged in (whole[: len(whole) // 2], b"something else"):
        path = tmp_path / f"data.jsonl.{kind}"
        path.write_bytes(damaged)
        with pytest.raises(
            DataError, match=rf"data\.jsonl\.{kind} cannot be read: it is no whole \.{kind} file"
        ):
            load("by_user_text", path=str(path))
    left = [entry.name for entry in (tmp_path / "cache" / "data").iterdir() if entry.is_dir()]
    assert left in ([], ["digests"])


def test_a_cache_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDMF_CACHE", str(tmp_path / "file"))
    (tmp_path / "data.txt.gz").write_bytes(gzip.compress(b"content"))
    with pytest.raises(DataError, match="FEDMF_CACHE to a folder that can be written"):
        unpacked(tmp_path / "data.txt.gz")


def test_a_disk_without_room_is_no_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "big.txt.gz").write_bytes(gzip.compress(bytes(10**6)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(DataError, match=r"prepared in .*cache/data \(File too large\); .* has room"):
            unpacked(tmp_path / "big.txt.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert unpacked(tmp_path / "big.txt.gz").stat().st_size == 10**6


def archive(path: Path, **files: bytes) -> Path:
    """Write a tar archive, packed by what `path` is called."""
    with tarfile.open(path, f"w:{path.suffix[1:]}") as target:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    return path


def test_a_tar_archive_becomes_a_folder_or_its_only_entry(tmp_path: Path) -> None:
    folder = unpacked(archive(tmp_path / "two.tar.bz2", a_train=b"1", a_test=b"2"))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {"a_train": b"1", "a_test": b"2"}
    leaf = unpacked(archive(tmp_path / "leaf.tar.gz", top__train=b"1", top__test=b"2"))
    assert (leaf.name, sorted(file.name for file in leaf.iterdir())) == ("top", ["test", "train"])


@pytest.mark.parametrize("name", ["..__outside", "__outside", "a__..__..__outside"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "evil.tar.gz", **{name: b"1"})
    with pytest.raises(DataError, match="no plain file below the archive"):
        unpacked(path)
    assert not list(tmp_path.rglob("outside"))


def test_an_error_names_the_file_that_was_given_and_not_its_copy(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl.gz").write_bytes(gzip.compress(b'{"user": 1}\n'))
    with pytest.raises(DataError) as caught:
        load("by_user_text", path=str(tmp_path / "data.jsonl.gz"))
    assert str(tmp_path / "data.jsonl.gz") in str(caught.value)
    assert "cache" not in str(caught.value)


def test_a_tilde_is_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    arrays(tmp_path / "home" / "data.npz")
    assert len(load("by_user_npz", path="~/data.npz").clients) == 2


def test_a_loader_of_ones_own_gets_its_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packed_loader.py").write_text(
        "from pathlib import Path\nfrom client.data import Dataset, load as built\n"
        "def load(path: str) -> Dataset:\n    assert path.endswith('data.own.gz'), path\n"
        "    assert Path(path).read_bytes() == b'mine'\n    return built('digits')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data.own.gz").write_bytes(b"mine")
    assert load("packed_loader:load", path="~/data.own.gz").name == "digits"


@pytest.mark.parametrize(("name", "mode"), [("a.tgz", "gz"), ("a.tbz2", "bz2"), ("a.txz", "xz")])
def test_an_archive_is_known_by_its_short_suffix_and_loses_what_macos_added(
    tmp_path: Path, name: str, mode: str
) -> None:
    packed = archive(tmp_path / f"b.{mode}", **{"._top": b"0", "top__data": b"1", "top__._data": b"2"})
    folder = unpacked(packed.rename(tmp_path / name))
    assert (folder.name, [file.name for file in folder.iterdir()]) == ("top", ["data"])
