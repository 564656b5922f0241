"""Tables of one's own: the same rows as CSV, parquet and a Hugging Face dataset give the same clients, or the same sentence."""

import json
from decimal import Decimal
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

import small_files
from client.data import load
from fedmf.errors import DataError, SettingError
from small_files import assert_fails_alone, in_every_form, opened, png, rows, spoilt

Rows = dict[str, list[Any]]
COUNT = len(small_files.USERS) * small_files.ROWS


def places(dataset):
    """Return which rows each client holds, by the feature `place`."""
    return [client.x[:, 0].astype(int).tolist() for client in dataset.clients]


@in_every_form
def test_clients_are_the_users_of_the_training_rows_in_the_order_of_their_names(tmp_path, form):
    dataset = opened(tmp_path, form, rows())
    assert places(dataset) == [[2, 5, 8], [1, 4, 7], [0, 3, 6]]  # 7, ann, bob
    ann = dataset.clients[1]
    assert (ann.x.dtype, ann.x.tolist()) == (np.float32, [[1, 0.25], [4, 1.0], [7, 1.75]])
    assert (ann.y.dtype, ann.y.tolist()) == (np.int64, [1, 0, 1])
    assert (dataset.test.x[:, 0].tolist(), dataset.test.y.tolist()) == ([9, 10, 11], [1, 0, 1])
    assert (dataset.input_shape, dataset.classes, dataset.unit) == ((2,), 2, "one user = one client")
    assert [sentence[:26] for sentence in dataset.uncovered] == ["3 of 3 users of the test s"]


@in_every_form
def test_columns_have_the_names_that_one_gives_them(tmp_path, form):
    table = {f"my_{name}": values for name, values in rows().items()}
    names = {"user": "my_user", "label": "my_label", "split": "my_split"}
    dataset = opened(tmp_path, form, table, **names, features=["my_height", "my_place"])
    assert (dataset.clients[0].x[:, 1].tolist(), len(dataset.test)) == ([2, 5, 8], 3)
    del table["my_split"]
    table = {name.removeprefix("my_"): [*values, *values] for name, values in table.items()}
    whole = opened(
        tmp_path, form, table | {"user": ["7", "007", "7.0"] * 8}, examples_per_client=5, classes=2
    )
    assert [len(client) for client in whole.clients] == [5, 2] * 3  # a fifth of eight is one
    assert "not the user" in whole.unit


def test_users_may_be_whole_numbers_and_then_count_in_their_order(tmp_path):
    dataset = opened(tmp_path, "parquet", rows() | {"user": [10, 9, 10**12] * 4})
    assert places(dataset)[:2] == [[1, 4, 7], [0, 3, 6]]
    # That bob's are empty changes no other: by way of float64 the large ones would be a tie, and 2^60.
    table = rows() | {
        "small": pyarrow.array(range(12), pyarrow.uint8()),
        "yes": [None, *[False, True] * 5, False],
        "large": [None, *[2**60 + 2**36 + 1] * 11],
    }
    dataset = opened(tmp_path, "parquet", table, features=["small", "yes", "height", "large"])
    assert dataset.clients[1].x.tolist() == [[row, row % 2 == 0, row / 4, 2**60 + 2**37] for row in (1, 4, 7)]


def test_texts_and_bytes_may_be_views_and_bytes_of_a_fixed_size_are_read_as_what_they_hold(
    tmp_path,
):
    pictures = [small_files.encoded(np.full((2, 3), n, np.uint8)) for n in range(12)]
    width = max(map(len, pictures))
    table = rows() | {
        "user": pyarrow.array(rows()["user"], pyarrow.string_view()),
        "seen": pyarrow.array([one.ljust(width, b"\0") for one in pictures], pyarrow.binary(width)),
        "view": pyarrow.array(pictures, pyarrow.binary_view()),
    }
    for name in ("seen", "view"):
        dataset = opened(tmp_path, "parquet", table, image=name)
        np.testing.assert_allclose(dataset.clients[1].x[:, 0, 0] * 255, [1, 4, 7], rtol=1e-6)


def test_a_cell_of_megabytes_concerns_its_user_alone_and_a_delimiter_is_one_ascii_character(
    tmp_path,
):
    places = [str(place) for place in range(12)]
    for row, client in ((0, 2), (4, 1)):  # the first one is in the block that names the columns
        cells = [*places[:row], "x" * 2_500_000, *places[row + 1 :]]
        assert_fails_alone(opened(tmp_path, "csv", rows() | {"place": cells}), client, "not finite")
    for delimiter in ("€", "\n", ""):
        with pytest.raises(SettingError, match="must be one ASCII character"):
            opened(tmp_path, "csv", rows(), delimiter=delimiter)


@pytest.mark.parametrize(("first", "last"), [("", ""), ("1", "-"), ("-", "1"), ("", "-")])
def test_what_a_column_of_a_csv_is_does_not_depend_on_its_first_megabyte(tmp_path, first, last):
    """And true and false are one and zero, whatever else a column holds."""
    end = [f"bob,{['True', n][n > 0]},1,{n % 2}" for n in range(4)]
    lines = ["user,height,label,split", *[f"ann,{first},0,0"] * 200_000, f"ann,{last},0,0", *end]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    dataset = load("by_user_csv", path=str(tmp_path / "data.csv"))
    assert dataset.clients[1].x.tolist() == [[1], [2]]
    with pytest.raises(DataError, match="client 0"):
        dataset.clients[0]


