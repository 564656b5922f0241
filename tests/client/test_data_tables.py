"""Tables of one's own: the same rows as CSV, parquet and a Hugging Face data set give the same clients."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image

from client.data import Dataset, by_user_parquet, converted, load, pictures
from client.data.by_user_csv import read_csv
from client.data.by_user_parquet import read_parquet
from client.data.by_user_table import Columns
from client.data.identity import digest_clients
from client.data.table import Table
from fedmf.errors import DataError, SettingError
from fedmf.randomness import SecretKey

FORMS = ("csv", "parquet", "hub")
Rows = dict[str, list[Any]]


def rows(count: int = 12) -> Rows:
    """Return rows of three users in turn; the feature `place` tells rows apart, the last three are test rows."""
    return {
        "user": [("bob", "ann", "7")[n % 3] for n in range(count)],
        "place": [float(n) for n in range(count)],
        "height": [n / 4 for n in range(count)],
        "label": [n % 2 for n in range(count)],
        "split": [int(n >= count - 3) for n in range(count)],
    }


def write(folder: Path, form: str, table: Rows) -> str:
    """Write a table in one form and return its path."""
    path = folder / f"data.{form}"
    if form == "csv":
        pyarrow.csv.write_csv(pyarrow.table(table), path)
    elif form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=5)
    else:
        datasets.Dataset.from_dict(table).save_to_disk(str(path))
    return str(path)


def opened(folder: Path, form: str, table: Rows, **settings: Any) -> Dataset:
    """Write a table and load it."""
    return load(f"by_user_{form}", path=write(folder, form, table), **settings)


def places(dataset: Dataset) -> list[list[int]]:
    """Return which rows each client holds, by the feature `place`."""
    return [client.x[:, 0].astype(int).tolist() for client in dataset.clients]


in_every_form = pytest.mark.parametrize("form", FORMS)


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


@in_every_form
def test_names_of_labels_become_numbers_by_the_public_list(tmp_path: Path, form: str) -> None:
    table = rows() | {"label": ["dog", "cat", "cow"] * 4}
    dataset = opened(tmp_path, form, table, labels=["cow", "dog", "cat", "hen"])
    assert dataset.classes == 4
    assert dataset.test.y.tolist() == [1, 2, 0]
    assert dataset.clients[1].y.tolist() == [2, 2, 2]
    assert not [sentence for sentence in dataset.uncovered if "names of the classes" in sentence]


def test_names_without_a_list_are_an_uncovered_release_whether_or_not_a_user_has_another_name(
    tmp_path: Path,
) -> None:
    """That the sentence stands must not tell that some training row has a name which no test row has."""
    said = []
    for first, names in (("cat", 2), ("ant", 3)):  # neighbours: a training row of bob
        dataset = opened(tmp_path, "csv", rows() | {"label": [first, "dog", *["cat", "dog"] * 5]})
        assert (dataset.classes, dataset.test.y.tolist()) == (names, [names - 1, names - 2, names - 1])
        said.append(dataset.uncovered)
    assert said[0] == said[1]
    assert "names of the classes were collected from all rows" in said[0][0]


def test_a_number_of_classes_is_not_exceeded_by_the_name_in_a_training_row(tmp_path: Path) -> None:
    """Then the names are those of the test rows: nothing is collected, and the odd row concerns its user alone."""
    for classes in (2, 3):
        table = rows() | {"label": ["ant", "dog", *["cat", "dog"] * 5]}
        dataset = opened(tmp_path, "csv", table, classes=classes)
        assert (dataset.classes, dataset.test.y.tolist(), len(dataset.uncovered)) == (classes, [1, 0, 1], 1)
        assert [client.y.tolist() for client in dataset.clients[:2]] == [[0, 1, 0], [1, 0, 1]]
        with pytest.raises(DataError, match="holds the label -1"):
            dataset.clients[2]
    with pytest.raises(SettingError, match="classes is 1, but there are 2 names"):
        opened(tmp_path, "csv", table, classes=1)


def test_a_training_row_with_none_of_the_classes_cannot_be_trained_and_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    labels = ["cat", "dog"] * 6
    labels[0] = "ant"
    dataset = opened(tmp_path, "csv", rows() | {"label": labels}, labels=["cat", "dog"])
    assert [client.y.tolist() for client in dataset.clients[:2]] == [[0, 1, 0], [1, 0, 1]]
    with pytest.raises(DataError, match="client 2 of dataset by_user_csv holds the label -1"):
        dataset.clients[2]
    numbers = [9, *([0, 1] * 6)[1:]]
    dataset = opened(tmp_path, "parquet", rows() | {"label": numbers}, classes=2)
    with pytest.raises(DataError, match="client 2 of dataset by_user_parquet holds the label -1"):
        dataset.clients[2]


def test_a_training_label_that_is_no_number_does_not_make_names_of_all(tmp_path: Path) -> None:
    """What the labels are must not depend on one user's value; an empty cell is no name either."""
    for odd in ("ant", ""):
        labels = [odd, *map(str, ([0, 1] * 6)[1:])]
        dataset = opened(tmp_path, "csv", rows() | {"label": labels})
        assert (dataset.classes, dataset.test.y.tolist(), len(dataset.uncovered)) == (2, [1, 0, 1], 1)
        assert len(dataset.clients[1]) == 3
        with pytest.raises(DataError, match="holds the label -1"):
            dataset.clients[2]
    dataset = opened(tmp_path, "csv", rows() | {"label": ["", *["dog", "cat"] * 5, "dog"]})
    assert dataset.classes == 2


