"""Every loader answers every broken file with a sentence that names it; one user's values fail that client alone."""

import gzip
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import small_files
from client.data import load
from damage import (
    BOB,
    COUNT,
    CSV,
    DEEP,
    HEAD,
    INTEGER_PIXELS,
    LINES,
    NO_TEXTS,
    OBJECT,
    ODD_USERS,
    TABLE,
    altered,
    arrays,
    bob_as,
    bobs_line,
    changed_hdf5,
    cut_in_half,
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
    ("npz", arrays(x=np.zeros((COUNT, 2), "c8")), "complex64; it must hold uint8"),
    ("npz", arrays(x=np.zeros((COUNT, 0))), "each size at least 1"),
    ("npz", arrays(x=np.zeros(COUNT)), "shape"),
    ("npz", arrays(y=np.zeros(COUNT - 1, int)), "y in .* shape"),
    ("npz", arrays(y=np.zeros(COUNT)), "integer labels"),
    ("npz", arrays(user=np.full(COUNT, np.nan)), "integers or strings"),
    ("npz", arrays(split=np.full(COUNT, np.nan)), "0 .train. or 1"),
    ("npz", arrays(split=np.ones(COUNT, int)), "no training example"),
    ("npz", arrays(x=np.full((COUNT, 2), np.nan)), "test set .* not finite"),
    ("npz", arrays(y=np.full(COUNT, -1)), "A test example .* label -1"),
    ("npz", arrays(y=np.full(COUNT, 2**40)), "labels count from 0. Set classes"),
    ("npy", text(b"", "x.npy"), "cannot be read as arrays"),
    ("npy", text(HEAD + b"\x10\x00{'descr': (((((", "x.npy"), "cannot be read as arrays"),
    ("npy", text(HEAD + b"\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 4)}", "x.npy"),
     "cannot be read as arrays"),
    ("npy", lambda path: [file.unlink() for file in path.iterdir()], "holds nothing"),
    ("dealt", arrays(y=np.zeros(COUNT)), "integer labels"),
    ("dealt", arrays(x=OBJECT[:, None]), "cannot be read as arrays"),
    ("dealt", arrays(x=np.full((COUNT, 2), np.inf)), "test set .* not finite"),
    ("jsonl", text(""), "is empty"),
    ("jsonl", text(DEEP), "Line 1 .*RecursionError"),
    ("jsonl", text(LINES + '{"user": ' + "9" * 5000 + ', "text": "a"}'), "texts.jsonl names a user by float .entry 1?9.; a user is a text or a whole number"),
    ("jsonl", text(b"\xff\xfe\x00" + LINES.encode()), "UTF-8"),
    ("jsonl", text(LINES + '{"user": "a", "text": null, "split": 1}'), "Row 19 .* is a test row and holds no text"),
    ("jsonl", text(LINES.replace('"text"', '"body"')), "No line of .* has text or tokens"),
    ("jsonl", text(LINES + '{"user": null, "text": "a", "split": 0}'), "names a user by NoneType"),
    ("jsonl", text(LINES + '{"user": true, "text": "a", "split": 0}'), "names a user by bool"),
    ("jsonl", text(LINES + '{"user": "a\\u0000", "text": "a", "split": 0}'), "character 0"),
    ("jsonl", text(LINES + '{"user": "", "text": "a", "split": 0}'), "not empty"),
    ("jsonl", text(LINES + '{"user": "a", "text": "a", "split": 2}'), "on every line"),
    ("gz", text(gzip.compress(LINES.encode())[:-20]), r"texts.jsonl.gz cannot be read as lines of UTF-8 text \(EOFError"),
    ("gz", text(gzip.compress(b"ab")[:12] + b"\xff" * 40), r"cannot be read as lines of UTF-8 text"),
    ("femnist_hdf5", lambda path: [f.unlink() for f in path.iterdir()] and small_files.hdf5(path, "shakespeare"),
     "lacks|holds 0 files"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.pop("examples")), "no group examples"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.pop("examples/bob") and file.create_group("examples/bob")),
     "'bob' .* lacks pixels; it must hold pixels, label"),
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
    ("femnist_sqlite", altered(*TABLE), "holds no example in the split"),
    ("femnist_sqlite", altered("DELETE FROM client_metadata"), "no clients in the split"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = NULL"), "names a client by what is no text"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = CAST(x'ff' AS TEXT)"), "decode"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = x''"), "lacks pixels"),
    ("femnist_sqlite", lambda path: path.unlink() or small_files.sqlite(path, "shakespeare"), "lacks pixels|split"),
    ("femnist_sqlite", altered(f"UPDATE examples SET serialized_example_proto = x'{INTEGER_PIXELS}'"),
     "pixels that are not 0"),
    ("femnist_leaf", text("[1]", "train/all_data.json"), "user_data"),
    ("femnist_leaf", text(DEEP, "train/all_data.json"), "RecursionError"),
    ("femnist_leaf", text('{"user_data": {}}', "train/all_data.json"), "holds no examples"),
    ("femnist_leaf", leaf(None, "shakespeare"), "784 pixels"),
    ("femnist_leaf", lambda path: text('{"user_data": {"a": {"x": [[0.5]], "y": [1]}}}', "test/all_data.json")(path),
     "784 pixels"),
    ("femnist_parquet", text(b"PAR1", "train.parquet"), "cannot be read as parquet"),
    ("femnist_parquet", parquet(writer_id=[None] * COUNT), "has no writer_id"),
    ("femnist_parquet", parquet(writer_id=[2.5] * COUNT), "names a user by float"),
    ("femnist_parquet", parquet(image=[None] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(character=[62] * COUNT), "test set .* label 62"),
    ("femnist_parquet", parquet(image=[], writer_id=[], character=[]), "holds no rows"),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("bob", "snippets", [1, 2])), "int64 .* texts"),
    ("shakespeare_hdf5", changed_hdf5("test", replaced("bob", "snippets", [b"\xff"])), "cannot be read as UTF-8"),
    ("shakespeare_leaf", lambda path: small_files.leaf(path, "femnist"), "is no text"),
    ("shakespeare_csv", text(b"", "shakespeare.csv"), "cannot be read as CSV in UTF-8"),
    ("shakespeare_csv", text("character_id,x,y\n", "shakespeare.csv"), "lacks|no rows"),
    ("shakespeare_csv", text(CSV + "bob\n", "shakespeare.csv"), "cannot be read as CSV in UTF-8"),
    ("stackoverflow_hdf5", changed_hdf5("train", lacking("bob", "tokens")), "'bob' .* lacks tokens"),
    ("stackoverflow_sqlite", altered("UPDATE examples SET serialized_example_proto = x'12345678'"), "tf.train.Example"),
]  # fmt: skip
# One user's values: (form, what breaks them, what reading the client says).
VALUES = [
    ("npz", arrays(x=np.where(np.arange(COUNT)[:, None] == 7, np.nan, 0.5) * np.ones(4)), "not finite"),
    ("npz", arrays(y=np.where(np.arange(COUNT) == 7, 3, np.arange(COUNT) % 6 % 3)), "label 3; .* 0 to 2"),
    ("npz", arrays(y=np.where(np.arange(COUNT) == 7, -1, np.arange(COUNT) % 6 % 3)), "label -1"),
    *(("jsonl", bobs_line(value), r"token -1 \(-1 stands for what could not be read") for value in NO_TEXTS),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "label", np.full(6, 62))), "label 62; .* 0 to 61"),
    ("femnist_hdf5", changed_hdf5("train", replaced("bob", "label", np.full(5, 1))), "could not be read"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = x'0a' WHERE client_id = 'bob' "
     "AND split_name LIKE '%train'"), "could not be read"),
    ("femnist_sqlite", altered("DELETE FROM examples WHERE client_id = 'bob'"), "could not be read"),
    ("femnist_sqlite", altered(f"UPDATE examples SET serialized_example_proto = x'{INTEGER_PIXELS}' WHERE client_id = "
     "'bob' AND split_name LIKE '%train'"), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(2, 62)), "label 62"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(2, 10**30)), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].pop()), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].__setitem__(0, float("nan"))), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].__setitem__(0, 10**400)), "could not be read"),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["x"].__setitem__(0, 3), "shakespeare"), "could not be read"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, True)), "could not be read"),
    ("femnist_parquet", parquet(character=[None if row == 6 else 3 for row in range(COUNT)]), "could not be read"),
    ("femnist_parquet", parquet(image=[{"bytes": None if row == 6 else small_files.png()["bytes"]} for row in range(COUNT)]),
     "could not be read"),
    ("femnist_parquet", parquet(image=[small_files.png((9, 9)) if row == 6 else small_files.png() for row in range(COUNT)]),
     "could not be read"),
    ("femnist_parquet", parquet(image=[small_files.png(mode="P") if row == 6 else small_files.png() for row in range(COUNT)]),
     "could not be read"),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("bob", "snippets", [b"fine", b"\xff"])), "could not be read"),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["x"].__setitem__(0, "short"), "shakespeare"), "could not be read"),
    ("shakespeare_csv", text(CSV.replace(BOB, BOB.replace("to be", "be")), "shakespeare.csv"), "could not be read"),
    ("stackoverflow_hdf5", changed_hdf5("train", replaced("bob", "tokens", [b"\xff"])), "could not be read"),
    ("stackoverflow_sqlite", altered("UPDATE examples SET serialized_example_proto = x'' WHERE client_id = 'bob' "
     "AND split_name = 'train'"), "could not be read"),
    *(("femnist_leaf", bob_as(value), "could not be read") for value in ODD_USERS),
    *(("shakespeare_leaf", bob_as(value), "could not be read") for value in ODD_USERS[:4]),
]  # fmt: skip


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


