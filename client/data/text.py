"""Text as token numbers: the vocabulary, and sentences cut into windows of one length.

Conventions of Reddi et al. 2021 (Adaptive Federated Optimization, appendix C): a begin mark before and an end
mark after each sentence, words outside a fixed public vocabulary replaced by one out-of-vocabulary token, and
an accuracy that counts neither padding, nor out-of-vocabulary tokens, nor end marks.
"""

import ast
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from client.data.arrays import pieces
from client.data.dataset import IGNORED_TARGET
from client.data.reading import PARSERS_RAISE, open_text, reading
from fedmf.checks import check_at_least
from fedmf.errors import DataError

PAD, OOV, BOS, EOS = range(4)
SPECIAL = 4
UNCOUNTED = (OOV, EOS)
"""Targets that the accuracy leaves out; padding is `IGNORED_TARGET` and left out anyway."""

CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
"""A public character set: printable ASCII and the line break."""
LEAF_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
"""The 86 characters of the Shakespeare benchmark of TFF and LEAF, public with it."""
WORRYING = 0.2
"""A share of unknown tokens above which the vocabulary is probably not that of the text."""
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
    counter: Counter[str] = Counter()
    for sentence in sentences:
        counter.update(sentence)
    return tuple(sorted(counter, key=lambda token: (-counter[token], token))[:count])


@dataclass(frozen=True)
class WordList:
    """A public file of words: the most frequent first, and whether each stood there with its count."""

    tokens: tuple[str, ...]
    counted: bool


def read_words(path: str | Path, size: int) -> WordList:
    """Return the first `size` words of a public file, the most frequent first.

    Each line holds a word, or a word and its count, as in TFF's stackoverflow.word_count. Raises `DataError` for any
    other file; lines after the first `size` are not looked at.
    """
    check_at_least("vocabulary_size", size, 1)
    path = Path(path)
    lines = list(islice(_lines(path), size))
    fields = [line.split() for line in lines]
    counted = all(len(field) == 2 and field[1].isdecimal() for field in fields)
    found = [field[0] if field else "" for field in fields]
    if counted:
        with reading(path, "words and their counts"):  # one of thousands of digits is none
            counts = [int(field[1]) for field in fields]
        for number, (one, following) in enumerate(pairwise(counts), start=1):
            if following > one:
                raise DataError(
                    f"Line {number + 1} of {path} has the count {following} after {one}; the most frequent words must "
                    "stand first."
                )
    else:
        for number, field in enumerate(fields, start=1):
            if len(field) > 1:
                raise DataError(
                    f"Line {number} of {path} is {lines[number - 1]!r}; each line must hold one token, or each a token "
                    "and its count."
                )
    _refuse_holes(path, found)
    return WordList(tuple(found), counted)


