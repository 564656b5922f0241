"""Your own texts: JSON lines with user and text (or tokens)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.data.by_user_npz import OVERLAP, SPLIT_SEED, fifth_of_each
from client.data.dataset import NEXT_TOKEN, Dataset, as_tokens, describe_unit, split_by_user
from client.data.text import CHARACTERS, UNCOUNTED, Vocabulary, most_frequent, read_vocabulary, windows, words
from fedmf.checks import check_choice
from fedmf.errors import DataError

LICENCE = "the file's own"
SOURCE = "a file of the user's own"
LEVELS = ("words", "characters")
LEARNT = (
    "The vocabulary was built from the training users: an uncovered release. "
    "Give a public file as vocabulary."
)


@dataclass(frozen=True)
class Texts:
    """The lines of a file: who wrote each, its tokens, whether it is a test line (None: unsaid)."""

    users: np.ndarray
    sentences: Sequence[Sequence[str]]
    test: np.ndarray | None


def load(
    path: str | Path,
    *,
    examples_per_client: int | None = None,
    vocabulary: str | None = None,
    vocabulary_size: int = 10_000,
    level: str = "words",
    length: int | None = None,
) -> Dataset:
    """Return the next-token data set of a JSON-lines file.

    Each line is an object with `user` and either `text` or `tokens` (a list, or a string split at spaces),
    and optionally `split` (0 train, 1 test). Without `split` a fifth of each user's lines, chosen by a public
    seed, is the test set. `level` is words (windows of 20 tokens) or characters (of 80); `length` sets
    another window. Inputs are int64 [n, length].

    `vocabulary` is a public file with one word on each line. Without it words are counted in the TRAINING
    lines, keeping `vocabulary_size` of them, and the data set says that this is an uncovered release;
    characters are printable ASCII. Raises `DataError` for a missing or malformed file.
    """
    path = Path(path)
    check_choice("level", level, LEVELS)
    texts = read_texts(path, level)
    return from_texts(
        "by_user_text",
        path.name,
        texts,
        examples_per_client=examples_per_client,
        vocabulary=vocabulary,
        vocabulary_size=vocabulary_size,
        level=level,
        length=length,
    )


def from_texts(
    name: str,
    source: str,
    texts: Texts,
    *,
    examples_per_client: int | None = None,
    vocabulary: str | None = None,
    vocabulary_size: int = 10_000,
    level: str = "words",
    length: int | None = None,
) -> Dataset:
    """Return the data set `name` of texts from the file called `source`; the settings are those of `load`."""
    test = fifth_of_each(texts.users, seed=SPLIT_SEED) if texts.test is None else texts.test
    training = [sentence for sentence, held_out in zip(texts.sentences, test, strict=True) if not held_out]
    known, learnt = choose_vocabulary(vocabulary, level, training, vocabulary_size)
    if length is None:
        length = 20 if level == "words" else 80
    x, y, owner = windows([known.encode(sentence) for sentence in texts.sentences], length)
    clients, test_examples = split_by_user(
        x, y, texts.users[owner], test[owner], examples_per_client, as_tokens
    )
    overlap = np.isin(texts.users[test], texts.users[~test]).any()
    return Dataset(
        name=name,
        clients=clients,
        test=test_examples,
        input_shape=(x.shape[1],),
        classes=known.size,
        task=NEXT_TOKEN,
        licence=LICENCE,
        source=source,
        unit=describe_unit("user", examples_per_client),
        uncovered=(LEARNT,) * learnt + (OVERLAP,) * bool(overlap),
        uncounted=UNCOUNTED,
    )


def choose_vocabulary(
    path: str | None, level: str, training: Sequence[Sequence[str]], size: int
) -> tuple[Vocabulary, bool]:
    """Return (vocabulary, whether it was learnt from the training users)."""
    if path is not None:
        return read_vocabulary(path), False
    if level == "characters":
        return Vocabulary(tuple(CHARACTERS)), False
    return Vocabulary(most_frequent(training, size)), True


def read_texts(path: Path, level: str) -> Texts:
    """Return the lines of a JSON-lines file as tokens of the given level."""
    users, sentences, splits = [], [], []
    for number, line in enumerate(_read_lines(path), start=1):
        record = _record(path, number, line)
        users.append(str(record["user"]))
        sentences.append(_tokens(path, number, record, level))
        splits.append(record.get("split"))
    if not users:
        raise DataError(f"{path} is empty; it must hold one JSON object on each line.")
    known = {split for split in splits if split in (0, 1)}
    if all(split is None for split in splits):
        return Texts(np.array(users), sentences, None)
    if any(split not in (0, 1) for split in splits) or len(known) < 2:
        raise DataError(
            f"split in {path} must be 0 (train) or 1 (test) on every line, both present, or on none."
        )
    return Texts(np.array(users), sentences, np.array(splits) == 1)


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    if not path.is_file():
        raise DataError(f"The data file {path} does not exist; path must name a file of JSON lines.")
    try:
        with path.open(encoding="utf-8") as file:
            return [line for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as lines of UTF-8 text ({error}).") from error


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    """Return one line as an object with a user and a text."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"Line {number} of {path} is not JSON ({error}).") from error
    if not isinstance(record, dict) or "user" not in record or not {"text", "tokens"} & set(record):
        raise DataError(f"Line {number} of {path} must be an object with user and text (or tokens).")
    return record


def _tokens(path: Path, number: int, record: dict[str, Any], level: str) -> Sequence[str]:
    """Return the tokens of one record."""
    tokens = record.get("tokens")
    text = record.get("text", " ".join(tokens) if isinstance(tokens, list) else tokens)
    if not isinstance(text, str) or not (tokens is None or isinstance(tokens, str | list)):
        raise DataError(
            f"text or tokens on line {number} of {path} must be a string, or a list of strings for tokens."
        )
    if level == "characters":
        return text
    if tokens is None:
        return words(text)
    return tokens.split() if isinstance(tokens, str) else [str(token) for token in tokens]