@pytest.mark.parametrize(("form", "damage", "sentence"), VALUES, ids=[f"{row[0]}-{row[2]}" for row in VALUES])
def test_one_users_values_fail_that_client_alone_and_only_when_it_is_read(
    tmp_path: Path, form, damage, sentence
) -> None:
    given = small_files.settings(form, tmp_path)
    damage(Path(given["path"]))
    dataset = load(**given)
    assert len(dataset.clients) == 3
    for other in (0, 2):
        assert len(dataset.clients[other]) > 0
    with pytest.raises(DataError, match=sentence) as raised:
        dataset.clients[1]
    assert "client 1" in str(raised.value) or str(tmp_path) in str(raised.value)
    with pytest.raises(DataError, match=sentence):
        dataset.clients[0:2]


@pytest.mark.parametrize("odd", ODD_USERS)
def test_a_test_user_of_leaf_who_cannot_be_read_is_refused_and_may_have_no_examples(
    tmp_path: Path, odd: str
) -> None:
    given = small_files.settings("femnist_leaf", tmp_path)
    bob_as(odd, "test")(Path(given["path"]))
    if "[], " in odd:
        assert len(load(**given).test) == 2 * small_files.ROWS
    else:
        with pytest.raises(DataError, match="'bob'"):
            load(**given)