def test_a_label_that_no_int64_is_concerns_its_user_alone(tmp_path: Path) -> None:
    for form, label in (("parquet", 2**63), ("csv", 10**20)):
        values = [label, *([0, 1] * 6)[1:]]
        column = pyarrow.array(values, pyarrow.uint64()) if form == "parquet" else [str(v) for v in values]
        dataset = opened(tmp_path, form, rows() | {"label": column})
        assert (dataset.classes, len(dataset.clients[1])) == (2, 3)
        with pytest.raises(DataError, match=r"client 2 .* the label -1"):
            dataset.clients[2]


@pytest.mark.parametrize("label", [10**13, 10**6, 2**63])
def test_a_test_label_does_not_stand_for_a_million_classes_by_itself(tmp_path: Path, label: int) -> None:
    for form in ("csv", "parquet"):
        values = [*([0, 1] * 6)[:11], label]
        column = pyarrow.array(values, pyarrow.uint64()) if form == "parquet" else [str(v) for v in values]
        with pytest.raises(DataError, match=f"A test row .* the label {label}, .*Set classes"):
            opened(tmp_path, form, rows() | {"label": column})
    column = [*([0, 1] * 6)[:11], 10**6]
    assert opened(tmp_path, "parquet", rows() | {"label": column}, classes=10**6 + 1).classes == 10**6 + 1


def test_labels_of_a_csv_that_are_written_otherwise_are_the_same_classes(tmp_path: Path) -> None:
    numbers = opened(tmp_path, "csv", rows() | {"label": ["1", "+1", "1.0", " 2", "0", "2 "] * 2})
    assert (numbers.classes, numbers.test.y.tolist()) == (3, [2, 0, 2])
    assert [client.y.tolist() for client in numbers.clients] == [[1, 2, 1], [1, 0, 1], [1, 2, 1]]
    for settings in ({}, {"labels": ["cat ", "dog"]}):
        names = opened(tmp_path, "csv", rows() | {"label": ["cat", " dog", "cat "] * 4}, **settings)
        assert (names.classes, names.test.y.tolist()) == (2, [0, 1, 0])


def test_whole_numbers_with_a_list_of_names_are_names(tmp_path: Path) -> None:
    dataset = opened(tmp_path, "csv", rows() | {"label": ["01", "02"] * 6}, labels=["02", "01"])
    assert dataset.test.y.tolist() == [0, 1, 0]