def test_csv_may_be_parted_by_tabs_over_several_files_with_quotes_and_line_breaks(tmp_path):
    """Arrow reads a megabyte at once, and a block must not end within quotes."""
    for number in range(2):
        lines = [f'{user}\t"a\n,b {number}"\t{int(n > 2)}' for n, user in enumerate("xyxy")] * 30_000
        (tmp_path / f"{number}.csv").write_text("\n".join(["user\tsaid\tsplit", *lines]) + "\n")
    (tmp_path / "words").write_text("a\nb\n")
    dataset = load(
        "by_user_csv", path=str(tmp_path), delimiter="\t", text="said", vocabulary=str(tmp_path / "words")
    )
    assert ([len(client) for client in dataset.clients], len(dataset.test)) == ([120_000, 60_000], 60_000)


# Texts.


@in_every_form
def test_texts_are_those_of_by_user_text(tmp_path, form):
    said = ["To be, or", "not", "it is", "what", "that", "is"]
    table = {"user": ["ann", "bob"] * 3, "said": said, "split": [0, 0, 0, 0, 1, 1]}
    lines = [json.dumps({"user": u, "text": t, "split": s}) for u, t, s in zip(*table.values(), strict=True)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    for settings in ({"vocabulary_size": 5, "length": 3}, {"level": "characters"}):
        (folder := tmp_path / str(len(settings))).mkdir()
        dataset = opened(folder, form, table, text="said", **settings)
        expected = load("by_user_text", path=str(tmp_path / "lines.jsonl"), **settings)
        assert len(dataset.clients) == len(expected.clients) == 2
        for one, other in zip(
            [*dataset.clients, dataset.test], [*expected.clients, expected.test], strict=True
        ):
            np.testing.assert_array_equal(one.x, other.x)
            np.testing.assert_array_equal(one.y, other.y)
        assert (dataset.uncovered, dataset.classes) == (expected.uncovered, expected.classes)


@pytest.mark.parametrize("form", ["parquet", "hub"])
def test_tokens_are_compared_in_lower_case(tmp_path, form):
    (tmp_path / "words").write_text("to\nbe\n")
    said = [["To", "be"], ["or"], ["TO"], ["it"], ["Be"], ["TO"]]
    table = {"user": ["ann", "bob"] * 3, "said": said, "split": [0, 0, 0, 0, 1, 1]}
    dataset = opened(tmp_path, form, table, text="said", vocabulary=str(tmp_path / "words"), length=2)
    assert [part.y.tolist() for part in (dataset.clients[0], dataset.test)] == [
        [[4, 5], [3, -100], [4, 3]],
        [[5, 3], [4, 3]],
    ]


# What cannot be used is answered with a sentence.


@in_every_form
@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ({}, {"user": "writer"}, "no column 'writer'; (it has user, place, height, label, split: set user|set user to one of the 5)"),
        ({}, {"label": "class"}, "no column 'class'; (it has user, .*: )?set label to one of"),
        ({}, {"features": ["weight"]}, "no column 'weight'; .*set features"),
        ({}, {"text": "said"}, "no column 'said'; .*set text"),
        ({}, {"split": "part"}, "no column 'part'; .*set split"),
        ({"user": [None, "a", "b"] * 4}, {}, r"is empty in 4 of 12 rows|names no user in 4 of 12 rows"),
        ({"user": ["", "a", "b"] * 4}, {}, "names no user in 4 of 12 rows; every example must belong"),
        ({"label": [0] * 11 + [None]}, {}, "'label' of .* is empty, or not UTF-8, in row 12, a test row"),
        ({"label": [0] * 11 + [-1]}, {}, "the label -1; labels count from 0"),
        ({"label": [0] * 11 + [5]}, {"classes": 5}, "the label 5 but there are 5 classes, as the setting says"),
        ({"label": ["a"] * 11 + ["b"]}, {"labels": ["a", "c"]}, r"'label' of .* holds in row 12, a test row, what labels=\[a, c\] lacks"),
        ({"split": [2] * 12}, {}, "'split' of .* holds neither in row 1; it must hold 0 or train, 1 or test"),
        ({"split": ["train"] * 12}, {}, "no test example; mark some with 1 in the split column, or leave the split out"),
        ({"split": [1] * 12}, {}, "no training example; mark some with 0"),
        ({"note": ["ink"] * 12}, {}, "'note' of .* no number.*; set features to the columns of the inputs"),
        ({"note": ["ink"] * 12}, {"features": ["note"]}, "'note' .* it must hold numbers"),
        ({"": range(12)}, {}, "a column without a name, as pandas writes row numbers"),
        ({}, {"features": ["place", "user"]}, "features holds 'user', which is the column of user"),
        ({}, {"label": ["place", "place"]}, "label holds 'place', which is the column of label already"),
        ({}, {"label": ["place", "user"]}, "label holds 'user', which is the column of user already"),
        ({"mine": [0] * 12}, {"label": "mine", "features": ["mine"]}, "features holds 'mine', which is the column of label"),
        ({"Label ": [0] * 12}, {}, "has a column 'Label ', which differs from 'label'"),
        ({"said": ["a"] * 12}, {"text": "said", "classes": 3}, "classes is 3, but text is given"),
        ({}, {"level": "characters"}, "level is 'characters', but text is not given"),
        ({}, {"text": "said", "features": ["place"]}, "features and text are given; an input is one of them"),
        ({}, {"features": ["place"], "labels": ["a", "a"]}, "must list the name of each class once"),
        ({}, {"labels": "xy"}, "labels is 'xy'; it must be a list of names"),
        ({}, {"features": [1, 2]}, "features is .1, 2.; it must be a list of names"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_says_what_would_be_right(tmp_path, form, change, settings, sentence):
    with pytest.raises((DataError, SettingError), match=sentence):
        opened(tmp_path, form, rows() | change, **settings)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"label": [2.0, 1.0] * 6},
            "'label' of .* holds whole numbers as floats .* or set task to regression",
        ),
        ({"user": [0.5, 1.0] * 6}, "users are whole numbers or texts"),
        ({"split": [[0]] * 12}, "'split' of .* is list.*; it must hold 0 or train, 1 or test"),
        ({"split": [0.0] * 12}, "'split' of .* is double; it must hold 0 or train, 1 or test"),
        ({"user": spoilt(["ann"] * 12, 1)}, "'user' of .* names no user in 1 of 12 rows"),
        ({"label": spoilt(["ann"] * 12, 10)}, "'label' of .* is empty, or not UTF-8, in row 11, a test row"),
        ({"place": [[["a"]]] * 12}, "'place' of .* is list.*, no number"),
        (
            {"place": [png()] * 12},
            "'place' of .* is struct.*, no number; set image=place if these are pictures",
        ),
        ({"place": [Decimal(1)] * 12}, r"'place' of .* is decimal128\(1, 0\), no number"),
        (
            {"place": pyarrow.array([[1]] * 12, pyarrow.list_view(pyarrow.int64()))},
            r"'place' of .* is list_view<",
        ),
    ],
)
def test_columns_of_other_types_are_refused_by_the_schema(tmp_path, change, sentence):
    with pytest.raises(DataError, match=sentence):
        opened(tmp_path, "parquet", rows() | change)


