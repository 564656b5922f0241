"""What is valid in its format but no value that can be used concerns its user alone, and so do texts that are no UTF-8."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import small_files
from client.data import load
from client.data.dataset import Dataset
from client.data.reading import DEEPEST, read_json
from fedmf.errors import DataError

DEEP = "[" * 100_000 + "]" * 100_000
LONG = "9" * 5000
COUNT = len(small_files.USERS) * small_files.ROWS


def assert_bob_alone_fails(dataset: Dataset, sentence: str) -> None:
    assert len(dataset.clients) == 3
    assert min(len(dataset.clients[0]), len(dataset.clients[2])) > 0
    with pytest.raises(DataError, match=sentence):
        dataset.clients[1]


def leaf_with(folder: Path, name: str, value: str, split: str = "train") -> dict[str, Any]:
    """Write a LEAF folder in which the text `value` stands for bob."""
    small_files.leaf(folder, name)
    file = folder / split / "all_data.json"
    document = json.loads(file.read_text())
    document["user_data"]["bob"] = "BOB"
    file.write_text(json.dumps(document).replace('"BOB"', value))
    return {"name": name, "path": str(folder)}


PIXELS = json.dumps([0.5] * 784)
ODD = {
    "null": "null",
    "a list": "[1]",
    "a text": '"x"',
    "a long label": f'{{"x": [{PIXELS}], "y": [{LONG}]}}',
    "a long pixel": f'{{"x": [[{LONG}{", 0.5" * 783}]], "y": [1]}}',
    "a deep pixel": f'{{"x": [[{DEEP}{", 0.5" * 783}]], "y": [1]}}',
    "deep": DEEP,
    "no examples": '{"x": [], "y": []}',
    "a true pixel": f'{{"x": [[true{", 0.5" * 783}]], "y": [1]}}',
    "true pixels": f'{{"x": [[true{", false" * 783}]], "y": [1]}}',
}


@pytest.mark.parametrize("odd", ODD)
def test_a_user_of_leaf_who_cannot_be_read_concerns_nobody_else(tmp_path: Path, odd: str) -> None:
    assert_bob_alone_fails(load(**leaf_with(tmp_path / "leaf", "femnist", ODD[odd])), "could not be read")


@pytest.mark.parametrize("odd", ["null", "a list", "deep", "no examples"])
def test_a_role_of_leaf_who_cannot_be_read_concerns_nobody_else(tmp_path: Path, odd: str) -> None:
    assert_bob_alone_fails(load(**leaf_with(tmp_path / "leaf", "shakespeare", ODD[odd])), "could not be read")


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd != "no examples"])
def test_a_test_user_of_leaf_who_cannot_be_read_is_refused(tmp_path: Path, odd: str) -> None:
    with pytest.raises(DataError, match="'bob'"):
        load(**leaf_with(tmp_path / "leaf", "femnist", ODD[odd], "test"))


def test_a_user_of_leaf_may_have_no_test_examples(tmp_path: Path) -> None:
    dataset = load(**leaf_with(tmp_path / "leaf", "femnist", ODD["no examples"], "test"))
    assert (len(dataset.clients), len(dataset.test)) == (3, 2 * small_files.ROWS)


@pytest.mark.parametrize(
    "values",
    [f'"text": {LONG}', f'"text": {DEEP}', f'"tokens": [{DEEP}]', f'"tokens": {{"a": {DEEP}}}', f'"tokens": -{LONG}'],
)  # fmt: skip
def test_a_line_of_json_that_python_does_not_read_concerns_its_user_alone(
    tmp_path: Path, values: str
) -> None:
    given = small_files.settings("jsonl", tmp_path)
    path = Path(given["path"])
    lines = path.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if '"bob"' in line)
    lines[place] = f'{{"user": "bob", {values}, "split": 0}}'
    path.write_text("\n".join(lines))
    assert_bob_alone_fails(load(**given), "could not be read")
    lines[place] = lines[place][:-1].replace('"split": 0', '"split": 1}')
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"Row 7 .* is a test row and holds no text"):
        load(**given)


@pytest.mark.parametrize("text", [DEEP[:-1], '{"a": ' + DEEP, "[" * 100_000, DEEP + "]"])
def test_a_deep_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="x cannot be read as JSON"):
        read_json(text, "x")


def test_a_deep_text_keeps_all_that_lies_above(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f'{{"a": "]}}\\"[", "b": [1, {DEEP}, "\\\\"], "c": {{"d": [{DEEP}, 2]}}}}'
    value = read_json(text, "x")
    assert (value["a"], value["b"][::2], value["c"]["d"][1]) == (']}"[', [1, "\\"], 2)
    depth, inner = 0, value["b"][1]
    while inner is not None:
        depth, inner = depth + 1, inner[0] if inner else None
    assert depth == DEEPEST - 2
    assert read_json(f"[{LONG}, -{LONG}, 7, {'7' * 4000}]", "x") == [
        float("inf"), -float("inf"), 7, int("7" * 4000)
    ]  # fmt: skip


def spoilt(values: list[Any], row: int = 6, kind: Any = None) -> pyarrow.Array:
    """Return an array of texts in which the one in `row` is not UTF-8."""
    held = [value.encode() for value in values]
    held[row] = b"\xff"
    texts = pyarrow.array(held, pyarrow.binary()).view(pyarrow.string())
    return texts if kind is None else texts.cast(kind)


def of_tokens(texts: pyarrow.Array) -> pyarrow.Array:
    return pyarrow.ListArray.from_arrays(pyarrow.array(range(len(texts) + 1), pyarrow.int32()), texts)


@pytest.mark.parametrize("kind", ["text", "tokens", "dictionary"])
def test_a_training_text_that_is_no_utf8_concerns_its_user_alone(tmp_path: Path, kind: str) -> None:
    def column(row: int) -> pyarrow.Array:
        texts = spoilt([small_files.LINE] * COUNT, row)
        if kind == "dictionary":
            places = pyarrow.array([int(n == row) for n in range(COUNT)], pyarrow.int32())
            return pyarrow.DictionaryArray.from_arrays(
                places, pyarrow.concat_arrays([texts[row - 1 : row + 1]])
            )
        return of_tokens(texts) if kind == "tokens" else texts

    path = small_files.own_parquet(tmp_path / "data.parquet", said=column(6))
    given = {"name": "by_user_parquet", "path": str(path), "text": "said", "level": "characters"}
    assert_bob_alone_fails(load(**given), "could not be read")  # type: ignore[arg-type]
    small_files.own_parquet(path, said=column(5))
    with pytest.raises(DataError, match=r"Row 6 of .* is a test row and holds no text"):
        load(**given)  # type: ignore[arg-type]


def test_a_training_label_that_is_no_utf8_concerns_its_user_alone(tmp_path: Path) -> None:
    names = [("no", "yes", "unsure")[label] for label in small_files.table()["label"]]
    path = small_files.own_parquet(tmp_path / "data.parquet", label=spoilt(names))
    given = {"features": ["x0"], "labels": ["no", "yes", "unsure"]}
    dataset = load("by_user_parquet", path=str(path), **given)  # type: ignore[arg-type]
    assert_bob_alone_fails(dataset, "could not be read")
    whole = load(
        "by_user_parquet", path=str(small_files.own_parquet(path, label=names)), **given  # type: ignore[arg-type]
    )  # fmt: skip
    np.testing.assert_array_equal(whole.clients[0].y, dataset.clients[0].y)


def test_the_path_of_a_picture_that_is_no_utf8_does_not_matter(tmp_path: Path) -> None:
    held = pyarrow.array([small_files.png()["bytes"]] * COUNT, pyarrow.binary())
    column = pyarrow.StructArray.from_arrays([held, spoilt(["a.png"] * COUNT)], ["bytes", "path"])
    path = small_files.own_parquet(tmp_path / "data.parquet", picture=column)
    dataset = load("by_user_parquet", path=str(path), image="picture")
    assert [len(client) for client in dataset.clients] == [5, 5, 5]