def test_an_empty_number_is_no_number_and_concerns_its_user_alone(tmp_path: Path) -> None:
    table = rows()
    table["height"][1] = None
    dataset = opened(tmp_path, "csv", table)
    assert len(dataset.clients[0]) == len(dataset.clients[2]) == 3
    with pytest.raises(DataError, match="client 1 of dataset by_user_csv holds inputs that are not finite"):
        dataset.clients[1]
    table["height"][11] = None
    with pytest.raises(DataError, match=r"test rows of .* empty or not finite"):
        opened(tmp_path, "csv", table)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("odd", ["-", "true", "1,5", "1e"])
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
    with pytest.raises(DataError, match=f"'height' of .* holds '{odd}' in a test row"):
        opened(tmp_path, "csv", table | {"height": held}, **settings)


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


def test_true_and_false_of_a_csv_are_numbers_if_the_test_rows_hold_nothing_else(tmp_path: Path) -> None:
    table = rows() | {"height": ["5", "True", *["false", "true"] * 5]}
    dataset = opened(tmp_path, "csv", table)
    assert dataset.clients[0].x[:, 1].tolist() == [0, 1, 0]
    assert dataset.clients[1].x[:, 1].tolist() == [1, 0, 1]
    assert dataset.test.x[:, 1].tolist() == [1, 0, 1]
    with pytest.raises(DataError, match=r"client 2 .* not finite"):
        dataset.clients[2]


def test_features_are_taken_as_they_are(tmp_path: Path) -> None:
    """Neither a mean nor a range of the training users is used."""
    table = rows() | {"small": pyarrow.array(range(12), pyarrow.uint8()), "yes": [True, False] * 6}
    dataset = opened(tmp_path, "parquet", table, features=["small", "yes", "height"])
    assert dataset.clients[1].x.tolist() == [[1, 0, 0.25], [4, 1, 1.0], [7, 0, 1.75]]


def test_csv_holds_numbers_as_float32_from_the_start_and_only_the_columns_that_are_used(
    tmp_path: Path,
) -> None:
    path = Path(write(tmp_path, "csv", rows()))
    table = read_csv(path, Columns("user", "label", features=["height"]), ",")
    assert list(table.types) == ["user", "height", "label", "split"]
    assert str(table.types["height"]) == "float"


def test_csv_may_be_parted_by_tabs_over_several_files_with_quotes_and_line_breaks(tmp_path: Path) -> None:
    for number in range(2):
        lines = [f'{user}\t"a\nb {number}"\t{int(n > 2)}' for n, user in enumerate("xyxy")]
        (tmp_path / f"{number}.csv").write_text("\n".join(["user\tsaid\tsplit", *lines]) + "\n")
    settings = {"delimiter": "\t", "text": "said", "vocabulary": str(tmp_path / "words")}
    (tmp_path / "words").write_text("a\nb\n")
    dataset = load("by_user_csv", path=str(tmp_path), **settings)  # type: ignore[arg-type]
    assert ([len(client) for client in dataset.clients], len(dataset.test)) == ([4, 2], 2)


def test_a_line_break_in_quotes_may_lie_anywhere_in_a_big_file(tmp_path: Path) -> None:
    """Arrow reads a megabyte at once, and a block must not end within quotes."""
    lines = ["user,said", *['ann,"a\n,b\n,c"'] * 200_000]
    (tmp_path / "big.csv").write_text("\n".join(lines))
    table = read_csv(tmp_path / "big.csv", Columns("user", "label", text="said"), ",")
    assert (table.rows, set(table.read("said").to_pylist())) == (200_000, {"a\n,b\n,c"})


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


