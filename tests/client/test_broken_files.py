"""Every loader answers every broken file with a sentence that names it; one user's values fail that client alone."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import small_files
from client.data import load
from fedmf.errors import DataError
from written_data import serialise

FORMS = sorted(small_files.FORMS)


def damage(function):
    """Return `function(path, how...)` as a function of how, which returns one of the path."""
    return lambda *how, **more: lambda path: function(path, *how, **more)


arrays, parquet, own_csv, own_parquet = map(
    damage, (small_files.npz, small_files.parquet, small_files.own_csv, small_files.own_parquet)
)
leaf = damage(lambda path, change, name="femnist": small_files.leaf(path, name, change))


@damage
def altered(path, *sql):
    with closing(sqlite3.connect(path)) as file:
        file.executescript(";".join(sql))


@damage
def changed_hdf5(path, split, change):
    """Alter the HDF5 file of one split in a folder."""
    with h5py.File(next(path.glob(f"*_{split}.h5")), "r+") as file:
        change(file)


@damage
def replaced(file, column, values=None):
    """Replace a column of bob in an HDF5 file, or take it out."""
    del file[f"examples/bob/{column}"]
    if values is not None:
        file[f"examples/bob/{column}"] = values


def broken_link(file):
    """Put a link to nothing in the place of bob in an HDF5 file."""
    del file["examples/bob"]
    file["examples/bob"] = h5py.SoftLink("/no")


@damage
def text(path, content, at=""):
    """Replace a file by `content`; `at` names it in a folder."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    (path / at if at else path).write_bytes(data)


@damage
def bobs_line(path, values, split=0):
    """Give a line of JSON lines these `values`, as JSON, instead of its text."""
    lines = path.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if '"bob"' in line)
    lines[place] = f'{{"user": "bob", {values}"split": {split}}}'
    path.write_text("\n".join(lines))


@damage
def bob_as(path, value, split="train"):
    """Put the JSON text `value` in the place of bob in a LEAF folder."""
    file = path / split / "all_data.json"
    document = json.loads(file.read_text())
    document["user_data"]["bob"] = "BOB"
    file.write_text(json.dumps(document).replace('"BOB"', value))


def with_spoilt_text(path):
    """Write the hub's CSV as parquet, in which a text of bob is not UTF-8."""
    (path / "shakespeare.csv").unlink()
    names, *lines = [line.split(",") for line in small_files.PLAYS.splitlines()]
    columns = dict(zip(names, zip(*lines, strict=True), strict=True))
    table = pyarrow.table(columns | {"x": small_files.spoilt(columns["x"], 7)})
    pyarrow.parquet.write_table(table, path / "shakespeare.parquet")


def with_cell(column, row, value):
    """Return a column of a table of one's own with another cell; bob's rows are 6 to 11, the last one a test row."""
    return {column: [value if n == row else f" {held}" for n, held in enumerate(small_files.table()[column])]}


def no_utf8(row):
    """Return columns of texts in which the one of a row is not UTF-8: texts, lists of tokens, a dictionary, a view."""
    texts, places = (
        small_files.spoilt(TEXTS, row),
        pyarrow.array([int(n == row) for n in range(COUNT)], pyarrow.int8()),  # as a category of pandas
    )
    view = texts.view(pyarrow.binary()).cast(pyarrow.binary_view()).view(pyarrow.string_view())
    lists = pyarrow.ListArray.from_arrays(pyarrow.array(range(COUNT + 1), pyarrow.int32()), texts)
    return texts, lists, pyarrow.DictionaryArray.from_arrays(places, small_files.spoilt(TEXTS[:2], 1)), view


