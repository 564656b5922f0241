"""Labels of tables of your own; and what is said of data that are probably not as they were meant: of public examples in warnings, of private ones in the log."""

import logging
import re
from decimal import Decimal

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from client.data import Public, load
from client.data.inspection import inspected, log_zeros
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.errors import DataError, SettingError
from small_files import assert_fails_alone, in_every_form, opened, rows, spoilt

ZERO_ONE = [0, 1] * 6


@in_every_form
def test_names_of_labels_become_numbers_by_the_public_list(tmp_path, form):
    table = rows() | {"label": ["dog", "cat", "cow"] * 4}
    dataset = opened(tmp_path, form, table, labels=["cow", "dog", "cat", "hen"])
    assert (dataset.classes, dataset.test.y.tolist(), dataset.clients[1].y.tolist()) == (
        4,
        [1, 2, 0],
        [2] * 3,
    )
    assert not [sentence for sentence in dataset.uncovered if "names of the classes" in sentence]


def test_names_without_a_list_are_an_uncovered_release_whether_or_not_a_user_has_another_name(
    tmp_path,
):
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
        ("parquet", spoilt(["ant", *["dog", "cat"] * 5, "dog"], 0), {"labels": ["cat", "dog"]}),
        ("csv", ["ant", *map(str, ZERO_ONE[1:])], {}),
        ("csv", ["", *map(str, ZERO_ONE[1:])], {}),
        ("csv", [str(10**20), *map(str, ZERO_ONE[1:])], {}),
        ("parquet", [9, *ZERO_ONE[1:]], {"classes": 2}),
        ("parquet", pyarrow.array([2**63, *ZERO_ONE[1:]], pyarrow.uint64()), {}),
    ],
)
def test_a_training_row_with_none_of_the_classes_concerns_its_user_alone(
    tmp_path, form, labels, settings, caplog
):
    """What the labels are must not depend on one user's value."""
    dataset = opened(tmp_path, form, rows() | {"label": labels}, **settings)
    assert (dataset.classes, dataset.test.y.tolist()) == (2, [1, 0, 1])
    sentence = (
        "a label that could not be read"
        if labels[0] != 9
        else "the label 9; with classes=2 it must be 0 to 1: set dataset.classes=10"
    )
    assert_fails_alone(dataset, 2, f"client 2 of dataset .* holds {sentence}")
    log_zeros(dataset)
    assert "1 of 3 clients have a label that is none of the 2 classes" in caplog.text
    assert ("list the names of all classes in dataset.labels" in caplog.text) is bool(dataset.labels)


def listed(kind, number, odd):
    """Return a table with lists of labels of the Arrow type `kind`, three made by `number` in each row but for the rows `odd`."""
    made = [
        cells and [None if cell is None else number(cell) for cell in cells]
        for cells in (odd.get(row, [row % 2, 0, 1]) for row in range(12))
    ]
    return rows() | {"label": pyarrow.array(made, kind)}


ODD = (None, [None, 0, 1], [1], [1, 0, 1, 0], [])


@pytest.mark.parametrize(
    ("form", "outer", "odds"),
    [
        ("parquet", pyarrow.list_, ODD),
        ("hub", pyarrow.list_, ODD),
        ("parquet", pyarrow.large_list, ODD),
        ("parquet", lambda inner: pyarrow.list_(inner, 3), ODD[:2]),
    ],
)
@pytest.mark.parametrize(
    ("inner", "number"),
    [
        *[("bool", bool), ("int8", int), ("int64", int), ("uint64", int)],
        *[("float16", np.float16), ("float32", float), ("float64", float)],
    ],
)
def test_a_list_that_is_no_target_concerns_its_user_alone_and_of_a_test_row_is_named(
    tmp_path_factory, form, outer, odds, inner, number, caplog
):
    kind, folder = outer(pyarrow.type_for_alias(inner)), tmp_path_factory.mktemp
    good = opened(folder("good"), form, listed(kind, number, {}))
    assert (good.notes[1], good.columns, good.test.y.tolist()) == (
        "the task is multilabel: 3 labels a target, from 0 to 1",
        ("place", "height"),
        [[1, 0, 1], [0, 0, 1], [1, 0, 1]],
    )
    for odd in odds:
        for public in (None, good.public):  # in a simulation, and on a node
            dataset = opened(folder("odd"), form, listed(kind, number, {0: odd}), public=public)
            assert_fails_alone(dataset, 2, "targets that are not finite")
            log_zeros(dataset)
            np.testing.assert_array_equal(
                *([part.clients[0].y, part.clients[1].y] for part in (dataset, good))
            )
        for row in (9, 10):  # the first says how long all are
            with pytest.raises(DataError, match=r"'label' of .* no list of numbers in row 1[01], a test row"):
                opened(folder("odd"), form, listed(kind, number, {row: odd}))
    assert caplog.text.count("1 of 3 clients have a target that is not 0 or 1") == 2 * len(odds)