@in_every_form
@pytest.mark.parametrize("near", ["split ", "SPLIT"])
@pytest.mark.parametrize("settings", [{}, {"features": ["place"]}, {"text": "said"}])
def test_a_split_that_is_nearly_called_so_is_not_passed_over(tmp_path, form, near, settings):
    """Its test rows would train, and it would be an input."""
    table = rows() | {"said": ["a"] * 12} if "text" in settings else rows()
    table = {(near if name == "split" else name): values for name, values in table.items()}
    with pytest.raises(DataError, match=f"has a column '{near}', which differs from 'split' in blanks or"):
        opened(tmp_path, form, table, **settings)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("user,label,x\n1,2\n", "cannot be read as CSV .*Expected 3 columns"),
        ("user,user,x\n1,2,3\n", "names its columns 1 and 2 alike"),
        ("user,label,x\n" + "1,0,2\n" * 400_000 + "1,0\n", "cannot be read as CSV .*Expected 3 columns"),
        ("user,label,\xff\n1,0,1\n", "cannot be read as CSV"),
        ("user,label,x\n\xff,0,1\n", "cannot be read as CSV"),
    ],
)
def test_broken_csv_is_a_sentence(tmp_path, text, sentence):
    (tmp_path / "data.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=sentence):
        load("by_user_csv", path=str(tmp_path / "data.csv"))


def test_files_of_a_folder_must_agree_and_a_dictionary_of_splits_must_have_train_and_test(
    tmp_path,
):
    with pytest.raises(DataError, match="holds no rows"):
        opened(tmp_path, "csv", {name: pyarrow.array([], "string") for name in ("user", "label")})
    (folder := tmp_path / "folder").mkdir()
    for name in ("a", "b"):
        pyarrow.parquet.write_table(pyarrow.table({name: [1]}), folder / f"{name}.parquet")
    part = datasets.Dataset.from_dict(rows())
    datasets.DatasetDict({"train": part, "validation": part}).save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": part, "test": part.select([])}).save_to_disk(str(tmp_path / "none"))
    for name, path, sentence in (
        ("by_user_parquet", "folder", r"cannot be read as parquet|has no column 'user'"),
        ("by_user_hub", "saved", "splits train, validation but no test"),
        ("by_user_hub", "data.csv", r"/data.csv cannot be read as a dataset that save_to_disk wrote"),
        ("by_user_hub", "none", r"none.* no test example|none cannot be read"),
    ):
        with pytest.raises(DataError, match=sentence):
            load(name, path=str(tmp_path / path))
