"""Every loader answers every broken file with a sentence that names it."""

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest

import small_files
from client.data import load
from damage import (
    COUNT,
    CSV,
    DEEP,
    HEAD,
    INTEGER_PIXELS,
    LINES,
    OBJECT,
    TABLE,
    altered,
    arrays,
    changed_hdf5,
    cut_in_half,
    gz,
    lacking,
    leaf,
    member,
    parquet,
    replaced,
    text,
)
from fedmf.errors import DataError

FORMS = sorted(small_files.FORMS)
# What is public: (form, what breaks it, what the sentence says).
BROKEN = [
    ("npz", text(b""), "no .npz file"),
    ("npz", member("more", b"text"), "more, which is no array"),
    ("npz", arrays(x=None), "lacks x"),
    ("npz", arrays(x=OBJECT[:, None]), "cannot be read as arrays"),
    ("npz", arrays(user=OBJECT), "cannot be read as arrays"),
    ("npz", arrays(x=np.zeros((COUNT, 2), "c8")), "complex64; it must be uint8"),
    ("npz", arrays(x=np.zeros((COUNT, 2), "i8")), "int64; it must be uint8"),
    ("npz", arrays(x=np.zeros((COUNT, 0))), "each size at least 1"),
    ("npz", arrays(x=np.zeros((0, 2))), "each size at least 1"),
    ("npz", arrays(x=np.zeros(COUNT)), "shape"),
    ("npz", arrays(y=np.zeros(COUNT - 1, int)), "y in .* shape"),
    ("npz", arrays(y=np.zeros(COUNT)), "integer labels"),
    ("npz", arrays(y=np.int64(3)), "y in .* shape"),
    ("npz", arrays(user=np.full(COUNT, np.nan)), "integers or strings"),
    ("npz", arrays(split=np.full(COUNT, np.nan)), "0 .train. or 1"),
    ("npz", arrays(split=np.full(COUNT, "test")), "0 .train. or 1"),
    ("npz", arrays(split=np.ones(COUNT, int)), "no training example"),
    ("npz", arrays(x=np.full((COUNT, 2), np.nan)), "test set .* not finite"),
    ("npz", arrays(x=np.full((COUNT, 2), 1e300)), "test set .* not finite"),
    ("npz", arrays(y=np.full(COUNT, -1)), "A test example .* label -1"),
    ("npz", arrays(y=np.full(COUNT, 2**40)), "labels count from 0. Set classes"),
    ("npy", text(b"", "x.npy"), "cannot be read as arrays"),
    ("npy", text(HEAD + b"\x10\x00{'descr': (((((", "x.npy"), "cannot be read as arrays"),
    ("npy", text(HEAD + b"\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 4)}", "x.npy"),
     "cannot be read as arrays"),
    ("npy", arrays(x=None), "lacks x"),
    ("npy", lambda path: [file.unlink() for file in path.iterdir()], "holds nothing"),
    ("dealt", arrays(y=np.zeros(COUNT)), "integer labels"),
    ("dealt", arrays(x=OBJECT[:, None]), "cannot be read as arrays"),
    ("dealt", arrays(x=np.full((COUNT, 2), np.inf)), "test set .* not finite"),
    ("dealt", arrays(y=np.full(COUNT, -1)), "A test example .* label -1"),
    ("jsonl", text(""), "is empty"),
    ("jsonl", text(DEEP), "Line 1 .*RecursionError"),
    ("jsonl", text(LINES + '{"user": ' + "9" * 5000 + ', "text": "a"}'), "texts.jsonl names a user by float .entry 1?9.; a user is a text or a whole number"),
    ("jsonl", text(b"\xff\xfe\x00" + LINES.encode()), "UTF-8"),
    ("jsonl", text(LINES + "\0"), "cannot be read as JSON"),
    ("jsonl", text(LINES + '{"user": "a", "text": null, "split": 1}'), "Row 19 .* is a test row and holds no text"),
    ("jsonl", text(LINES + '{"user": "a", "tokens": [1], "split": 1}'), "Row 19 .* is a test row and holds no text"),
    ("jsonl", text(LINES.replace('"text"', '"body"')), "No line of .* has text or tokens"),
    ("jsonl", text(LINES + '{"user": null, "text": "a", "split": 0}'), "names a user by NoneType"),
    ("jsonl", text(LINES + '{"user": NaN, "text": "a", "split": 0}'), "names a user by float"),
    ("jsonl", text(LINES + '{"user": ["a"], "text": "a", "split": 0}'), "names a user"),
    ("jsonl", text(LINES + '{"user": true, "text": "a", "split": 0}'), "names a user by bool"),
    ("jsonl", text(LINES + '{"user": "a\\u0000", "text": "a", "split": 0}'), "character 0"),
    ("jsonl", text(LINES + '{"user": "", "text": "a", "split": 0}'), "not empty"),
    ("jsonl", text(LINES + '{"user": "a", "text": "a", "split": 2}'), "on every line"),
    ("jsonl", text(LINES + '{"user": "a", "text": "a", "split": [1]}'), "on every line"),
    ("gz", text(gzip.compress(LINES.encode())[:-20]), r"texts.jsonl.gz cannot be read as lines of UTF-8 text \(EOFError"),
    ("gz", text(gzip.compress(b"ab")[:12] + b"\xff" * 40), r"cannot be read as lines of UTF-8 text"),
    ("gz", text(LINES), r"cannot be read as lines of UTF-8 text \(BadGzipFile"),
    ("gz", gz(DEEP), "RecursionError"),
    ("femnist_hdf5", lambda path: [f.unlink() for f in path.iterdir()] and small_files.hdf5(path, "shakespeare"),
     "lacks|holds 0 files"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.pop("examples")), "no group examples"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.pop("examples/bob") and file.create_group("examples/bob")),
     "'bob' .* lacks pixels; it holds nothing"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.__setitem__("examples/dan", 3)), "'dan' .* lacks pixels"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.__setitem__("examples/dan", h5py.SoftLink("/no"))),
     "cannot be read as an HDF5 file"),
    ("femnist_hdf5", changed_hdf5("train", lacking("bob", "label")), "'bob' .* lacks label"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "pixels", np.zeros((6, 28, 28), "u1"))), "uint8 .* floats"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "pixels", np.zeros((6, 27, 28), "f4"))), r"\(6, 27, 28\)"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "label", np.zeros(6, "f4"))), "float32 .* integers"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "label", 3)), "must be integers"),
    ("femnist_hdf5", changed_hdf5("test", replaced("bob", "label", np.full(6, 62))), "test set .* label 62"),
    ("femnist_hdf5", changed_hdf5("test", replaced("bob", "label", np.full(5, 2))), "not of one length"),
    ("femnist_hdf5", changed_hdf5("test", replaced("bob", "pixels", np.full((6, 28, 28), np.nan, "f4"))), "pixels that"),
    ("femnist_hdf5", changed_hdf5("test", replaced("bob", "pixels", np.full((6, 28, 28), 200, "f4"))), "pixels that"),
    ("femnist_sqlite", altered("DROP TABLE client_metadata"), "no such table"),
    ("femnist_sqlite", altered("DROP TABLE examples"), "no such table"),
    ("femnist_sqlite", altered(*TABLE), "holds no example in the split"),
    ("femnist_sqlite", altered("DELETE FROM client_metadata"), "no clients in the split"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = NULL"), "names a client by what is no text"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = x'ff'"), "names a client"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = CAST(x'ff' AS TEXT)"), "decode"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = NULL"), "no tf.train.Example"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = x''"), "lacks pixels"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = 'text'"), "no tf.train.Example"),
    ("femnist_sqlite", lambda path: path.unlink() or small_files.sqlite(path, "shakespeare"), "lacks pixels|split"),
    ("femnist_sqlite", altered(f"UPDATE examples SET serialized_example_proto = x'{INTEGER_PIXELS}'"),
     "pixels that are not 0"),
    ("femnist_leaf", text("[1]", "train/all_data.json"), "user_data"),
    ("femnist_leaf", text(DEEP, "train/all_data.json"), "RecursionError"),
    ("femnist_leaf", text('{"user_data": {}}', "train/all_data.json"), "holds no examples"),
    ("femnist_leaf", text(b"\xff", "train/all_data.json"), "cannot be read as JSON"),
    ("femnist_leaf", leaf(None, "shakespeare"), "784 pixels"),
    ("femnist_leaf", lambda path: text('{"user_data": {"a": {"x": [[0.5]], "y": [1]}}}', "test/all_data.json")(path),
     "784 pixels"),
    ("femnist_parquet", text(b"PAR1", "train.parquet"), "cannot be read as parquet"),
    ("femnist_parquet", parquet(writer_id=[None] * COUNT), "has no writer_id"),
    ("femnist_parquet", parquet(writer_id=[2.5] * COUNT), "names a user by float"),
    ("femnist_parquet", parquet(image=[None] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(character=["3"] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(character=[62] * COUNT), "test set .* label 62"),
    ("femnist_parquet", parquet(image=[{"bytes": b"\x89PNG\r\n"}] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(image=[small_files.png((27, 28))] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(image=["a.png"] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(image=[], writer_id=[], character=[]), "holds no rows"),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("bob", "snippets", [1, 2])), "int64 .* texts"),
    ("shakespeare_hdf5", changed_hdf5("test", replaced("bob", "snippets", [b"\xff"])), "cannot be read as UTF-8"),
    ("shakespeare_sqlite", altered("UPDATE examples SET serialized_example_proto = x'0aff'"), "no tf.train.Example"),
    ("shakespeare_leaf", lambda path: small_files.leaf(path, "femnist"), "is no text"),
    ("shakespeare_csv", text(b"", "shakespeare.csv"), "lacks the column character_id"),
    ("shakespeare_csv", text("character_id,x,y\n", "shakespeare.csv"), "lacks|no rows"),
    ("shakespeare_csv", text(CSV + "bob\n", "shakespeare.csv"), "Row 19 .* cells"),
    ("shakespeare_csv", text(CSV + "bob,a,b,c\n", "shakespeare.csv"), "Row 19 .* cells"),
    ("shakespeare_csv", text(b"\xff" + CSV.encode(), "shakespeare.csv"), "CSV in UTF-8"),
    ("shakespeare_csv", text(CSV + 'bob,"' + "a" * 200_000 + '",b\n', "shakespeare.csv"), "CSV in UTF-8"),
    ("shakespeare_csv", text(CSV.replace(small_files.LINE, "short"), "shakespeare.csv"), "test set .* could not be read"),
    ("stackoverflow_hdf5", changed_hdf5("train", lacking("bob", "tokens")), "'bob' .* lacks tokens"),
    ("stackoverflow_hdf5", changed_hdf5("train", replaced("bob", "tokens", [1.5])), "float64 .* texts"),
    ("stackoverflow_sqlite", altered("DROP TABLE examples"), "no such table"),
    ("stackoverflow_sqlite", altered("UPDATE examples SET serialized_example_proto = x'12345678'"), "tf.train.Example"),
]  # fmt: skip  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_the_files_are_valid_before_they_are_broken(tmp_path: Path, form: str) -> None:
    dataset = load(**small_files.settings(form, tmp_path))
    assert len(dataset.test) > 0
    assert all(len(client) > 0 for client in dataset.clients)


@pytest.mark.parametrize(("form", "damage", "sentence"), BROKEN, ids=[f"{row[0]}-{row[2]}" for row in BROKEN])
def test_a_broken_file_is_answered_with_a_sentence_that_names_it(
    tmp_path: Path, form, damage, sentence
) -> None:
    given = small_files.settings(form, tmp_path)
    damage(Path(given["path"]))
    with pytest.raises(DataError, match=f"(?s){sentence}") as raised:
        for _ in load(**given).clients:
            pass
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_in_half_is_a_data_error(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    cut_in_half(Path(given["path"]))
    with pytest.raises(DataError, match=r"cannot be read|is no|Row .* cells"):
        load(**given)


@pytest.mark.parametrize("form", FORMS)
def test_a_path_that_is_missing_a_folder_or_an_empty_file_is_a_data_error(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path / "missing", tmp_path / "folder", tmp_path / "empty", tmp_path / ("n" * 300)):
        with pytest.raises(
            DataError, match=r"does not exist|cannot be read|is no|lacks|holds|is empty|is a folder"
        ):
            load(**given | {"path": str(path)})