@pytest.mark.parametrize("odd", [*ODD, [1, 0, 1]])
@pytest.mark.parametrize(
    ("inner", "cell"),
    [
        (pyarrow.string(), str),
        (pyarrow.decimal128(9, 1), Decimal),
        (pyarrow.list_(pyarrow.int8()), lambda n: [n]),
        (pyarrow.null(), lambda n: None),
    ],
)
def test_lists_of_what_is_no_number_are_refused_by_their_type(tmp_path, inner, cell, odd):
    with pytest.raises(DataError, match=r"only label, of numbers: 0 or 1 .* \[0, 1, 1\]|read as a table"):
        opened(tmp_path, "parquet", listed(pyarrow.list_(inner), cell, {0: odd}))


@pytest.mark.parametrize("odd", [2, 2**60, 0.5, 1e300])
def test_a_label_of_many_that_is_not_0_or_1_is_said_before_the_run(tmp_path, odd, caplog):
    dataset = opened(
        tmp_path, "parquet", listed(pyarrow.list_(pyarrow.scalar(odd).type), type(odd), {0: [odd, 0, 1]})
    )
    assert_fails_alone(dataset, 2, "labels other than 0 and 1|not finite")
    log_zeros(dataset)
    assert "1 of 3 clients have a target that is not 0 or 1" in caplog.text


@pytest.mark.parametrize("label", [10**13, 10**6, 2**63])
def test_a_test_label_does_not_stand_for_a_million_classes_by_itself(tmp_path, label):
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
    tmp_path, cells, settings, classes, numbers
):
    dataset = opened(tmp_path, "csv", rows() | {"label": cells * (12 // len(cells))}, **settings)
    held = {
        int(x): y
        for part in [*dataset.clients, dataset.test]
        for x, y in zip(part.x[:, 0], part.y, strict=True)
    }
    assert ([held[row] for row in range(12)], dataset.classes) == (numbers * (12 // len(cells)), classes)


@pytest.mark.parametrize("first", ["1", "1.5", ""])
def test_whole_floats_of_a_csv_ask_for_the_task_whatever_training_rows_hold(tmp_path, first):
    table = rows() | {"label": [*[first] * 9, "2.0", "0.0", "1"]}
    with pytest.raises(DataError, match=r"as floats .* classes: set task to classification or regression"):
        opened(tmp_path, "csv", table)
    for settings in ({"classes": 3}, {"task": "classification"}, {"task": "regression"}):
        assert opened(tmp_path, "csv", table, **settings).task == settings.get("task", "classification")


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
    tmp_path, labels, classes, numbers
):
    held = rows() | {"label": [-1, *[1, 2, 0] * 3, 1, 2]}  # bob's first has no name
    kind = datasets.ClassLabel(names=["no", "yes", "unsure"])
    datasets.Dataset.from_dict(held).cast_column("label", kind).save_to_disk(str(tmp_path / "saved"))
    path = str(tmp_path / "saved")
    dataset = load("by_user_hub", path=path, labels=labels, classes=classes)
    assert dataset.test.y.tolist() == [numbers[0], numbers[1], numbers[2]]
    expected = tuple(labels or ["no", "yes", "unsure"]), classes or len(labels or "abc")
    assert (dataset.public.labels, dataset.classes) == expected
    assert not [sentence for sentence in dataset.uncovered if "names of the classes" in sentence]
    assert_fails_alone(dataset, 2, "client 2 .* holds a label that could not be read")
    with pytest.raises(SettingError, match=r"classes is 2, but there are [34] names"):
        load("by_user_hub", path=path, labels=labels, classes=2)


# data that are probably not as they were meant


COUNT = 60
SCALED = np.arange(COUNT, dtype=np.float32)[:, None] / COUNT


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"x": np.arange(COUNT, dtype=np.uint8)[:, None] % 17}, r"the largest test input is 16 of 255\. .* divided by 16\."),
        ({"x": np.arange(COUNT, dtype=np.uint8)[:, None] * 4}, None),
        ({"x": 255 * SCALED}, r"^Inputs are as large as 2\d\d"),
        ({"x": -255 * SCALED}, r"^Inputs are as large as 2\d\d"),
        ({"x": 1 - SCALED**9}, "^Most inputs are near their largest value, as ink on white is: invert them"),
        ({"x": SCALED**9}, None),
        ({}, None),
        ({"least": 1}, "^1 of 4 classes have no test example: 0. Labels count from 0: subtract 1"),
        ({"classes": 5}, r"^2 of 5 classes have no test example: 3, 4\.$"),
        ({"classes": 5, "max_test_examples": 9}, None),
    ],
)  # fmt: skip
def test_a_scale_or_labels_that_are_probably_a_mistake_are_warned_of(tmp_path, given, sentence):
    settings = {"x": SCALED, "least": 0, **given}
    y, user = (
        np.arange(COUNT) // 3 % 3 + settings.pop("least"),
        np.arange(COUNT) % 3,
    )  # each has 4 of 20 rows in the test set
    np.savez(tmp_path / "a.npz", x=settings.pop("x"), y=y, user=user)
    dataset = load("by_user_npz", path=str(tmp_path / "a.npz"), **settings)
    assert len(dataset.warnings) == (sentence is not None)
    if sentence is not None:
        assert re.search(sentence, dataset.warnings[0])
    assert dataset.notes[0].startswith("inputs are of shape [1]; from ")