def test_what_could_not_be_read_is_said_on_this_machines_stderr(tmp_path: Path, caplog) -> None:
    given = small_files.settings("femnist_leaf", tmp_path)
    leaf(lambda data: data["bob"]["x"][2].pop())(Path(given["path"]))
    load(**given)
    assert "1 noted" in caplog.text
    assert "'bob'" in caplog.text


@pytest.mark.parametrize("form", ["jsonl", "shakespeare_csv"])
def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path: Path, form: str) -> None:
    given = small_files.settings(form, tmp_path)
    before = load(**given)
    file = next(file for file in sorted(tmp_path.rglob("*")) if file.suffix in (".jsonl", ".csv"))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    after = load(**given)
    np.testing.assert_array_equal(after.test.x, before.test.x)
    for one, other in zip(after.clients, before.clients, strict=True):
        np.testing.assert_array_equal(one.x, other.x)


def test_values_of_training_users_are_not_looked_at_when_a_file_is_loaded(tmp_path: Path) -> None:
    """All of them bad, none of the test examples: whether a run happens must not depend on values."""
    held = small_files.arrays()
    training = held["split"] == 0
    x, y = held["x"].copy(), held["y"].copy()
    x[training], y[training] = np.nan, 77
    path = small_files.npz(tmp_path / "data.npz", x=x, y=y)
    dataset = load("by_user_npz", path=str(path))
    assert (len(dataset.clients), dataset.classes) == (3, 3)


def test_a_test_line_without_a_text_and_a_line_without_a_user_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    for record, sentence in (
        ({"user": "ann", "split": 1}, r"Row 19 of .*texts\.jsonl is a test row and holds no text"),
        ({"text": "to", "split": 0}, r"Line 20 of .*texts\.jsonl must be an object with user and text"),
    ):
        path.write_text(LINES + "\n" + json.dumps(record) + "\n")
        with pytest.raises(DataError, match=sentence):
            load("by_user_text", path=str(path))


def test_a_line_whose_text_is_no_text_changes_nothing_for_its_neighbours_and_is_said_on_stderr(
    tmp_path: Path, caplog
) -> None:
    """With a public vocabulary, so that nothing is learnt from the lines."""
    given = small_files.settings("jsonl", tmp_path)
    whole = load(**given)
    for number, values in enumerate(NO_TEXTS, start=1):
        small_files.jsonl(Path(given["path"]))
        bobs_line(values)(Path(given["path"]))
        odd = load(**given)
        assert (odd.classes, odd.uncovered, odd.notes) == (whole.classes, whole.uncovered, whole.notes)
        for one, other in (
            (odd.clients[0], whole.clients[0]),
            (odd.clients[2], whole.clients[2]),
            (odd.test, whole.test),
        ):
            np.testing.assert_array_equal(one.x, other.x)
            np.testing.assert_array_equal(one.y, other.y)
        assert caplog.text.count(f"text or tokens on line 7 of {given['path']} must be a string") == number