def png(array: np.ndarray) -> bytes:
    """Return a picture as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 4, 5, 3)).astype(np.uint8)


def with_pictures(kind: str) -> Rows:
    """Return `rows` with IMAGES in the column `image`, as one of the ways in which tables hold pictures."""
    makers: dict[str, Callable[[np.ndarray], Any]] = {
        "bytes": png,
        "struct": lambda image: {"bytes": png(image), "path": None},
        "lists": lambda image: image.tolist(),
    }
    values = [makers[kind](image) for image in IMAGES]
    table = rows()
    del table["place"], table["height"]
    return table | {"image": values if kind != "lists" else pyarrow.array(values, _lists(pyarrow.uint8(), 3))}


def _lists(kind: Any, depth: int) -> Any:
    return pyarrow.list_(_lists(kind, depth - 1)) if depth else kind


@pytest.mark.parametrize("kind", ["bytes", "struct", "lists"])
def test_pictures_of_a_column_are_the_pixels_over_255(tmp_path: Path, kind: str) -> None:
    dataset = opened(tmp_path, "parquet", with_pictures(kind), image="image")
    assert dataset.input_shape == (4, 5, 3)
    np.testing.assert_allclose(dataset.clients[1].x, IMAGES[[1, 4, 7]] / 255, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x, IMAGES[9:] / 255, atol=1e-6)


def test_a_saved_data_set_may_have_declared_pictures_class_names_and_splits(tmp_path: Path) -> None:
    table = with_pictures("struct")
    del table["split"]
    features = datasets.Features(
        {
            "user": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes", "unsure"]),
            "image": datasets.Image(),
        }
    )
    whole = datasets.Dataset.from_dict(table, features=features)
    parts = {"train": whole.select(range(9)), "test": whole.select([11, 9]), "other": whole.select([10])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    dataset = load("by_user_hub", path=str(tmp_path / "saved"), image="image")
    assert ([len(client) for client in dataset.clients], dataset.classes) == ([3, 3, 3], 3)
    np.testing.assert_allclose(dataset.clients[2].x, IMAGES[[0, 3, 6]] / 255, atol=1e-6)
    np.testing.assert_allclose(dataset.test.x, IMAGES[[11, 9]] / 255, atol=1e-6)


def saved_with_class_names(folder: Path, labels: list[int]) -> str:
    """Write a data set whose label column declares the classes no, yes and unsure."""
    whole = datasets.Dataset.from_dict(rows() | {"label": labels})
    whole = whole.cast_column("label", datasets.ClassLabel(names=["no", "yes", "unsure"]))
    whole.save_to_disk(str(folder / "saved"))
    return str(folder / "saved")


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (None, None, [0, 1, 2]),
        (["no", "yes", "unsure"], None, [0, 1, 2]),
        (["unsure", "no", "yes"], None, [1, 2, 0]),
        (["unsure", "no", "yes", "later"], 5, [1, 2, 0]),
        (None, 4, [0, 1, 2]),
    ],
)
def test_the_class_names_that_a_saved_data_set_declares_may_be_given_as_labels(
    tmp_path: Path, labels: list[str] | None, classes: int | None, numbers: list[int]
) -> None:
    path = saved_with_class_names(tmp_path, [0, 1, 2] * 4)
    dataset = load("by_user_hub", path=path, labels=labels, classes=classes)
    assert dataset.test.y.tolist() == numbers
    assert dataset.classes == (classes or len(labels or "abc"))
    assert not [sentence for sentence in dataset.uncovered if "names of the classes" in sentence]


def test_fewer_classes_than_a_saved_data_set_declares_and_names_that_it_lacks_are_refused(
    tmp_path: Path,
) -> None:
    path = saved_with_class_names(tmp_path, [0, 1, 2] * 4)
    with pytest.raises(SettingError, match=r"classes is 2, but the column 'label' of .* declares 3 names"):
        load("by_user_hub", path=path, classes=2)
    with pytest.raises(
        DataError, match=r"'label' of .* holds the label 'unsure', which labels=\[no, yes\] lacks"
    ):
        load("by_user_hub", path=path, labels=["no", "yes"])
    with pytest.raises(DataError, match=r"holds the label 'no', which labels=\[0, 1, 2\] lacks"):
        load("by_user_hub", path=path, labels=["0", "1", "2"])


def test_a_number_without_a_declared_name_spoils_its_client(tmp_path: Path) -> None:
    path = saved_with_class_names(tmp_path, [-1, *[0, 1, 2] * 3, 1, 2])
    for labels in (None, ["unsure", "no", "yes", "-1"]):
        dataset = load("by_user_hub", path=path, labels=labels)
        assert len(dataset.clients[1]) == 3
        with pytest.raises(DataError, match=r"client 2 .* holds the label -1"):
            dataset.clients[2]


def test_a_declared_array_of_a_saved_data_set_is_an_input(tmp_path: Path) -> None:
    values = np.arange(72, dtype=np.float32).reshape(12, 2, 3)
    kinds = {
        "user": datasets.Value("string"),
        "label": datasets.Value("int8"),
        "split": datasets.Value("bool"),
    }
    features = datasets.Features({**kinds, "x": datasets.Array2D((2, 3), "float32")})
    table = rows() | {"x": list(values), "split": [n >= 9 for n in range(12)]}
    del table["place"], table["height"]
    datasets.Dataset.from_dict(table, features=features).save_to_disk(str(tmp_path / "saved"))
    dataset = load("by_user_hub", path=str(tmp_path / "saved"), features=["x"])
    np.testing.assert_array_equal(dataset.clients[2].x, values[[0, 3, 6]])
    np.testing.assert_array_equal(dataset.test.x, values[9:])


def test_lists_in_many_chunks_are_taken_in_any_order(tmp_path: Path) -> None:
    for number in range(3):
        table = {"user": [1, 2, 1, 2], "label": [0] * 4, "split": [0, 0, 1, 1]}
        lists = [[float(number), float(row)] for row in range(4)]
        pyarrow.parquet.write_table(pyarrow.table({**table, "x": lists}), tmp_path / f"{number}.parquet")
    dataset = load("by_user_parquet", path=str(tmp_path), features=["x"])
    assert dataset.clients[1].x.tolist() == [[0, 1], [1, 1], [2, 1]]
    assert dataset.test.x.tolist() == [[n, row] for n in range(3) for row in (2, 3)]
    assert dataset.clients.held.x[np.array([11, 9, 0, 4])].tolist() == [[2, 3], [2, 1], [0, 0], [1, 0]]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["bytes", "lists"])
def test_each_column_is_read_once_and_a_picture_of_the_test_rows_decoded_once_more_for_its_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A column of lists that is read twice is held twice; that of 800,000 pictures takes ten seconds to decode."""
    read: list[str] = []
    decoded: list[int] = []

    def counted(path: Path) -> Table:
        table = read_parquet(path)
        return replace(table, read=lambda name: read.append(name) or table.read(name))  # type: ignore[func-returns-value]

    def decode(source: pictures.FileBytes | pictures.ColumnBytes, row: int) -> np.ndarray:
        decoded.append(int(row))
        return original(source, row)

    original = pictures.decode
    monkeypatch.setattr(converted, "HELD", 0)
    monkeypatch.setattr(by_user_parquet, "read_parquet", counted)
    monkeypatch.setattr(pictures, "decode", decode)
    opened(tmp_path, "parquet", with_pictures(kind), image="image")
    assert sorted(read) == ["image", "label", "split", "user"]
    assert sorted(set(decoded)) == ([9, 10, 11] if kind == "bytes" else [])
    assert decoded.count(11) == decoded.count(10) == (kind == "bytes")