DEEP = "[" * 100_000
COUNT = len(small_files.USERS) * small_files.ROWS
OBJECT = np.array([{"a": 1}] * COUNT, dtype=object)
TABLE = (
    "DROP TABLE examples",
    "CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)",
)
INTEGER_PIXELS = serialise(pixels=np.full(784, 200), label=1).hex()
BOB = f"bob,{small_files.LINE},a\n"
WHOLE, NESTED = "9" * 5000, "[" * 100_000 + "]" * 100_000  # JSON that Python does not read
NO_TEXTS = (
    "", '"text": null, ', '"text": 3, ', '"text": ["to"], ', '"tokens": null, ', '"tokens": [1, null], ', '"tokens": {"b": 1}, ',
    '"text": "to", "tokens": 3, ', '"text": null, "tokens": "to", ', f'"text": {WHOLE}, ', f'"text": {NESTED}, ',
    f'"tokens": [{NESTED}], ', f'"tokens": {{"a": {NESTED}}}, ', f'"tokens": -{WHOLE}, ',
)  # fmt: skip
UNREAD = "could not be read"
TEXTS = [small_files.LINE] * COUNT
NO_NUMBERS = ("-", "yes", "1,5", "1e", None)
HEAD = b"\x93NUMPY\x01\x00"


PIXELS = json.dumps([0.5] * 784)
ODD_USERS = (
    "null",
    "[1]",
    NESTED,
    '{"x": [], "y": []}',
    f'{{"x": [{PIXELS}], "y": [{WHOLE}]}}',
    f'{{"x": [[{NESTED}{", 0.5" * 783}]], "y": [1]}}',
)
"""What may stand for a user in a LEAF file, as JSON, and is no examples."""


