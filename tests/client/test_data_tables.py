"""Tables of one's own: the same rows as CSV, parquet and a Hugging Face data set give the same clients."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from client.data import load
from fedmf.errors import DataError, SettingError
from own_tables import (
    Rows,
    in_every_form,
    opened,
    places,
    rows,
)


@in_every_form
def test_clients_are_the_users_of_the_training_rows_in_the_order_of_their_names(
    tmp_path: Path, form: str
) -> None:
    dataset = opened(tmp_path, form, rows())
    assert places(dataset) == [[2, 5, 8], [1, 4, 7], [0, 3, 6]]  # 7, ann, bob
    assert dataset.clients[1].x.tolist() == [[1, 0.25], [4, 1.0], [7, 1.75]]
    assert dataset.clients[1].y.tolist() == [1, 0, 1]
    assert (dataset.clients[0].x.dtype, dataset.clients[0].y.dtype) == (np.float32, np.int64)
    assert dataset.test.x[:, 0].tolist() == [9, 10, 11]
    assert dataset.test.y.tolist() == [1, 0, 1]
    assert (dataset.input_shape, dataset.classes, dataset.unit) == ((2,), 2, "one user = one client")
    assert [sentence[:40] for sentence in dataset.uncovered] == [
        "3 of 3 users of the test split also train"[:40]
    ]


@in_every_form
def test_columns_have_the_names_that_one_gives_them(tmp_path: Path, form: str) -> None:
    table = {f"my_{name}": values for name, values in rows().items()}
    names = {
        "user": "my_user",
        "label": "my_label",
        "split": "my_split",
        "features": ["my_height", "my_place"],
    }
    dataset = opened(tmp_path, form, table, **names)
    assert dataset.clients[0].x[:, 1].tolist() == [2, 5, 8]
    assert len(dataset.test) == 3


@in_every_form
def test_without_a_split_a_fifth_of_each_user_is_the_test_set(tmp_path: Path, form: str) -> None:
    table = rows(30)
    del table["split"]
    dataset = opened(tmp_path, form, table, examples_per_client=5)
    assert ([len(client) for client in dataset.clients], len(dataset.test)) == ([5, 3] * 3, 6)
    assert "not the user" in dataset.unit


@in_every_form
def test_users_that_differ_as_texts_stay_different_users(tmp_path: Path, form: str) -> None:
    table = rows() | {"user": ["7", "007", "7.0"] * 4}
    assert len(opened(tmp_path, form, table).clients) == 3


@pytest.mark.parametrize("form", ["parquet", "hub"])
def test_users_may_be_whole_numbers_and_then_count_in_their_order(tmp_path: Path, form: str) -> None:
    assert places(opened(tmp_path, form, rows() | {"user": [10, 9, 10**12] * 4}))[:2] == [
        [1, 4, 7],
        [0, 3, 6],
    ]


def test_an_empty_number_is_no_number_and_concerns_its_user_alone(tmp_path: Path) -> None:
    table = rows()
    table["height"][1] = None
    dataset = opened(tmp_path, "csv", table)
    assert len(dataset.clients[0]) == len(dataset.clients[2]) == 3
    with pytest.raises(DataError, match="client 1 of dataset by_user_csv holds inputs that are not finite"):
        dataset.clients[1]
    table["height"][11] = None
    with pytest.raises(DataError, match=r"test set .* not finite"):
        opened(tmp_path, "csv", table)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("odd", ["-", "yes", "1,5", "1e"])
def test_a_cell_of_a_csv_that_is_no_number_concerns_its_user_alone(
    tmp_path: Path, odd: str, named: bool
) -> None:
    """Wherever it stands: in the first rows, from which types are inferred, or far behind them."""
    table = rows() | {"height": [0.1 * n for n in range(12)]}
    settings = {"features": ["place", "height"]} if named else {}
    whole = opened(tmp_path, "csv", table, **settings)
    for row in (1, 4):
        held = [odd if n == row else f" {value:.17g}" for n, value in enumerate(table["height"])]
        dataset = opened(tmp_path, "csv", table | {"height": held}, **settings)
        for client in (0, 2):
            assert dataset.clients[client].x.tolist() == whole.clients[client].x.tolist()
        with pytest.raises(DataError, match=r"client 1 .* inputs that are not finite"):
            dataset.clients[1]
    held = [odd if n == 11 else str(n) for n in range(12)]
    with pytest.raises(
        DataError, match=r"'height' of .* holds something else in row 12, a test row"
    ) as raised:
        opened(tmp_path, "csv", table | {"height": held}, **settings)
    assert repr(odd) not in str(raised.value)


@pytest.mark.parametrize(("first", "last"), [("", ""), ("1", "-"), ("-", "1"), ("", "-")])
def test_what_a_column_of_a_csv_is_does_not_depend_on_its_first_megabyte(
    tmp_path: Path, first: str, last: str
) -> None:
    """Arrow infers types from there: numbers, texts or nothing in it may be followed by anything."""
    end = [f"bob,{n}.5,1,{n % 2}" for n in range(4)]
    lines = ["user,height,label,split", *[f"ann,{first},0,0"] * 200_000, f"ann,{last},0,0", *end]
    (tmp_path / "data.csv").write_text("\n".join(lines))
    dataset = load("by_user_csv", path=str(tmp_path / "data.csv"))
    assert dataset.clients[1].x.tolist() == [[0.5], [2.5]]
    with pytest.raises(DataError, match="client 0"):
        dataset.clients[0]


def test_true_and_false_of_a_csv_are_one_and_zero_whatever_else_the_column_holds(tmp_path: Path) -> None:
    table = rows() | {"height": ["5", "True", *["false", "true"] * 5]}
    dataset = opened(tmp_path, "csv", table)
    assert dataset.clients[0].x[:, 1].tolist() == [0, 1, 0]
    assert dataset.clients[1].x[:, 1].tolist() == [1, 0, 1]
    assert dataset.test.x[:, 1].tolist() == [1, 0, 1]
    assert dataset.clients[2].x[:, 1].tolist()[0] == 5


def test_features_are_taken_as_they_are(tmp_path: Path) -> None:
    """Neither a mean nor a range of the training users is used."""
    table = rows() | {"small": pyarrow.array(range(12), pyarrow.uint8()), "yes": [True, False] * 6}
    dataset = opened(tmp_path, "parquet", table, features=["small", "yes", "height"])
    assert dataset.clients[1].x.tolist() == [[1, 0, 0.25], [4, 1, 1.0], [7, 0, 1.75]]


def test_csv_may_be_parted_by_tabs_over_several_files_with_quotes_and_line_breaks(tmp_path: Path) -> None:
    for number in range(2):
        lines = [f'{user}\t"a\nb {number}"\t{int(n > 2)}' for n, user in enumerate("xyxy")]
        (tmp_path / f"{number}.csv").write_text("\n".join(["user\tsaid\tsplit", *lines]) + "\n")
    settings = {"delimiter": "\t", "text": "said", "vocabulary": str(tmp_path / "words")}
    (tmp_path / "words").write_text("a\nb\n")
    dataset = load("by_user_csv", path=str(tmp_path), **settings)  # type: ignore[arg-type]
    assert ([len(client) for client in dataset.clients], len(dataset.test)) == ([4, 2], 2)


@in_every_form
def test_texts_are_those_of_by_user_text(tmp_path: Path, form: str) -> None:
    table = {
        "user": ["ann", "bob"] * 3,
        "said": ["To be, or", "not", "it is", "what", "that", "is"],
        "split": [0, 0, 0, 0, 1, 1],
    }
    lines = [json.dumps({"user": u, "text": t, "split": s}) for u, t, s in zip(*table.values(), strict=True)]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    for settings in ({"vocabulary_size": 5, "length": 3}, {"level": "characters"}):
        (folder := tmp_path / str(len(settings))).mkdir()
        dataset = opened(folder, form, table, text="said", **settings)
        expected = load("by_user_text", path=str(tmp_path / "lines.jsonl"), **settings)  # type: ignore[arg-type]
        assert len(dataset.clients) == len(expected.clients) == 2
        for one, other in zip(
            [*dataset.clients, dataset.test], [*expected.clients, expected.test], strict=True
        ):
            np.testing.assert_array_equal(one.x, other.x)
            np.testing.assert_array_equal(one.y, other.y)
        assert (dataset.uncovered, dataset.classes) == (expected.uncovered, expected.classes)


@pytest.mark.parametrize("form", ["parquet", "hub"])
@pytest.mark.parametrize("empty", [None, ["to", None]])
def test_an_empty_text_concerns_its_user_alone_and_a_test_row_must_have_one(
    tmp_path: Path, form: str, empty: list[str | None] | None
) -> None:
    said = [["To", "be"], ["or"], ["not"], ["it"], ["to"], ["be"]]
    table: Rows = {"user": ["ann", "bob"] * 3, "said": said, "split": [0, 0, 0, 0, 1, 1]}
    said[1] = empty  # type: ignore[call-overload]
    dataset = opened(tmp_path, form, table, text="said", length=3)
    assert len(dataset.clients[0]) == 2
    with pytest.raises(DataError, match=r"client 1 .* holds the token -1"):
        dataset.clients[1]
    said[5] = empty  # type: ignore[call-overload]
    (tmp_path / "again").mkdir()
    with pytest.raises(DataError, match=r"Row 6 of .*again/data\..* is a test row and holds no text"):
        opened(tmp_path / "again", form, table, text="said", length=3)


@pytest.mark.parametrize("kind", [pyarrow.list_(pyarrow.string()), pyarrow.struct([("t", pyarrow.string())])])
def test_lists_of_what_is_no_token_are_refused_by_the_schema(tmp_path: Path, kind: Any) -> None:
    column = pyarrow.array([None] * 12, pyarrow.list_(kind))
    with pytest.raises(DataError, match=r"'said' of .* is list<.*; it must hold texts, or lists of tokens"):
        opened(tmp_path, "parquet", rows() | {"said": column}, text="said")


@in_every_form
@pytest.mark.parametrize("given", [[1, 2], "xy", 5])
@pytest.mark.parametrize("key", ["labels", "features"])
def test_what_is_no_list_of_names_is_refused(tmp_path: Path, form: str, key: str, given: Any) -> None:
    with pytest.raises(SettingError, match=f"{key} is .*; it must be a list of names"):
        opened(tmp_path, form, rows(), **{key: given})


def test_tokens_of_a_table_are_compared_in_lower_case(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("to\nbe\n")
    said = [["To", "be"], ["TO"], ["be"], ["to"], ["Be"], ["TO"]]
    table: Rows = {"user": ["ann", "bob"] * 3, "said": said, "split": [0, 0, 0, 0, 1, 1]}
    given = {"text": "said", "vocabulary": str(tmp_path / "words"), "length": 2}
    dataset = opened(tmp_path, "parquet", table, **given)
    assert dataset.clients[0].y.tolist() == [[4, 5], [3, -100], [5, 3]]
    assert dataset.test.y.tolist() == [[5, 3], [4, 3]]