def table(folder, *, beyond=0, **columns):
    """Write twenty users of five rows, of which the last is a test row; `beyond` users have a training label 7 of 2 classes."""
    label = np.arange(100) % 2
    label[np.arange(beyond) * 5] = 7
    rows = {
        "user": np.arange(100) // 5,
        "label": label,
        "split": (np.arange(100) % 5 == 4).astype(int),
        "age": np.random.default_rng(0).uniform(0, 90, 100),
    }
    pyarrow.parquet.write_table(pyarrow.table(rows | columns), folder / "a.parquet")
    return str(folder / "a.parquet")


def test_columns_are_named_once_and_a_run_and_its_plan_warn_of_large_ones(tmp_path):
    path = f"dataset.path={table(tmp_path, weight=np.zeros(100))}"
    experiment = build(
        compose("config", ["dataset=by_user_parquet", path, "population.cohort_size=5"], Settings)
    )
    assert experiment.dataset.notes[0].startswith("inputs are 2 columns: age, weight; from 0 to 8")
    assert re.match(r"Inputs are as large as 8.* \(age 8", experiment.misgivings[0])
    assert "weight" not in experiment.misgivings[0]


def test_a_column_that_counts_the_test_rows_must_be_named_and_no_training_row_decides_it(
    tmp_path,
):
    count = np.arange(100) * 3 - 7
    for place, is_wrong in ((None, True), (3, True), (4, False)):  # training rows, a test row
        path = table(tmp_path, number=np.where(np.arange(100) == place, 50, count))
        if is_wrong:
            with pytest.raises(DataError, match=r"The column 'number' of .* counts the rows"):
                load("by_user_parquet", path=path)
        for given in ({"features": ["number"]}, {"public": Public((2,), classes=2)}, *[{}] * (not is_wrong)):
            assert len(load("by_user_parquet", path=path, **given).clients) == 20


def test_turns_that_will_be_zeros_are_logged_and_leave_no_other_trace(tmp_path, caplog):
    found = []
    for beyond in (0, 1, 2):
        with caplog.at_level(logging.WARNING):
            path = table(tmp_path, beyond=beyond)
            found.append(load("by_user_parquet", path=path))
            log_zeros(found[-1])
        assert (f"{beyond} of 20 clients have a label that is none of the 2 classes" in caplog.text) is (
            beyond > 0
        )
    assert "set dataset.classes=8 if" in caplog.text
    for one in found[1:]:
        assert (one.notes, one.warnings, one.uncovered) == (
            found[0].notes,
            found[0].warnings,
            found[0].uncovered,
        )
    caplog.clear()
    for engine, count in (
        (["engine=deployment", "population.min_available=20"], 0),  # the log is that of who submits the run
        (["engine=local"], 1),
    ):
        build(
            compose(
                "config",
                ["dataset=by_user_parquet", f"dataset.path={path}", "population.cohort_size=5", *engine],
                Settings,
            )
        )
        assert caplog.text.count("on this machine only") == count


def test_other_data_than_classes_of_numbers_are_not_inspected(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"user": "a", "text": "b"}\n' * 5)
    dataset = load("by_user_text", path=str(tmp_path / "a.jsonl"), level="characters")
    assert inspected(dataset, is_whole=True) is dataset