def read_characters(path: str | Path) -> Vocabulary:
    """Return the vocabulary of a public file with one character on each line; the line break is always known."""
    path = Path(path)
    characters = list(_lines(path))
    for number, character in enumerate(characters, start=1):
        if len(character) > 1:
            raise DataError(
                f"Line {number} of {path} is {character!r}; level=characters needs one character on each line."
            )
    _refuse_holes(path, characters)
    return Vocabulary((*characters, "\n"))


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 text file without their ends."""
    try:
        with open_text(path) as file:
            for line in file:
                yield line.removesuffix("\n")
    except PARSERS_RAISE as error:
        raise DataError(
            f"{path} cannot be read as a vocabulary, one token on each line of UTF-8 text ({error})."
        ) from error


def _refuse_holes(path: Path, tokens: Sequence[str]) -> None:
    """Raise `DataError` for an empty vocabulary, an empty line and a token that occurs twice."""
    blank = [number for number, token in enumerate(tokens, start=1) if not token]
    repeated = [token for token, times in Counter(tokens).items() if times > 1]
    if not tokens or blank or repeated:
        problem = (
            f"line {blank[0]} is empty"
            if blank
            else f"{repeated[0]!r} occurs twice"
            if repeated
            else "it is empty"
        )
        raise DataError(f"{path} is no vocabulary: {problem}; each line must hold one token of its own.")


def unknown_share(targets: np.ndarray) -> float:
    """Return the share of `OOV` among the tokens of `targets` [n, length], padding and end marks left out.

    >>> unknown_share(np.array([[7, OOV, EOS, IGNORED_TARGET]]))
    0.5
    """
    real = unknown = 0
    for part in pieces(targets):
        real += int((~np.isin(part, (IGNORED_TARGET, EOS))).sum())
        unknown += int((part == OOV).sum())
    return float(unknown / real) if real else 0.0


def note_unknown(test: np.ndarray, vocabulary: str, advice: str, *, most: float = 1.0) -> str:
    """Return a sentence on how much of the public test texts, as targets [n, length], is in no vocabulary.

    `vocabulary` says which one it is, `advice` what to do where too much is unknown. The sentence is a warning above
    a fifth. Raises `DataError` where nothing is known, or more than `most` is not.
    """
    share = unknown_share(test)
    said = f"{share:.1%} of the tokens of the test texts are not in {vocabulary}"
    if share == 1 or share > most:
        raise DataError(f"{said}; {advice}")
    if share > WORRYING:
        return f"Warning: {said}; a model can neither read nor write them. {advice[:1].upper()}{advice[1:]}"
    return f"{said}."


def windows(
    sentences: Sequence[np.ndarray], length: int, *, truncate: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, y, owner): int32 [n, length] inputs and targets, int64 [n] the sentence of each row.

    Each sentence becomes BOS, tokens, EOS, cut so that every token but BOS is the target of exactly one row;
    with `truncate` only the first row of each sentence is kept, as the Stack Overflow benchmark does. Short
    rows are filled with PAD in x and `IGNORED_TARGET` in y.

    >>> x, y, owner = windows([np.array([7, 8, 9])], 3)
    >>> x.tolist(), y.tolist(), owner.tolist()
    ([[2, 7, 8], [9, 0, 0]], [[7, 8, 9], [3, -100, -100]], [0, 0])
    """
    check_at_least("length", length, 1)
    counts = np.array(
        [1 if truncate else -(-(len(tokens) + 1) // length) for tokens in sentences], dtype=np.int64
    )
    x = np.full((int(counts.sum()), length), PAD, dtype=np.int32)
    y = np.full_like(x, IGNORED_TARGET)
    start = 0
    for tokens, count in zip(sentences, counts, strict=True):
        targets = np.append(tokens, EOS)[: count * length]
        rows = slice(start, start + count)
        x[rows].reshape(-1)[: len(targets)] = np.concatenate([[BOS], targets[:-1]])
        y[rows].reshape(-1)[: len(targets)] = targets
        start += count
    return x, y, np.repeat(np.arange(len(sentences)), counts)


def separate_pieces(
    sentences: Sequence[np.ndarray], length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, y, owner) as `windows` does, of pieces of length + 1 tokens that share none.

    The first token of a piece is an input only, as in TFF's Shakespeare. A piece of an end mark alone, which asks for
    nothing, is left out.

    >>> x, y, owner = separate_pieces([np.array([7, 8, 9, 7, 8])], 3)
    >>> x.tolist(), y.tolist()
    ([[2, 7, 8], [7, 8, 3]], [[7, 8, 9], [8, 3, -100]])
    """
    check_at_least("length", length, 1)
    counts = np.array([1 + len(tokens) // (length + 1) for tokens in sentences], dtype=np.int64)
    pieces = np.full((int(counts.sum()), length + 1), IGNORED_TARGET, dtype=np.int32)
    start = 0
    for tokens, count in zip(sentences, counts, strict=True):
        asked = np.concatenate([[BOS], tokens, [EOS]])[: count * (length + 1)]  # less an end mark left alone
        pieces[start : start + count].reshape(-1)[: len(asked)] = asked
        start += count
    x = np.where(pieces == IGNORED_TARGET, PAD, pieces)[:, :-1]
    return x, pieces[:, 1:], np.repeat(np.arange(len(sentences)), counts)


def next_characters(
    contexts: Sequence[str], characters: Sequence[str], vocabulary: Vocabulary, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return (x, y), int32 [n, length]: `contexts` of that length, the only target the character after each.

    This is how LEAF scores Shakespeare: 80 characters and the next one. Lengths are the caller's to check.
    """
    x = np.stack([vocabulary.encode(context) for context in contexts])
    y = np.full_like(x, IGNORED_TARGET)
    y[:, -1] = vocabulary.encode(characters)
    return x, y


def documentation() -> Iterator[str]:
    """Yield the texts of Python's language reference and the docstrings of its standard library."""
    yield from topics.values()
    library = Path(sysconfig.get_path("stdlib"))
    for module in sorted(sys.stdlib_module_names):
        for file in (library / f"{module}.py", *sorted((library / module).rglob("*.py"))):
            if file.is_file() and not any("test" in part for part in file.relative_to(library).parts):
                yield from docstrings(file.read_bytes())


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a Python module, its classes and functions; none for what is no Python.

    >>> list(docstrings(b"class Cat: 'An animal.'"))
    ['', 'An animal.']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that today's Python warns of
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
