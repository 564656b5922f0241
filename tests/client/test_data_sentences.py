"""What cannot be used is answered with a true sentence, about the file as it was given."""

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import small_files
from client.data import load
from client.data.own import Dealer
from fedmf.errors import DataError, SettingError
from own_tables import in_every_form, opened, rows

LISTS = {
    "list": pyarrow.array([[0]] * 12),
    "struct": pyarrow.array([{"a": 0}] * 12),
    "map": pyarrow.array([[("a", 0)]] * 12, pyarrow.map_("string", "int64")),
    "double": pyarrow.array([0.0] * 12),
}


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("form", ["parquet", "hub"])
def test_a_split_column_of_another_type_is_refused(tmp_path: Path, form: str, kind: str) -> None:
    table = rows() | {"split": LISTS[kind].to_pylist() if form == "hub" else LISTS[kind]}
    if (form, kind) == ("hub", "map"):
        return  # which datasets has not
    sentence = f"'split' of .* is {kind}.*; it must hold 0 or train, 1 or test"
    with pytest.raises(DataError, match=sentence):
        opened(tmp_path, form, table, features=["place"])


def test_a_folder_without_a_table_and_a_file_in_place_of_a_folder_are_said(tmp_path: Path) -> None:
    for form, kind in (("csv", "CSV"), ("parquet", "parquet")):
        with pytest.raises(DataError, match=f"The data folder .* holds no {kind} file; path must name a"):
            load(f"by_user_{form}", path=str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"/file is no folder; path must name the folder that save_to_disk"):
        load("by_user_hub", path=str(tmp_path / "file"))


@pytest.mark.parametrize("empty", ["train", "test", "both", "all"])
def test_a_saved_data_set_without_rows_is_said(tmp_path: Path, empty: str) -> None:
    whole = datasets.Dataset.from_dict(rows())
    none = whole.select([])
    if empty == "all":
        none.save_to_disk(str(tmp_path / "saved"))
    else:
        parts = {name: none if empty in (name, "both") else whole for name in ("train", "test")}
        datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=r"saved(/train|/test)? holds no rows; every split must hold some"):
        load("by_user_hub", path=str(tmp_path / "saved"))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("shards", {"num_shards_per_partition": 99999}),
        ("grouped", {"group_size": 0}),
    ],
)
def test_a_partitioner_that_would_divide_by_nothing_says_which_numbers_are_wrong(
    name: str, settings: dict[str, int]
) -> None:
    (key, value) = next(iter(settings.items()))
    sentence = f"cannot deal 40 examples to 2 clients with .*{key}={value}.*; give numbers of at least 1"
    with pytest.raises(SettingError, match=sentence):
        Dealer(name, 2, settings, {}, 0).deal(np.arange(40) % 4, np.arange(40) % 8)


@in_every_form
@pytest.mark.parametrize("role", ["user", "label", "split"])
def test_a_column_is_an_input_or_says_more_of_the_row_but_not_both(
    tmp_path: Path, form: str, role: str
) -> None:
    sentence = f"features holds '{role}', which is the column of {role}"
    with pytest.raises(SettingError, match=sentence):
        opened(tmp_path, form, rows(), features=["place", role])
    table = {("mine" if name == role else name): values for name, values in rows().items()}
    with pytest.raises(SettingError, match=f"features holds 'mine', which is the column of {role}"):
        opened(tmp_path, form, table, **{role: "mine"}, features=["mine"])


@in_every_form
@pytest.mark.parametrize("near", ["split ", " Split", "SPLIT"])
@pytest.mark.parametrize("settings", [{}, {"features": ["place"]}, {"text": "said"}])
def test_a_split_that_is_nearly_called_so_is_not_passed_over(
    tmp_path: Path, form: str, near: str, settings: dict[str, Any]
) -> None:
    """Its test rows would train, and it would be an input."""
    table = rows() | {"said": ["a"] * 12} if "text" in settings else rows()
    table = {(near if name == "split" else name): values for name, values in table.items()}
    with pytest.raises(DataError, match=f"has a column '{near}', which differs from 'split' in blanks or"):
        opened(tmp_path, form, table, **settings)


@in_every_form
def test_a_second_label_is_an_input_only_where_it_is_named(tmp_path: Path, form: str) -> None:
    table = rows() | {"Label ": rows()["label"]}
    with pytest.raises(DataError, match="has a column 'Label ', which differs from 'label'"):
        opened(tmp_path, form, table)
    assert opened(tmp_path, form, table, features=["place"]).input_shape == (1,)


def test_a_table_of_pictures_with_a_split_that_is_nearly_called_so_is_refused(tmp_path: Path) -> None:
    small_files.pictures(tmp_path / "pictures")
    table = tmp_path / "pictures" / "metadata.csv"
    table.write_text(table.read_text().replace("label,split", "label,split "))
    with pytest.raises(DataError, match="has a column 'split ', which differs from 'split'"):
        load("by_user_images", path=str(tmp_path / "pictures"))
