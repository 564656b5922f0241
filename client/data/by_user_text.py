"""Your own texts: JSON lines with user and text (or tokens)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client.data.by_user_npz import LICENCE
from client.data.checked import UNREADABLE
from client.data.dataset import NEXT_TOKEN, Dataset, as_tokens, describe_unit, shared_users, split_by_user
from client.data.reading import Unreadable, open_text, read_json, reading, user_names
from client.data.split import Parted, Users
from client.data.text import (
    CHARACTERS,
    UNCOUNTED,
    WORRYING,
    Vocabulary,
    most_frequent,
    note_unknown,
    read_characters,
    read_words,
    windows,
    words,
)
from client.settings import LEVELS
from fedmf.checks import check_choice
from fedmf.errors import DataError, SettingError

FIELDS = {"text", "tokens"}
WORDS, ALPHABET = LEVELS
LEARNT = (
    "The vocabulary was built from the training users: an uncovered release. "
    "Give a public file as vocabulary."
)


OTHER_WORDS = "set vocabulary to a public file of words of this language, the most frequent first."
OTHER_CHARACTERS = "set vocabulary to a public file with one character of these texts on each line."


@dataclass(frozen=True)
class Known:
    """A vocabulary: what it is in words, and whether it was learnt from the training users."""

    vocabulary: Vocabulary
    source: str
    learnt: bool = False


@dataclass(frozen=True)
class OfText:
    """Settings that only texts have; None: the default, which `load` says."""

    vocabulary: str | None = None
    vocabulary_size: int | None = None
    level: str | None = None
    length: int | None = None


@dataclass(frozen=True)
class Texts:
    """Texts: whose each is, what returns the tokens of one (None: unreadable), and which are test texts."""

    users: Users
    tokens: Callable[[int], Sequence[str] | None]
    rows: Parted


def load(
    path: str | Path,
    *,
    vocabulary: str | None = None,
    vocabulary_size: int | None = None,
    level: str | None = None,
    length: int | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the next-token data set of a JSON-lines file.

    Each line is an object with `user` and either `text` or `tokens` (a list, or a string split at spaces),
    and optionally `split` (0 train, 1 test). Without `split` a fifth of each user's lines, chosen by a public
    seed, is the test set. `level` is words (the default; windows of 20 tokens) or characters (of 80); `length` sets
    another window. Inputs are int64 [n, length]. Words are compared in lower case, whether they come from `text`,
    `tokens` or `vocabulary`; characters are kept as they are.

    `vocabulary` is a public file with one word on each line, or a word and its count, of which the first
    `vocabulary_size` (10,000) are used; or with one character on each line, all of which are. Without it words are counted in
    the TRAINING lines, keeping `vocabulary_size` of them, and the data set says that this is an uncovered release;
    characters are printable ASCII. `notes` says how much of the test texts is unknown.

    Raises `DataError` for a missing or malformed file, for a test line whose text is no text, where nothing of the test
    texts is known, and where more than a fifth of their characters are not ASCII and no vocabulary is given. A training
    line whose text is no text becomes the token `UNREADABLE`. With `clients_only` no test line becomes tokens, and
    nothing is said of the test texts.
    """
    path, level = Path(path), WORDS if level is None else level
    check_choice("level", level, LEVELS)
    texts = read_texts(path, level, clients_only=clients_only)
    of_text = OfText(vocabulary, vocabulary_size, level, length)
    return from_texts("by_user_text", path, texts, of_text)


def from_texts(name: str, path: Path, texts: Texts, of_text: OfText) -> Dataset:
    """Return the data set `name` of texts from the file or folder at `path`; the settings are those of `load`.

    A training text that cannot be read becomes the token `UNREADABLE`; such a test text is a `DataError`.
    """
    level, vocabulary, test = of_text.level or WORDS, of_text.vocabulary, texts.rows.test
    is_needed = texts.rows.is_needed
    used = np.arange(len(test)) if is_needed else np.flatnonzero(~test)
    sentences = [texts.tokens(row) for row in used.tolist()]
    tested = test[used]
    for row, sentence in enumerate(sentences):
        if tested[row] and sentence is None:
            raise DataError(
                f"Row {used[row] + 1} of {path} is a test row and holds no text; every test row must."
            )
    training = [
        sentence for row, sentence in enumerate(sentences) if not tested[row] and sentence is not None
    ]
    size = 10_000 if of_text.vocabulary_size is None else of_text.vocabulary_size
    known = choose_vocabulary(vocabulary, level, training, size)
    length = (20 if level == WORDS else 80) if of_text.length is None else of_text.length
    unreadable = np.array([UNREADABLE], dtype=np.int32)
    encoded = [unreadable if text is None else known.vocabulary.encode(text) for text in sentences]
    x, y, place = windows(encoded, length)
    users = texts.users.numbers
    clients, test_examples = split_by_user(
        x, y, users[used[place]], tested[place], as_tokens, clients_only=not is_needed
    )
    notes: tuple[str, ...] = ()
    if is_needed:
        ascii_only = level == ALPHABET and vocabulary is None
        advice = OTHER_WORDS if level == WORDS else OTHER_CHARACTERS
        notes = (note_unknown(test_examples.y, known.source, advice, most=WORRYING if ascii_only else 1.0),)
    return Dataset(
        name=name,
        clients=clients,
        test=test_examples,
        input_shape=(x.shape[1],),
        classes=known.vocabulary.size,
        task=NEXT_TOKEN,
        licence=LICENCE,
        source=path.name,
        unit=describe_unit("user"),
        uncovered=(LEARNT,) * known.learnt + shared_users(users[~test], users[test]),
        uncounted=UNCOUNTED,
        person="user",
        notes=notes,
    )


