"""Where a parser ends and this project begins: what a parser raises on a broken file becomes a sentence.

`reading` stands around calls of parsers alone (numpy, json, h5py, sqlite3, pyarrow, PIL), which raise errors of many kinds:
LookupError for a broken link, RuntimeError for a deep document, MemoryError for a size that a file made up.
"""

import importlib
import io
import json
import logging
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np

from client.imports import need
from fedmf.errors import DataError, FedmfError, one_line

log = logging.getLogger(__name__)

# Pictures that are decoded. Pillow knows others, of which some start programs on what a user put into the file (EPS).
FORMATS = ("PNG", "JPEG")
_MOST_DIGITS = 4000  # of a whole number; Python's own limit is 4300
# Modules of Python that read packed files.
PACKED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".lzma": "lzma"}
# Lists and objects in one another of a JSON text that is too deep to be read; no loader wants more.
DEEPEST = 16
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
# What parsers say before they quote a row or a value: pyarrow, sqlite3, Python.
_VALUE_FOLLOWS = re.compile(
    r"(columns, got \d+|invalid value|with text|could not convert string to float|invalid literal for int\(\) with base \d+|"
    r"Could not convert|Failed to parse string|Unrecognized value for boolean|multiple columns named|time data|Error parsing|"
    r"Integer value|Schema at index \d+ was different)\b:?\s.*",
    re.DOTALL,
)
# What pyarrow says of a column that another file names, whose first line may be a row.
_COLUMN = re.compile(r"Column '.*' in include_columns", re.DOTALL)


@contextmanager
def reading(path: Path | str, right: str) -> Iterator[None]:
    """Let whatever a parser raises inside be raised as a `DataError` that names `path` and what it should be.

    >>> with reading("x.json", "JSON"):
    ...     json.loads("{")
    Traceback (most recent call last):
    fedmf.errors.DataError: x.json cannot be read as JSON (JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)).
    """
    try:
        yield
    except FedmfError:
        raise
    except Exception as error:
        # A traceback in a log shows the cause with all of its words.
        cause = error if without_values(str(error)) == str(error) else None
        raise DataError(f"{path} cannot be read as {right} ({brief(error)}).") from cause


def open_text(path: Path) -> TextIO:
    """Open a file of UTF-8 text to read it; one called .gz, .bz2, .xz or .lzma is unpacked on the way.

    A byte order mark is no part of the text.
    """
    # Imported here: Python may be built without one.
    opener = importlib.import_module(PACKED.get(path.suffix.lower(), "io")).open
    return cast(TextIO, opener(path, "rt", encoding="utf-8-sig"))


def without_values(words: str) -> str:
    """Return what a parser says without the row or value that it quotes, which is somebody's: logs are kept and sent around.

    >>> without_values("CSV parse error: Row #3: Expected 4 columns, got 3: SMITH John,0,1")
    'CSV parse error: Row #3: Expected 4 columns, got 3'
    """
    return _VALUE_FOLLOWS.sub(r"\1", _COLUMN.sub("A column in include_columns", words))


def brief(error: BaseException) -> str:
    """Return type and message of an error on one line of bounded length, without values that a parser quotes.

    >>> brief(KeyError("x"))
    "KeyError: 'x'"
    """
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{error.filename} does not exist"
    return one_line(error, without_values(str(error)))


def read_json(text: str, where: Path | str) -> Any:
    """Return the value of a JSON text; raise `DataError` about `where`.

    JSON that no loader can use becomes a value that every loader refuses, so that it concerns its user alone: a whole
    number of thousands of digits is infinite, and what is deeper than `DEEPEST` lists and objects, in a text that cannot
    be read otherwise, is null.
    """
    parse = partial(
        json.loads, parse_int=lambda digits: (int if len(digits) <= _MOST_DIGITS else float)(digits)
    )
    with reading(where, "JSON"):
        try:
            return parse(text)
        except RecursionError:
            return parse(_shallow(text))


def _shallow(text: str) -> str:
    """Return a JSON text with null in place of each list or object that lies below `DEEPEST` others.

    What stands inside these is not looked at, but that brackets outside of texts are closed.
    """
    kept, begin, depth = [], 0, 0
    for mark in _BRACKETS.finditer(text):
        if mark[0] in "[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept += [text[begin : mark.start()], "null"]
        elif mark[0] in "]}":
            depth -= 1
            if depth == DEEPEST:
                begin = mark.end()
    return "".join([*kept, text[begin:]]) if depth <= DEEPEST else text


def pixels_of(content: object, name: str) -> tuple[str, np.ndarray]:
    """Return (mode, pixels) of a PNG or JPEG, of 1 bit as of 8; raise `DataError` about `name` whatever its decoder raises.

    Pillow's warnings are not shown, but for the one of a picture with so many pixels that it may be an attack: an error.
    """
    library: Any = need("PIL.Image", "Decoding pictures")
    if not isinstance(content, bytes):
        raise DataError(f"{name} is empty; it must be PNG or JPEG.")
    with reading(name, "a picture"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", library.DecompressionBombWarning)
        try:
            with library.open(io.BytesIO(content), formats=FORMATS) as opened:
                picture = opened.convert("L") if opened.mode == "1" else opened
                return picture.mode, np.asarray(picture)
        except library.UnidentifiedImageError as error:  # which would name a buffer
            raise DataError(f"{name} is no picture of a known format; it must be PNG or JPEG.") from error


def user_names(where: Path | str, names: Iterable[Any]) -> np.ndarray:
    """Return the names of users as an array of texts; raise `DataError` about `where` for what is no name.

    A name is a text or a whole number. It must not hold the character 0: arrays would drop it at a name's end, and two
    users would become one.

    >>> user_names("a file", ["ann", 7])
    array(['ann', '7'], dtype='<U3')
    """
    texts = []
    for place, name in enumerate(names, start=1):
        if isinstance(name, bool) or not isinstance(name, str | int | np.integer):
            raise DataError(
                f"{where} names a user by {type(name).__name__} (entry {place}); a user is a text or a whole number."
            )
        with reading(where, "names of users"):  # a number of thousands of digits has no text
            texts.append(str(name))
        if "\0" in texts[-1] or not texts[-1]:
            raise DataError(
                f"{where} names a user by what is no name (entry {place}); a name is not empty and has no character 0."
            )
    return np.array(texts)


def warn_unreadable(where: Path | str, noted: Sequence[str]) -> None:
    """Log which training examples in `where` cannot be read, if any: the first of what was `noted`, and how much there is.

    Such an example stays in the dataset, marked, so that its client fails when it is read: see `client.data.limits.limited`.
    """
    if noted:
        log.warning(
            "%s holds examples that cannot be read (%d noted); a client with one takes part with zero updates. "
            "The first: %s", where, len(noted), noted[0],
        )  # fmt: skip