@pytest.mark.parametrize("kind", ["bytes", "lists"])
def test_a_bad_picture_concerns_its_user_alone_and_clients_stay_recognisable(
    tmp_path: Path, kind: str
) -> None:
    table = with_pictures(kind)
    values = table["image"] if kind == "bytes" else table["image"].to_pylist()  # type: ignore[attr-defined]
    values[1] = png(IMAGES[1])[:40] if kind == "bytes" else values[1][:-1]
    table["image"] = values if kind == "bytes" else pyarrow.array(values, _lists(pyarrow.uint8(), 3))  # type: ignore[assignment]
    dataset = opened(tmp_path, "parquet", table, image="image")
    assert len(dataset.clients[0]) == len(dataset.clients[2]) == 3
    with pytest.raises(DataError):
        dataset.clients[1]
    key = SecretKey.reproducible(0)
    before = digest_clients(dataset.clients, key)
    assert before == digest_clients(
        load("by_user_parquet", path=str(tmp_path / "data.parquet"), image="image").clients, key
    )
    values[2] = values[0]  # of a user whose pictures can be read
    table["image"] = values if kind == "bytes" else pyarrow.array(values, _lists(pyarrow.uint8(), 3))  # type: ignore[assignment]
    assert before != digest_clients(opened(tmp_path, "parquet", table, image="image").clients, key)