def refuse_given(why: str, given: Mapping[str, Any]) -> None:
    """Raise `SettingError` for a setting that would be ignored."""
    for key, value in given.items():
        if value is not None:
            raise SettingError(f"{key} is {value!r}, but {why}, so that it would be ignored; leave it out.")


def choose_vocabulary(path: str | None, level: str, training: Sequence[Sequence[str]], size: int) -> Known:
    """Return the vocabulary in the file at `path`, or without one that of the level."""
    if level == ALPHABET:
        if path is None:
            return Known(Vocabulary(tuple(CHARACTERS)), "printable ASCII")
        return Known(read_characters(path), f"the characters of {path}")
    if path is None:
        learnt = most_frequent(training, size)
        return Known(Vocabulary(learnt), f"the {len(learnt):,} words of the training texts", learnt=True)
    folded = tuple(dict.fromkeys(word.lower() for word in read_words(path, size).tokens))
    return Known(Vocabulary(folded), f"the {len(folded):,} words of {path}")


def read_texts(path: Path, level: str, *, clients_only: bool = False) -> Texts:
    """Return the lines of a JSON-lines file as tokens of the given level.

    Of a line whose text is no text, which is one user's value, a word is said on stderr. With `clients_only` no line need
    be a test line.
    """
    with reading(path, "lines of UTF-8 text"):
        if not path.is_file():
            problem = "is a folder" if path.is_dir() else "does not exist"
            raise DataError(f"The data file {path} {problem}; path must name a file of JSON lines.")
        with open_text(path) as file:
            lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty; it must hold one JSON object on each line.")
    records = [(number, _record(path, number, line)) for number, line in lines]
    if not any(FIELDS & record.keys() for _, record in records):
        raise DataError(
            f"No line of {path} has text or tokens; each must be an object with user and text (or tokens)."
        )
    users = Users.of(user_names(path, (record["user"] for _, record in records)))
    sentences = [_tokens(record, level) for _, record in records]
    # Test lines among them are refused with the test set.
    unreadable = Unreadable(path, is_public=False)
    for (number, _), sentence in zip(records, sentences, strict=True):
        if sentence is None:
            unreadable.note(
                f"text or tokens on line {number} of {path} must be a string, or a list of strings for tokens."
            )
    unreadable.warn()
    splits = [record.get("split") for _, record in records]
    said = None
    if any(split is not None for split in splits):
        needed = {0} if clients_only else {0, 1}
        if any(split not in (0, 1) for split in splits) or not needed <= {*splits}:
            raise DataError(
                f"split in {path} must be 0 (train) or 1 (test) on every line, both present, or on none."
            )
        said = np.array(splits) == 1
    rows = users.parted(path, said, mark="split = {}", clients_only=clients_only)
    return Texts(users, sentences.__getitem__, rows)


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    """Return one line as an object with a user."""
    record = read_json(line, f"Line {number} of {path}")
    if not isinstance(record, dict) or "user" not in record:
        raise DataError(f"Line {number} of {path} must be an object with user and text (or tokens).")
    return record


def _tokens(record: dict[str, Any], level: str) -> Sequence[str] | None:
    """Return the tokens of one record, None where it holds no text."""
    tokens = record.get("tokens")
    is_list = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    text = record.get("text", " ".join(tokens) if is_list else tokens)  # type: ignore[arg-type]
    if not isinstance(text, str) or not (tokens is None or isinstance(tokens, str) or is_list):
        return None
    if level == ALPHABET:
        return text
    if tokens is None:
        return words(text)
    given = tokens.split() if isinstance(tokens, str) else tokens
    return [token.lower() for token in given]  # as `words` does
