"""What a reader says of a broken file names the file and the fault, and no row: logs are kept, and sent around."""

import gzip
import json
import sqlite3
import traceback
from pathlib import Path

import pyarrow
import pytest

import small_files
from client.data import Public, load
from client.data.reading import brief, reading, without_values
from experiments.deployment.node import Node, node_settings, readiness
from fedmf.errors import DataError
from nodes import node_with

NAME = "SMITH John 1951-03-02"
HEAD = "user,label,a,b\n" + "".join(f"u{row % 3},{row % 2},{row},1\n" for row in range(18))


def everything(error: BaseException) -> str:
    """Return what a log shows of an error, its causes too."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "line",
    [f"{NAME},0,1", f"{NAME},0,1,2,3", f'"{NAME}\n",0,1', f"u1,0,{NAME}", f"u1,0,{NAME},1,\n\xff"],
    ids=["a cell too few", "too many", "two lines", "in a cell of numbers", "and bytes that are no text"],
)
@pytest.mark.parametrize("folder", [False, True])
def test_a_broken_row_of_csv_is_not_quoted(tmp_path: Path, line: str, folder: bool) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes((HEAD + line + "\n").encode("latin-1"))
    with pytest.raises(DataError, match=r"data\.csv cannot be read as CSV .*columns, got \d\)\.") as raised:
        load("by_user_csv", path=str(tmp_path if folder else path), classes=2)
    assert "SMITH" not in everything(raised.value)


def test_the_first_of_two_readings_is_not_quoted_with_the_second(tmp_path: Path) -> None:
    """Beyond the beginning that says a column's kind: first a cell that is no number, then bytes that are no text."""
    path = tmp_path / "data.csv"
    lines = "".join(f"{row},u{row % 3},{row % 2}\n" for row in range(120_000))
    path.write_bytes(f"a,user,label\n{lines}{NAME},u1,0\n1,\xff,0\n".encode("latin-1"))
    with pytest.raises(DataError, match="invalid UTF8") as raised:
        load("by_user_csv", path=str(path), classes=2)
    assert "SMITH" not in everything(raised.value)


def test_a_node_that_is_not_ready_quotes_no_row_in_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(HEAD + f"{NAME},0,1\n")
    why = readiness(
        Node(
            node_settings(f"clients=3 dataset=by_user_csv dataset.path={path} public={{shape:[2],classes:2}}")
        )
    )
    assert why.startswith("its data cannot be loaded: ")
    assert "got 3" in why
    assert "SMITH" not in why


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        (
            HEAD + f"u1,0,{NAME},1\n" * 9,
            {},
            r"no number in row .*; set features to the columns of the inputs, or set text to one\.$",
        ),
        (
            HEAD.replace("b\n", "b,split\n", 1).replace(",1\n", ",1,0\n") + f"u1,0,1,1,{NAME}\n",
            {},
            "neither in row 19",
        ),
        (
            HEAD + f"u1,{NAME},1,1\n" * 5,
            {"labels": ["0", "1"]},
            r"in row (19|2[0-3]), a test row, what labels=",
        ),
        (HEAD + f"u9,{NAME},1,1\n" * 5, {}, "no whole number in row (19|2[0-3]), a test row"),
        (f"{NAME},0,1,2\nu2,0,1,1\n", {}, "one of the 4 columns that its first line names"),
        (f"{NAME},0,1,2\nu2,0,1,1\n", {"header": False}, "no column 'user'; set user to one of f0 to f3"),
        (f"{NAME},{NAME},1,1\nu2,0,1,1\n", {}, "names its columns 1 and 2 alike"),
        (f"user,label,{NAME},{NAME}\nu2,0,1,1\n", {}, "names its columns 3 and 4 alike"),
    ],
    ids=[
        "cell",
        "split",
        "label",
        "no whole label",
        "no first line",
        "no header",
        "one name twice",
        "two alike",
    ],
)
def test_sentences_of_our_own_name_column_and_row_and_no_cell(
    tmp_path: Path, text: str, settings: dict[str, list[str]], words: str
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as raised:
        load("by_user_csv", path=str(path), **settings)  # type: ignore[arg-type]
    assert "SMITH" not in everything(raised.value)
    why = readiness(
        node_with({"name": "by_user_csv", "path": str(path), **settings}, 3, Public((2,), classes=2))
    )
    assert "SMITH" not in why


def test_a_file_of_a_folder_whose_first_line_is_a_row_is_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text(f"user,label,{NAME}\nu1,0,1\n")
    (tmp_path / "2.csv").write_text("user,label,b\nu1,0,1\n")
    with pytest.raises(DataError, match="A column in include_columns does not exist") as raised:
        load("by_user_csv", path=str(tmp_path))
    assert "SMITH" not in everything(raised.value)


def test_no_user_of_json_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"user": [NAME], "text": "a"}) + "\n")
    with pytest.raises(DataError, match=r"names a user by list \(entry 1\)") as raised:
        load("by_user_text", path=str(tmp_path / "data.jsonl"))
    assert "SMITH" not in everything(raised.value)


