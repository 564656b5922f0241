"""What is said of data that are probably not as they were meant: of public examples in warnings, of private ones in the log."""

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from client.data import Dataset, Public, load
from client.data.inspection import inspected
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.errors import DataError

COUNT = 60
SCALED = np.arange(COUNT, dtype=np.float32)[:, None] / COUNT


def arrays(folder: Path, x: np.ndarray = SCALED, least: int = 0, **settings: Any) -> Dataset:
    """Return three classes and users, of whom each has 4 of 20 rows in the test set."""
    np.savez(folder / "a.npz", x=x, y=np.arange(COUNT) // 3 % 3 + least, user=np.arange(COUNT) % 3)
    return load("by_user_npz", path=str(folder / "a.npz"), **settings)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"x": np.arange(COUNT, dtype=np.uint8)[:, None] % 17}, r"the largest test input is 16 of 255\. .* divided by 16\."),
        ({"x": np.arange(COUNT, dtype=np.uint8)[:, None] * 4}, None),
        ({"x": 255 * SCALED}, r"^Inputs are as large as 2\d\d"),
        ({"x": -255 * SCALED}, r"^Inputs are as large as 2\d\d"),
        ({}, None),
        ({"least": 1}, "^1 of 4 classes have no test example: 0. Labels count from 0: subtract 1"),
        ({"classes": 5}, r"^2 of 5 classes have no test example: 3, 4\.$"),
        ({"classes": 5, "max_test_examples": 9}, None),
    ],
)  # fmt: skip
def test_a_scale_or_labels_that_are_probably_a_mistake_are_warned_of(
    tmp_path: Path, given: dict[str, Any], sentence: str | None
) -> None:
    dataset = arrays(tmp_path, **given)
    assert len(dataset.warnings) == (sentence is not None)
    if sentence is not None:
        assert re.search(sentence, dataset.warnings[0])
    assert dataset.notes[0].startswith("inputs are of shape [1]; from ")


def table(folder: Path, *, beyond: int = 0, **columns: Any) -> str:
    """Write twenty users of five rows, of which the last is a test row; `beyond` users have a training label 7 of 2 classes."""
    label = np.arange(100) % 2
    label[np.arange(beyond) * 5] = 7
    rows = {"user": np.arange(100) // 5, "label": label, "split": (np.arange(100) % 5 == 4).astype(int)}
    held = rows | {"age": np.random.default_rng(0).uniform(0, 90, 100)} | columns
    pyarrow.parquet.write_table(pyarrow.table(held), folder / "a.parquet")
    return str(folder / "a.parquet")


def test_columns_are_named_once_and_a_run_and_its_plan_warn_of_large_ones(tmp_path: Path) -> None:
    path = table(tmp_path, weight=np.zeros(100))
    given = ["dataset=by_user_parquet", f"dataset.path={path}", "population.cohort_size=5"]
    experiment = build(compose("config", given, Settings))
    assert experiment.dataset.notes[0].startswith("inputs are 2 columns: age, weight; from 0 to 8")
    assert experiment.misgivings[0].startswith("Inputs are as large as 8")
    assert "(age 8" in experiment.misgivings[0]
    assert "weight" not in experiment.misgivings[0]


def test_a_column_that_counts_the_test_rows_must_be_named_and_no_training_row_decides_it(
    tmp_path: Path,
) -> None:
    count = np.arange(100) * 3 - 7
    for place, is_wrong in ((None, True), (3, True), (4, False)):  # training rows, a test row
        held = np.where(np.arange(100) == place, 50, count)
        path = table(tmp_path, number=held)
        if is_wrong:
            with pytest.raises(DataError, match=r"The column 'number' of .* counts the rows"):
                load("by_user_parquet", path=path)
        for given in ({"features": ["number"]}, {"public": Public((2,), classes=2)}, *[{}] * (not is_wrong)):
            assert len(load("by_user_parquet", path=path, **given).clients) == 20  # type: ignore[arg-type]


def test_turns_that_will_be_zeros_are_logged_and_leave_no_other_trace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for beyond in (0, 1, 2):
        with caplog.at_level(logging.WARNING):
            found.append(load("by_user_parquet", path=table(tmp_path, beyond=beyond)))
        assert ("2 of 20 clients have a label that is none of the 2 classes" in caplog.text) is (beyond == 2)
    assert "set dataset.classes=8 if" in caplog.text
    for one in found[1:]:
        assert (one.notes, one.warnings, one.uncovered) == (
            found[0].notes,
            found[0].warnings,
            found[0].uncovered,
        )
    with pytest.raises(
        DataError, match=r"the label 7; with classes=2 it must be 0 to 1: set dataset\.classes=8"
    ):
        found[1].clients[0]


def test_other_data_than_classes_of_numbers_are_not_inspected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"user": "a", "text": "b"}\n' * 5)
    dataset = load("by_user_text", path=str(tmp_path / "a.jsonl"), level="characters")
    assert inspected(dataset, is_whole=True) is dataset
