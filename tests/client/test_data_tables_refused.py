"""Tables of one's own that cannot be used: a sentence says what would be right."""

from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from client.data import load
from fedmf.errors import DataError, SettingError
from own_tables import in_every_form, opened, rows

Change = dict[str, Any]


@in_every_form
@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        (
            {},
            {"user": "writer"},
            "no column 'writer'; (it has user, place, height, label, split: set user|set user to one of the 5 columns)",
        ),
        ({}, {"label": "class"}, "no column 'class'; (it has user, .*: )?set label to one of"),
        ({}, {"features": ["weight"]}, "no column 'weight'; .*set features"),
        ({}, {"text": "said"}, "no column 'said'; .*set text"),
        ({}, {"split": "part"}, "no column 'part'; .*set split"),
        ({"user": [None, "a", "b"] * 4}, {}, r"is empty in 4 of 12 rows|names no user in 4 of 12 rows"),
        ({"user": ["", "a", "b"] * 4}, {}, "names no user in 4 of 12 rows; every example must belong"),
        ({"label": [0] * 11 + [None]}, {}, "'label' of .* is empty, or not UTF-8, in row 12, a test row"),
        ({"label": [0] * 11 + [-1]}, {}, "the label -1; labels count from 0"),
        (
            {"label": [0] * 11 + [5]},
            {"classes": 5},
            "the label 5 but there are 5 classes, as the setting says",
        ),
        (
            {"label": ["a"] * 11 + ["b"]},
            {"labels": ["a", "c"]},
            r"'label' of .* holds in row 12, a test row, what labels=\[a, c\] lacks",
        ),
        ({"split": [2] * 12}, {}, "'split' of .* holds neither in row 1; it must hold 0 or train, 1 or test"),
        (
            {"split": ["train"] * 12},
            {},
            "no test example; mark some with 1 in the split column, or leave the split out",
        ),
        ({"split": [1] * 12}, {}, "no training example; mark some with 0"),
        (
            {"note": ["ink"] * 12},
            {},
            "'note' of .* (is (large_)?string|holds something else in row \\d+, a test row), no number; name the columns of the inputs in features",
        ),
        ({"note": ["ink"] * 12}, {"features": ["note"]}, "'note' .* it must hold numbers"),
    ],
)
def test_a_table_that_cannot_be_used_says_what_would_be_right(
    tmp_path: Path, form: str, change: Change, settings: Change, sentence: str
) -> None:
    with pytest.raises((DataError, SettingError), match=sentence):
        opened(tmp_path, form, rows() | change, **settings)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("user", "The column 'user' of .* cannot be read as a table"),
        ("label", "The column 'label' of .* is empty, or not UTF-8, in row 11, a test row"),
    ],
)
def test_texts_that_are_no_utf8_are_a_sentence(tmp_path: Path, column: str, sentence: str) -> None:
    spoilt = pyarrow.array([b"ann", b"\xff", b"bob"] * 4, pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table(rows() | {column: spoilt}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=sentence):
        load("by_user_parquet", path=str(tmp_path / "data.parquet"))


@pytest.mark.parametrize("form", ["parquet", "hub"])
def test_users_are_no_measures_and_labels_neither(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match="it must hold whole numbers or names"):
        opened(tmp_path, form, rows() | {"label": [0.5, 1.0] * 6})
    with pytest.raises(DataError, match="it must name users by whole numbers or texts"):
        load(f"by_user_{form}", path=str(tmp_path / f"data.{form}"), user="place")


@in_every_form
def test_settings_that_would_be_ignored_are_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(SettingError, match="classes is 3, but text is given"):
        opened(tmp_path, form, rows() | {"said": ["a"] * 12}, text="said", classes=3)
    with pytest.raises(SettingError, match="level is 'words', but text is not given"):
        load(f"by_user_{form}", path=str(tmp_path / f"data.{form}"), level="words")
    with pytest.raises(SettingError, match="features and text are given; an input is one of them"):
        load(f"by_user_{form}", path=str(tmp_path / f"data.{form}"), text="said", features=["place"])
    with pytest.raises(SettingError, match="must list the name of each class once"):
        load(f"by_user_{form}", path=str(tmp_path / f"data.{form}"), features=["place"], labels=["a", "a"])


@in_every_form
def test_a_file_that_is_missing_empty_or_something_else_is_a_sentence(tmp_path: Path, form: str) -> None:
    with pytest.raises(DataError, match="nothing does not exist; path must name"):
        load(f"by_user_{form}", path=str(tmp_path / "nothing"))
    empty = tmp_path / "empty"
    if form == "hub":
        empty.mkdir()
        (empty / "state.json").write_bytes(b"\x00\xff")
    else:
        empty.write_bytes(b"\x00\xff\xfe\x80" * 9 if form == "parquet" else b"")
    with pytest.raises(DataError, match="empty cannot be read as"):
        load(f"by_user_{form}", path=str(empty))
    with pytest.raises(DataError, match="holds no rows"):
        opened(tmp_path, form, {name: pyarrow.array([], "string") for name in ("user", "label")})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("user,label,x\n1,2\n", "cannot be read as CSV .*Expected 3 columns"),
        ("user,user,x\n1,2,3\n", "names its columns 1 and 2 alike"),
        ("user,label,x\n" + "1,0,2\n" * 400_000 + "1,0\n", "cannot be read as CSV .*Expected 3 columns"),
        ("user,label,\xff\n1,0,1\n", "cannot be read as CSV"),
        ("user,label,x\n\xff,0,1\n", "cannot be read as CSV|cannot be read"),
    ],
)
def test_broken_csv_is_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "data.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=sentence):
        load("by_user_csv", path=str(tmp_path / "data.csv"))


def test_files_of_a_folder_must_agree_and_a_dictionary_of_splits_must_have_train_and_test(
    tmp_path: Path,
) -> None:
    for number, name in enumerate(("a", "b")):
        pyarrow.parquet.write_table(pyarrow.table({name: [1]}), tmp_path / f"{number}.parquet")
    with pytest.raises(DataError, match=r"1\.parquet has other columns than .*0\.parquet"):
        load("by_user_parquet", path=str(tmp_path))
    part = datasets.Dataset.from_dict(rows())
    datasets.DatasetDict({"train": part, "validation": part}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="splits train, validation but no test"):
        load("by_user_hub", path=str(tmp_path / "saved"))