Change = dict[str, Any]


@in_every_form
@pytest.mark.parametrize(
    ("change", "settings", "sentence"),
    [
        ({}, {"user": "writer"}, "no column 'writer'; it has user, place, height, label, split: set user"),
        ({}, {"label": "class"}, "no column 'class'; it has user, .*: set label to one of them"),
        ({}, {"features": ["weight"]}, "no column 'weight'; .*: set features"),
        ({}, {"text": "said"}, "no column 'said'; .*: set text"),
        ({}, {"split": "part"}, "no column 'part'; .*: set split"),
        ({"user": [None, "a", "b"] * 4}, {}, r"is empty in 4 of 12 rows|names no user in 4 of 12 rows"),
        ({"user": ["", "a", "b"] * 4}, {}, "names no user in 4 of 12 rows; every example must belong"),
        ({"label": [0] * 11 + [None]}, {}, "'label' of .* is empty in a test row"),
        ({"label": [0] * 11 + [-1]}, {}, "the label -1; labels count from 0"),
        (
            {"label": [0] * 11 + [5]},
            {"classes": 5},
            "the label 5 but there are 5 classes, as the setting says",
        ),
        (
            {"label": ["a"] * 11 + ["b"]},
            {"labels": ["a", "c"]},
            r"the label 'b', which labels=\[a, c\] lacks",
        ),
        ({"split": [2] * 12}, {}, "holds '?2'?; it must hold 0 or train, 1 or test"),
        (
            {"split": ["train"] * 12},
            {},
            "no test example; mark some with 1 in the split column, or leave the split out",
        ),
        ({"split": [1] * 12}, {}, "no training example; mark some with 0"),
        (
            {"note": ["ink"] * 12},
            {},
            "'note' of .* (is (large_)?string|holds 'ink' in a test row), no number; name the columns of the inputs in features",
        ),
        ({"note": ["ink"] * 12}, {"features": ["note"]}, "'note' .* it must hold numbers"),
    ],
)
def test_a_table_that_cannot_be_used_says_what_would_be_right(
    tmp_path: Path, form: str, change: Change, settings: Change, sentence: str
) -> None:
    with pytest.raises((DataError, SettingError), match=sentence):
        opened(tmp_path, form, rows() | change, **settings)


@pytest.mark.parametrize("column", ["user", "label"])
def test_texts_that_are_no_utf8_are_a_sentence(tmp_path: Path, column: str) -> None:
    spoilt = pyarrow.array([b"ann", b"\xff", b"bob"] * 4, pyarrow.binary()).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table(rows() | {column: spoilt}), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=rf"The column '{column}' of .* cannot be read as a table"):
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
    # datasets itself cannot read what it wrote of no rows
    with pytest.raises(DataError, match="holds no rows" if form != "hub" else "cannot be read as"):
        opened(tmp_path, form, {name: pyarrow.array([], "string") for name in ("user", "label")})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("user,label,x\n1,2\n", "cannot be read as CSV .*Expected 3 columns"),
        ("user,user,x\n1,2,3\n", "two columns 'user'"),
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