@pytest.mark.parametrize(
    "words",
    [
        "Unrecognized value for boolean: {}", "CSV file contained multiple columns named {}",
        "time data '{}' does not match format '%Y'", "Error parsing '{}' as scalar of type double",
        "Integer value {} not in range: 0 to 255", "Schema at index 1 was different: \n{}: string",
        "CSV conversion error to double: invalid value '{}'", "Column '{}' in include_columns does not exist in CSV file",
    ],
)  # fmt: skip
def test_what_arrow_says_is_cut_before_the_value(words: str) -> None:
    said = without_values(words.format(NAME))
    assert "SMITH" not in said
    assert len(said) > 8


@pytest.mark.parametrize("packed", [False, True])
def test_a_broken_line_of_json_is_not_quoted(tmp_path: Path, packed: bool) -> None:
    line = json.dumps({"user": "u1", "text": NAME})[:-1] + " x}\n"
    path = tmp_path / ("data.jsonl.gz" if packed else "data.jsonl")
    path.write_bytes(gzip.compress(line.encode()) if packed else line.encode())
    with pytest.raises(DataError, match=r"Line 1 of .* cannot be read as JSON") as raised:
        load("by_user_text", path=str(path))
    assert "SMITH" not in everything(raised.value)


def test_a_broken_parquet_file_is_not_quoted(tmp_path: Path) -> None:
    path = small_files.own_parquet(tmp_path / "data.parquet", said=[NAME] * 18)
    path.write_bytes(path.read_bytes()[:-20] + NAME.encode())
    with pytest.raises(DataError, match="cannot be read as parquet") as raised:
        load("by_user_parquet", path=str(path), text="said")
    assert "SMITH" not in everything(raised.value)


def failing(kind: str) -> None:
    if kind == "float":
        float(NAME)
    elif kind == "int":
        int(NAME)
    elif kind == "arrow":
        pyarrow.array([NAME]).cast("float32")
    elif kind == "arrow types":
        pyarrow.array([1.5, NAME])
    else:
        sqlite3.connect(":memory:").execute(f"SELECT CAST(x'{NAME.encode().hex()}ff' AS TEXT)").fetchall()


@pytest.mark.parametrize("kind", ["float", "int", "arrow", "arrow types", "sqlite"])
def test_no_parser_is_quoted_where_it_quotes_a_value(kind: str) -> None:
    with pytest.raises(DataError) as raised, reading("a file", "numbers"):
        failing(kind)
    assert "SMITH" not in everything(raised.value)
    assert "a file cannot be read as numbers (" in str(raised.value)


def test_other_words_of_a_parser_stay_and_so_does_the_cause() -> None:
    words = "Could not open the file: the footer is too short"
    assert brief(ValueError(words)) == f"ValueError: {words}"
    with pytest.raises(DataError) as raised, reading("a file", "numbers"):
        raise ValueError(words)
    assert isinstance(raised.value.__cause__, ValueError)