MALFORMED = [
    ("{", "Line 1 .* cannot be read as JSON"),
    ('{"user": "a"}', "no user has five"),
    ('["a"]', "user and text"),
    ('{"text": "b"}', "user and text"),
    ('{"user": "a", "text": "b", "split": 0}', "has no test example; mark some with split = 1"),
    ('{"user": "a", "text": "b", "split": 0}\n{"user": "a", "text": "b"}', "on every line, or on none"),
]
# What is public: (form, what breaks it, what the sentence says).
BROKEN = [
    ("npz", text(b""), "no .npz file"),
    ("npz", arrays(x=None), "lacks x"),
    ("npz", arrays(x=OBJECT[:, None]), "cannot be read as arrays"),
    ("npz", arrays(x=np.zeros((COUNT, 2), "c8")), "complex64; it must hold uint8"),
    ("npz", arrays(x=np.zeros((COUNT, 0))), "each size at least 1"),
    ("npz", arrays(y=np.zeros(COUNT - 1, int)), "y in .* shape"),
    ("npz", arrays(y=np.zeros(COUNT)), "one integer an example"),
    ("npz", arrays(split=np.full(COUNT, np.nan)), "0 .train. or 1"),
    ("npz", arrays(split=np.ones(COUNT, int)), "no training example"),
    ("npz", arrays(x=np.full((COUNT, 2), np.nan)), "test set .* not finite"),
    ("npz", arrays(y=np.full(COUNT, -1)), "A test example .* label -1"),
    ("npz", arrays(y=np.full(COUNT, 2**40)), "labels count from 0. Set classes"),
    ("npy", text(HEAD + b"\x46\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 4)}", "x.npy"),
     "cannot be read as arrays"),
    ("npy", lambda path: [file.unlink() for file in path.iterdir()], "holds nothing"),
    ("jsonl", text(""), "is empty"),
    ("jsonl", text(DEEP), "Line 1 .*RecursionError"),
    ("jsonl", text(small_files.LINES + f'{{"user": {WHOLE}, "text": "a"}}'), "names a user by float .entry 1?9.; a user is a text or a"),
    ("jsonl", text(b"\xff\xfe\x00" + small_files.LINES.encode()), "UTF-8"),
    *(("jsonl", bobs_line(values, split=1), "holds no text in row 7, a test row") for values in NO_TEXTS),
    ("jsonl", text(small_files.LINES + '\n{"text": "to", "split": 0}'), r"Line 20 of .*texts\.jsonl must be an object with user and text"),
    ("jsonl", text(small_files.LINES + '{"user": null, "text": "a", "split": 0}'), "names a user by NoneType"),
    ("jsonl", text(small_files.LINES + '{"user": "a\\u0000", "text": "a", "split": 0}'), "character 0"),
    ("jsonl", text(small_files.LINES + '{"user": "", "text": "a", "split": 0}'), "not empty"),
    ("jsonl", text(small_files.LINES + '{"user": "a", "text": "a", "split": 2}'), "on every line"),
    *(("jsonl", text(lines), sentence) for lines, sentence in MALFORMED),
    ("gz", text(gzip.compress(small_files.LINES.encode())[:-20]), r"texts.jsonl.gz cannot be read as lines of UTF-8 text \(EOFError"),
    *(("own_csv", own_csv(**with_cell("x0", 11, odd)), "holds no number in row 12, a test row|test set .* not finite") for odd in NO_NUMBERS[:-1]),
    ("own_csv", own_csv(**with_cell("x0", 11, None)), "'x0' of .* is empty in row 12, a test row; every test row must have a number"),
    *(("own_texts", own_parquet(said=texts), "in row 12, a test row") for texts in no_utf8(11)),
    *(("own_texts", own_parquet(said=[*([["to"]] * 17), empty]), "holds no text in row 18, a test row") for empty in (None, ["to", None])),
    ("femnist_hdf5", lambda path: [f.unlink() for f in path.iterdir()] and small_files.hdf5(path, "shakespeare"), "lacks"),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.pop("examples")), "no group examples"),
    ("femnist_hdf5", changed_hdf5("test", replaced("label", np.full(6, 62))), "test set .* label 62"),
    ("femnist_hdf5", changed_hdf5("test", replaced("label", np.full(5, 2))), "'bob': it must hold pixels, label of one len"),
    ("femnist_hdf5", changed_hdf5("test", replaced("pixels", np.full((6, 28, 28), np.nan, "f4"))), "pixels that"),
    ("femnist_sqlite", altered(*TABLE), "holds no examples in its split train"),
    ("femnist_sqlite", altered("DELETE FROM client_metadata"), "no clients in the split"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = NULL"), "holds no examples"),
    ("femnist_sqlite", altered("UPDATE client_metadata SET client_id = CAST(x'ff' AS TEXT)"), "decode"),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = x''"), "lacks pixels"),
    ("femnist_sqlite", altered(f"UPDATE examples SET serialized_example_proto = x'{INTEGER_PIXELS}'"), "pixels that are not 0"),
    ("femnist_leaf", text("[1]", "train/all_data.json"), "user_data"),
    ("femnist_leaf", text(DEEP, "train/all_data.json"), "RecursionError"),
    ("femnist_leaf", text('{"user_data": {}}', "train/all_data.json"), "holds no examples"),
    ("femnist_leaf", leaf(None, "shakespeare"), "784 pixels"),
    *(("femnist_leaf", bob_as(value, "test"), "'bob'") for value in ODD_USERS if "[], " not in value),
    ("femnist_parquet", text(b"PAR1", "train.parquet"), "cannot be read as parquet"),
    ("femnist_parquet", parquet(writer_id=[None] * COUNT), "names a user by NoneType"),
    ("femnist_parquet", parquet(image=[None] * COUNT), "test set .* could not be read"),
    ("femnist_parquet", parquet(image=[], writer_id=[], character=[]), "holds no examples"),
    ("shakespeare_hdf5", changed_hdf5("test", replaced("snippets", [b"\xff"])), "cannot be read as UTF-8"),
    ("shakespeare_leaf", lambda path: small_files.leaf(path, "femnist"), "is no text"),
    ("shakespeare_csv", text(b"", "shakespeare.csv"), "cannot be read as CSV"),
    ("shakespeare_csv", text("character_id,x,z\na,b,c\n", "shakespeare.csv"), "lacks the column y"),
    ("stackoverflow_sqlite", altered("UPDATE examples SET serialized_example_proto = x'12345678'"), "tf.train.Example"),
]  # fmt: skip
# One user's values: (form, what breaks them, what reading the client says).
VALUES = [
    ("npz", arrays(x=np.where(np.arange(COUNT)[:, None] == 7, np.nan, 0.5) * np.ones(4)), "not finite"),
    ("npz", arrays(y=np.where(np.arange(COUNT) == 7, 3, np.arange(COUNT) % 6 % 3)), "label 3; .* 0 to 2"),
    *(("jsonl", bobs_line(value), "a token that could not be read") for value in NO_TEXTS),
    *(("own_csv", own_csv(**with_cell("x0", 7, odd)), "client 1 .* inputs that are not finite") for odd in NO_NUMBERS[:-1]),
    ("own_parquet", own_parquet(x0=[1e300 if n == 7 else 0.5 for n in range(COUNT)]), "not finite"),
    *(("own_texts", own_parquet(said=texts), UNREAD) for texts in no_utf8(7)),
    *(("own_texts", own_parquet(said=[["to"]] * 7 + [empty] + [["to"]] * 10), "a token that could not be read") for empty in (None, ["to", None])),
    ("femnist_hdf5", changed_hdf5("train", lambda file: file.pop("examples/bob") and file.create_group("examples/bob")), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", replaced("label")), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", replaced("label", 3)), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", replaced("label", np.zeros(6, "f4"))), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", replaced("label", h5py.Empty("i4"))), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", replaced("label", np.full(5, 1))), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", replaced("label", np.full(6, 62))), "label 62; .* 0 to 61"),
    ("femnist_hdf5", changed_hdf5("train", replaced("pixels", np.zeros((6, 27, 28), "f4"))), UNREAD),
    ("femnist_hdf5", changed_hdf5("train", broken_link), UNREAD),
    ("femnist_sqlite", altered("DELETE FROM examples WHERE client_id = 'bob'"), UNREAD),
    *(("femnist_sqlite", altered(f"UPDATE examples SET serialized_example_proto = x'{held}' WHERE client_id = 'bob' "
       "AND split_name LIKE '%train'"), UNREAD) for held in ("", "0a", INTEGER_PIXELS)),
    ("femnist_sqlite", altered("UPDATE examples SET serialized_example_proto = CAST(x'ff' AS TEXT) WHERE client_id = 'bob' "
     "AND split_name LIKE '%train'"), UNREAD),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(2, 62)), "label 62"),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(2, 10**30)), UNREAD),
    ("femnist_leaf", leaf(lambda data: data["bob"]["y"].__setitem__(0, "1")), UNREAD),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].pop()), UNREAD),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].__setitem__(0, float("nan"))), UNREAD),
    ("femnist_leaf", leaf(lambda data: data["bob"]["x"][2].__setitem__(0, 10**400)), UNREAD),
    ("shakespeare_leaf", leaf(lambda data: data["bob"]["x"].__setitem__(0, 3), "shakespeare"), UNREAD),
    ("femnist_parquet", parquet(character=[None if row == 6 else 3 for row in range(COUNT)]), UNREAD),
    *(("femnist_parquet", parquet(image=[odd if row == 6 else small_files.png() for row in range(COUNT)]), UNREAD)
      for odd in (None, {"bytes": None}, small_files.png((9, 9)), small_files.png(mode="P"))),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("snippets", [1, 2])), UNREAD),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("snippets", [b"fine", b"\xff"])), UNREAD),
    ("shakespeare_csv", text(small_files.PLAYS.replace(BOB, BOB.replace("to be", "be")), "shakespeare.csv"), UNREAD),
    ("shakespeare_csv", with_spoilt_text, UNREAD),
    ("stackoverflow_hdf5", changed_hdf5("train", replaced("tokens", [b"\xff"])), UNREAD),
    ("stackoverflow_hdf5", changed_hdf5("train", replaced("tokens")), UNREAD),
    ("shakespeare_hdf5", changed_hdf5("train", replaced("snippets", np.empty(0, "S9"))), UNREAD),
    *(("femnist_leaf", bob_as(value), UNREAD) for value in ODD_USERS),
]  # fmt: skip


