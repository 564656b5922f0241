"""Labels of tables of your own: numbers, names, and how many classes there are."""

from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pytest

from client.data import load
from fedmf.errors import DataError, SettingError
from small_files import assert_fails_alone, in_every_form, opened, rows

ZERO_ONE = [0, 1] * 6


@in_every_form
def test_names_of_labels_become_numbers_by_the_public_list(tmp_path: Path, form: str) -> None:
    table = rows() | {"label": ["dog", "cat", "cow"] * 4}
    dataset = opened(tmp_path, form, table, labels=["cow", "dog", "cat", "hen"])
    assert (dataset.classes, dataset.test.y.tolist()) == (4, [1, 2, 0])
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
    table = rows() | {"label": ["ant", "dog", *["cat", "dog"] * 5]}
    for classes in (2, 3):  # then the names are those of the test rows, and nothing is collected
        dataset = opened(tmp_path, "csv", table, classes=classes)
        assert (dataset.classes, dataset.test.y.tolist(), len(dataset.uncovered)) == (classes, [1, 0, 1], 1)
        assert_fails_alone(dataset, 2, "holds a label that could not be read")


@pytest.mark.parametrize(
    ("form", "labels", "settings"),
    [
        ("csv", ["ant", *["dog", "cat"] * 5, "dog"], {"labels": ["cat", "dog"]}),
        ("csv", ["", *["dog", "cat"] * 5, "dog"], {}),
        ("csv", ["ant", *map(str, ZERO_ONE[1:])], {}),
        ("csv", ["", *map(str, ZERO_ONE[1:])], {}),
        ("csv", [str(10**20), *map(str, ZERO_ONE[1:])], {}),
        ("parquet", [9, *ZERO_ONE[1:]], {"classes": 2}),
        ("parquet", pyarrow.array([2**63, *ZERO_ONE[1:]], pyarrow.uint64()), {}),
    ],
)
def test_a_training_row_with_none_of_the_classes_concerns_its_user_alone(
    tmp_path: Path, form: str, labels: Any, settings: dict[str, Any]
) -> None:
    """What the labels are must not depend on one user's value."""
    dataset = opened(tmp_path, form, rows() | {"label": labels}, **settings)
    assert (dataset.classes, dataset.test.y.tolist()) == (2, [1, 0, 1])
    sentence = (
        "a label that could not be read" if labels[0] != 9 else "the label 9; .*: set dataset.classes=10"
    )
    assert_fails_alone(dataset, 2, f"client 2 of dataset .* holds {sentence}")


@pytest.mark.parametrize("label", [10**13, 10**6, 2**63])
def test_a_test_label_does_not_stand_for_a_million_classes_by_itself(tmp_path: Path, label: int) -> None:
    column = pyarrow.array([*ZERO_ONE[:11], label], pyarrow.uint64())
    for form in ("csv", "parquet"):
        with pytest.raises(DataError, match=f"A test row .* the label {label}, .*Set classes"):
            opened(tmp_path, form, rows() | {"label": column})
    if label == 10**6:
        assert opened(tmp_path, "parquet", rows() | {"label": column}, classes=label + 1).classes == label + 1


@pytest.mark.parametrize(
    ("cells", "settings", "classes", "numbers"),
    [
        (["1", "+1", "1.0", " 2", "0", "2 "], {}, 3, [1, 1, 1, 2, 0, 2]),
        (["cat", " dog", "cat "], {}, 2, [0, 1, 0]),
        (["cat", " dog", "cat "], {"labels": ["cat ", "dog"]}, 2, [0, 1, 0]),
        (["01", "02"], {"labels": ["02", "01"]}, 2, [1, 0]),
    ],
)
def test_labels_of_a_csv_that_are_written_otherwise_are_the_same_classes(
    tmp_path: Path, cells: list[str], settings: dict[str, Any], classes: int, numbers: list[int]
) -> None:
    dataset = opened(tmp_path, "csv", rows() | {"label": cells * (12 // len(cells))}, **settings)
    held = {
        int(x): y
        for part in [*dataset.clients, dataset.test]
        for x, y in zip(part.x[:, 0], part.y, strict=True)
    }
    assert ([held[row] for row in range(12)], dataset.classes) == (numbers * (12 // len(cells)), classes)


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (None, None, [0, 1, 2]),
        (["no", "yes", "unsure"], None, [0, 1, 2]),
        (["unsure", "no", "yes", "later"], 5, [1, 2, 0]),
        (None, 4, [0, 1, 2]),
    ],
)
def test_the_class_names_that_a_saved_data_set_declares_may_be_given_as_labels(
    tmp_path: Path, labels: list[str] | None, classes: int | None, numbers: list[int]
) -> None:
    held = rows() | {"label": [-1, *[1, 2, 0] * 3, 1, 2]}  # bob's first has no name
    kind = datasets.ClassLabel(names=["no", "yes", "unsure"])
    datasets.Dataset.from_dict(held).cast_column("label", kind).save_to_disk(str(tmp_path / "saved"))
    path = str(tmp_path / "saved")
    dataset = load("by_user_hub", path=path, labels=labels, classes=classes)
    assert dataset.test.y.tolist() == [numbers[0], numbers[1], numbers[2]]
    assert dataset.classes == (classes or len(labels or "abc"))
    assert dataset.public.labels == tuple(labels or ["no", "yes", "unsure"])
    assert not [sentence for sentence in dataset.uncovered if "names of the classes" in sentence]
    assert_fails_alone(dataset, 2, "client 2 .* holds a label that could not be read")
    with pytest.raises(SettingError, match=r"classes is 2, but there are [34] names"):
        load("by_user_hub", path=path, labels=labels, classes=2)
