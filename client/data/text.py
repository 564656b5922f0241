"""Text as token numbers: the vocabulary, sentences cut into windows of one length, and your own texts as JSON lines.

Conventions of Reddi et al. 2021 (Adaptive Federated Optimization, appendix C): a begin mark before and an end
mark after each sentence, words outside a fixed public vocabulary replaced by one out-of-vocabulary token, and
an accuracy that counts neither padding, nor out-of-vocabulary tokens, nor end marks.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from client.data.dataset import IGNORED_TARGET, NEXT_TOKEN, UNREADABLE, Dataset, Public, as_targets, pieces
from client.data.own import Owned, OwnSettings, owned
from client.data.reading import open_text, read_json, reading, user_names, warn_unreadable
from client.settings import LEVELS
from fedmf.checks import check_at_least
from fedmf.errors import DataError

WORDS, ALPHABET = LEVELS
PAD, OOV, BOS, EOS = range(4)
SPECIAL = 4
# Targets that the accuracy leaves out; padding is `IGNORED_TARGET` and left out anyway.
UNCOUNTED = (OOV, EOS)

# A public character set: printable ASCII and the line break.
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
# The 86 characters of the Shakespeare benchmark of TFF and LEAF, public with it.
LEAF_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
# A share of unknown tokens above which the vocabulary is probably not that of the text.
WORRYING = 0.2
ONE_ON_EACH_LINE = {
    WORDS: "token; each line must hold one, or each a token and its count",
    ALPHABET: "character; level=characters needs one on each line",
}
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that have a number: token i of `tokens` has the number i + 4, after the special ones.

    >>> vocabulary = Vocabulary(("the", "cat"))
    >>> vocabulary.encode(["the", "dog"]).tolist(), vocabulary.size
    ([4, 1], 6)
    """

    tokens: tuple[str, ...]

    @property
    def size(self) -> int:
        """Return the number of tokens, the special ones included."""
        return len(self.tokens) + SPECIAL

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Return the number of each token."""
        return {token: number for number, token in enumerate(self.tokens, start=SPECIAL)}

    def encode(self, tokens: Iterable[str]) -> np.ndarray:
        """Return int32 numbers of `tokens`, `OOV` for those that are not in the vocabulary."""
        return np.array([self.numbers.get(token, OOV) for token in tokens], dtype=np.int32)


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of `text` in lower case.

    >>> words("It's late, go!")
    ["it's", 'late', ',', 'go', '!']
    """
    return WORD.findall(text.lower())


def most_frequent(sentences: Iterable[Iterable[str]], count: int) -> tuple[str, ...]:
    """Return the `count` most frequent tokens, the most frequent first, ties in alphabetical order."""
    check_at_least("vocabulary_size", count, 1)
    counter = Counter(token for sentence in sentences for token in sentence)
    return tuple(sorted(counter, key=lambda token: (-counter[token], token))[:count])


def read_vocabulary(
    path: str | Path, size: int | None = None, level: str = WORDS
) -> tuple[tuple[str, ...], bool]:
    """Return (the tokens of a public file, at most the first `size`; whether each has a count there).

    Each line holds a word, or a word and its count, as in TFF's stackoverflow.word_count, the most frequent first; with the
    `level` of characters, a character. Raises `DataError` for any other file; lines after the first `size` are not read.
    """
    if size is not None:
        check_at_least("vocabulary_size", size, 1)
    with (
        reading(path, "a vocabulary, one token on each line of UTF-8 text"),
        open_text(Path(path)) as file,
    ):
        lines = [line.removesuffix("\n") for line in islice(file, size)]
    fields = [line.split() if level == WORDS else list(line) for line in lines]
    counted = level == WORDS and all(len(field) == 2 and field[1].isdecimal() for field in fields)
    if counted:
        with reading(path, "words and their counts"):  # one of thousands of digits is none
            counts = [int(field[1]) for field in fields]
        if rises := [
            row for row, (one, following) in enumerate(pairwise(counts), start=2) if following > one
        ]:
            raise DataError(
                f"Line {rises[0]} of {path} has a greater count than the line before; the most frequent words must stand "
                "first."
            )
    elif longer := [row for row, field in enumerate(fields, start=1) if len(field) > 1]:
        raise DataError(f"Line {longer[0]} of {path} holds more than one {ONE_ON_EACH_LINE[level]}.")
    tokens = tuple(field[0] if field else "" for field in fields)
    repeated = [token for token, times in Counter(tokens).items() if times > 1]
    problem = "it is empty" if not tokens else f"{repeated[0]!r} occurs twice" if repeated else ""
    if "" in tokens:
        problem = f"line {tokens.index('') + 1} is empty"
    if problem:
        raise DataError(f"{path} is no vocabulary: {problem}; each line must hold one token of its own.")
    return tokens, counted