@pytest.mark.parametrize(("form", "damage", "sentence"), BROKEN, ids=[f"{row[0]}-{row[2]}" for row in BROKEN])
def test_a_broken_file_is_answered_with_a_sentence_that_names_it(tmp_path, form, damage, sentence):
    given = small_files.settings(form, tmp_path)
    damage(Path(given["path"]))
    with pytest.raises(DataError, match=f"(?s){sentence}") as raised:
        for _ in load(**given).clients:
            pass
    assert str(raised.value).endswith(".")
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value) or "no user has five" in sentence


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_in_half_is_a_data_error(tmp_path, form):
    given = small_files.settings(form, tmp_path)
    path = Path(given["path"])
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 - 13])
    with pytest.raises(DataError, match=r"cannot be read|is no|Row .* cells"):
        load(**given)


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_file_is_read_and_a_path_that_is_missing_a_folder_or_empty_is_a_data_error(tmp_path, form):
    given = small_files.settings(form, tmp_path)
    whole = load(**given)
    assert all(len(examples) > 0 for examples in (whole.test, *whole.clients))
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_bytes(b"")
    for path in (tmp_path / "missing", tmp_path / "folder", tmp_path / "empty", tmp_path / ("n" * 300)):
        with pytest.raises(
            DataError, match=r"does not exist|cannot be read|is no|lacks|holds|is empty|is a folder"
        ):
            load(**given | {"path": str(path)})


