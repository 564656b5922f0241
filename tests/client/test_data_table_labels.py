"""Labels of tables of one's own: numbers, names, and how many classes there are."""

from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from client.data import load
from fedmf.errors import DataError, SettingError
from own_tables import in_every_form, opened, rows, saved_with_class_names


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
    (tmp_path / "tested").mkdir()
    without = saved_with_class_names(tmp_path / "tested", [0, 1, 2, *[0, 1] * 4, 1])  # no test row is unsure
    for saved in (path, without):
        with pytest.raises(
            SettingError, match=r"labels is \[no, yes\], which lacks 'unsure'; .* no, yes, unsure"
        ):
            load("by_user_hub", path=saved, labels=["no", "yes"])
    with pytest.raises(SettingError, match=r"labels is \[0, 1, 2\], which lacks 'no'"):
        load("by_user_hub", path=path, labels=["0", "1", "2"])


def test_a_number_without_a_declared_name_spoils_its_client(tmp_path: Path) -> None:
    path = saved_with_class_names(tmp_path, [-1, *[0, 1, 2] * 3, 1, 2])
    for labels in (None, ["unsure", "no", "yes", "-1"]):
        dataset = load("by_user_hub", path=path, labels=labels)
        assert len(dataset.clients[1]) == 3
        with pytest.raises(DataError, match=r"client 2 .* holds the label -1"):
            dataset.clients[2]