def note_unknown(test: np.ndarray, vocabulary: str, advice: str, *, most: float = 1.0) -> str:
    """Return a sentence on how much of the public test texts, as targets [n, length], is in no vocabulary.

    That is the share of `OOV` among tokens, padding and end marks left out. `vocabulary` says which one it is, `advice`
    what to do where too much is unknown. The sentence is a warning above a fifth. Raises `DataError` where nothing is
    known, or more than `most` is not.
    """
    counts = [((~np.isin(part, (IGNORED_TARGET, EOS))).sum(), (part == OOV).sum()) for part in pieces(test)]
    real, unknown = np.sum(counts, axis=0)
    share = unknown / real if real else 0.0
    said = f"{share:.1%} of the tokens of the test texts are not in {vocabulary}"
    if share == 1 or share > most:
        raise DataError(f"{said}; {advice}")
    if share > WORRYING:
        return f"Warning: {said}; a model can neither read nor write them. {advice[:1].upper()}{advice[1:]}"
    return f"{said}."


def windows(
    sentences: Sequence[np.ndarray], length: int, *, truncate: bool = False, apart: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, y, owner): int32 [n, length] inputs and targets, int64 [n] the sentence of each row.

    Each sentence becomes BOS, tokens, EOS, cut so that every token but BOS is the target of exactly one row;
    with `truncate` only the first row of each sentence is kept, as the Stack Overflow benchmark does. Rows that are
    `apart` share no token: the first of each is an input only, as in TFF's Shakespeare, and a row that asks for nothing is
    left out. Short rows are filled with PAD in x and `IGNORED_TARGET` in y.

    >>> x, y, owner = windows([np.array([7, 8, 9])], 3)
    >>> x.tolist(), y.tolist(), owner.tolist()
    ([[2, 7, 8], [9, 0, 0]], [[7, 8, 9], [3, -100, -100]], [0, 0])
    >>> x, y, owner = windows([np.array([7, 8, 9, 7, 8])], 3, apart=True)
    >>> x.tolist(), y.tolist()
    ([[2, 7, 8], [7, 8, 3]], [[7, 8, 9], [8, 3, -100]])
    """
    check_at_least("length", length, 1)
    step = length + apart
    counts = np.array(
        [1 if truncate else -(-(len(tokens) + 1) // step) for tokens in sentences], dtype=np.int64
    )
    rows = np.full((int(counts.sum()), length + 1), IGNORED_TARGET, dtype=np.int32)
    begin = 0
    for tokens, count in zip(sentences, counts, strict=True):
        marked = np.concatenate([[BOS], tokens, [EOS]])
        for row in range(count):
            part = marked[row * step : row * step + length + 1]
            rows[begin + row, : len(part)] = part
        begin += count
    x, y = rows[:, :-1], rows[:, 1:]
    is_short = (x if apart else y) == IGNORED_TARGET
    return np.where(is_short, PAD, x), y, np.repeat(np.arange(len(sentences)), counts)


def from_texts(
    name: str, rows: Owned, sentences: Sequence[Sequence[str] | None], settings: OwnSettings
) -> Dataset:
    """Return the dataset `name` of texts, one in each of the `rows`, as their tokens; None: one that cannot be read.

    A training text that cannot be read becomes the token `UNREADABLE`; such a test text is a `DataError`. `level` is words
    (the default; windows of 20 tokens) or characters (of 80); `length` sets another window. Inputs are int64 [n, length].
    `vocabulary` is a public file with one word on each line, or a word and its count, of which the first
    `vocabulary_size` (10,000) are used; or with one character on each line, all of which are. Without it words are counted
    in the TRAINING texts, and the dataset says that this is an uncovered release; characters are printable ASCII. `notes`
    says how much of the test texts is unknown.
    """
    level, vocabulary, is_public = settings.level, settings.vocabulary, rows.public is None
    rows.check(
        np.array([sentence is None for sentence in sentences], bool),
        f"{rows.path} holds no text in {{}}",
        "every test row must hold one",
    )
    trained = [text for text, is_test in zip(sentences, rows.test, strict=True) if text and not is_test]
    known, source, is_learnt = choose_vocabulary(vocabulary, level, trained, settings.vocabulary_size)
    length = (20 if level == WORDS else 80) if settings.length is None else settings.length
    unreadable = np.array([UNREADABLE], dtype=np.int32)
    used = np.arange(len(rows.test)) if is_public else np.flatnonzero(~rows.test)
    texts = [sentences[row] for row in used.tolist()]
    x, y, place = windows([unreadable if text is None else known.encode(text) for text in texts], length)
    if rows.public is not None and not is_learnt and known.size != rows.public.classes:
        raise DataError(
            f"{source} and the special tokens are {known.size}, but this dataset has {rows.public.classes} tokens; set "
            "vocabulary to the public file that the server has."
        )
    notes: tuple[str, ...] = ()
    if is_public:
        most = WORRYING if level == ALPHABET and vocabulary is None else 1.0
        advice = {
            WORDS: "set vocabulary to a public file of words of this language, the most frequent first.",
            ALPHABET: "set vocabulary to a public file with one character of these texts on each line.",
        }[level]
        notes = (note_unknown(y[rows.test[place]], source, advice, most=most),)
    return rows.dataset(
        name,
        x,
        y,
        known.size,
        rows=used[place],
        convert=as_targets,
        task=NEXT_TOKEN,
        uncovered=(
            "The vocabulary was built from the training users: an uncovered release. Give a public file as vocabulary.",
        )
        * is_learnt,
        uncounted=UNCOUNTED,
        notes=notes,
    )


def choose_vocabulary(
    path: str | None, level: str, training: Sequence[Sequence[str]], size: int
) -> tuple[Vocabulary, str, bool]:
    """Return (the vocabulary in the file at `path`, or without one that of the level; what it is; whether it was learnt).

    The line break is in every vocabulary of characters.
    """
    if level == ALPHABET:
        if path is None:
            return Vocabulary(tuple(CHARACTERS)), "printable ASCII", False
        return Vocabulary((*read_vocabulary(path, level=level)[0], "\n")), f"the characters of {path}", False
    if path is None:
        learnt = most_frequent(training, size)
        return Vocabulary(learnt), f"the {len(learnt):,} words of the training texts", True
    folded = tuple(dict.fromkeys(word.lower() for word in read_vocabulary(path, size)[0]))
    return Vocabulary(folded), f"the {len(folded):,} words of {path}", False


def load_lines(name: str, path: Path, settings: OwnSettings, public: Public | None) -> Dataset:
    """Return the next-token dataset of a JSON-lines file.

    Each line is an object with `user` and either `text` or `tokens` (a list, or a string split at spaces),
    and optionally `split` (0 train, 1 test). Without `split` a fifth of each user's lines, chosen by a public
    seed, is the test set. Words are compared in lower case, whether they come from `text`, `tokens` or `vocabulary`;
    characters are kept as they are. A line whose text is no text, which is one user's value, is logged.
    """
    with reading(path, "lines of UTF-8 text"), open_text(path) as file:
        lines = [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty; it must hold one JSON object on each line.")
    records: list[dict[str, Any]] = []
    for number, line in lines:
        record = read_json(line, f"Line {number} of {path}")
        if not isinstance(record, dict) or (settings.has_users and "user" not in record):
            raise DataError(f"Line {number} of {path} must be an object with user and text (or tokens).")
        records.append(record)
    owners = user_names(path, (record["user"] if settings.has_users else 0 for record in records))
    names, users = np.unique(owners, return_inverse=True)
    sentences = [_tokens(record, settings.level) for record in records]
    noted = [
        f"text or tokens on line {number} of {path} must be a string, or a list of strings for tokens."
        for (number, _), sentence in zip(lines, sentences, strict=True)
        if sentence is None
    ]
    warn_unreadable(path, noted)
    splits = [record.get("split") for record in records]
    said = None if splits.count(None) == len(splits) else np.array(splits) == 1
    if said is not None and any(split not in (0, 1) for split in splits):
        raise DataError(f"split in {path} must be 0 (train) or 1 (test) on every line, or on none.")
    rows = owned(path, users, names.tolist(), said, "split = {}", public, settings)
    return from_texts(name, rows, sentences, settings)


def _tokens(record: dict[str, Any], level: str) -> Sequence[str] | None:
    """Return the tokens of one record, None where it holds no text."""
    tokens = record.get("tokens")
    is_list = isinstance(tokens, list) and all(isinstance(token, str) for token in tokens)
    text = record.get("text", " ".join(tokens) if is_list else tokens)  # type: ignore[arg-type]
    if not isinstance(text, str) or not (tokens is None or isinstance(tokens, str) or is_list):
        return None
    if level == ALPHABET or tokens is None:
        return split_text(text, level)
    return split_text(tokens.split() if isinstance(tokens, str) else tokens, level)


def split_text(value: str | list[str], level: str) -> Sequence[str]:
    """Return the tokens of a text, or of a list of tokens, which words are compared with in lower case.

    >>> split_text("To be", "words"), split_text(["To", "be"], "characters")
    (['to', 'be'], 'To be')
    """
    if level == ALPHABET:
        return value if isinstance(value, str) else " ".join(value)
    return words(value) if isinstance(value, str) else [token.lower() for token in value]