@pytest.mark.parametrize(("form", "damage", "sentence"), VALUES, ids=[f"{row[0]}-{row[2]}" for row in VALUES])
def test_one_users_values_fail_that_client_alone_and_only_when_it_is_read(tmp_path, form, damage, sentence):
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


def test_a_test_user_of_leaf_may_have_no_examples(tmp_path):
    given = small_files.settings("femnist_leaf", tmp_path)
    bob_as('{"x": [], "y": []}', "test")(Path(given["path"]))
    assert len(load(**given).test) == 2 * small_files.ROWS


@pytest.mark.parametrize("form", ["jsonl", "shakespeare_csv"])
def test_a_byte_order_mark_and_other_line_ends_change_nothing(tmp_path, form):
    given = small_files.settings(form, tmp_path)
    before = load(**given)
    file = next(file for file in sorted(tmp_path.rglob("*")) if file.suffix in (".jsonl", ".csv"))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    after = load(**given)
    np.testing.assert_array_equal(after.test.x, before.test.x)
    for one, other in zip(after.clients, before.clients, strict=True):
        np.testing.assert_array_equal(one.x, other.x)


def test_a_line_whose_text_is_no_text_changes_nothing_for_its_neighbours_and_is_said_on_stderr(
    tmp_path, caplog
):
    """With a public vocabulary, so that nothing is learnt from the lines."""
    given = small_files.settings("jsonl", tmp_path)
    whole = load(**given)
    bobs_line(NO_TEXTS[5])(Path(given["path"]))
    odd = load(**given)
    assert (odd.classes, odd.uncovered, odd.notes) == (whole.classes, whole.uncovered, whole.notes)
    for one, other in zip(
        [odd.clients[0], odd.clients[2], odd.test], [*whole.clients[::2], whole.test], strict=True
    ):
        np.testing.assert_array_equal(one.x, other.x)
        np.testing.assert_array_equal(one.y, other.y)
    assert f"text or tokens on line 7 of {given['path']} must be a string" in caplog.text
