"""The benchmarks femnist, shakespeare and stackoverflow: what the columns of their files mean, and what a client is.

Which files they are: `client.data.sources`; how they are read: `client.data.conversion`. A loader that is given `public` reads
no test example. It raises `DataError` with the files to put where, when there are none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import numpy as np

from client.data.conversion import Benchmark, Made, Split
from client.data.dataset import (
    CLASSIFICATION,
    IGNORED_TARGET,
    NEXT_TOKEN,
    UNREADABLE,
    Dataset,
    Public,
    Rows,
    as_float32,
    as_targets,
)
from client.data.reading import pixels_of, reading
from client.data.sources import Files
from client.data.text import LEAF_CHARACTERS, UNCOUNTED, Vocabulary, note_unknown, read_vocabulary, windows
from client.settings import TEST_SPLITS
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import DataError

# Federated EMNIST.
CLASSES = 62
DIGITS = 10
SHAPE = (28, 28)


def load_femnist(
    path: str | None = None,
    *,
    only_digits: bool = False,
    as_published: bool = False,
    public: Public | None = None,
) -> Dataset:
    """Return Federated EMNIST; inputs float32 [n, 28, 28] with ink = 1 and paper = 0, 62 classes.

    `only_digits` are the classes 0 to 9: TFF's own splits of them, of LEAF's and the hub's files the examples with such a
    label, or with one of no class, whose client fails. The files have white = 1; `as_published` leaves it so.
    """
    held = FEMNIST.held(path)
    by_label = only_digits and held.form != "tff"
    prefix = "digits_" if only_digits and not by_label else ""
    train, test, rows = held.train_and_test(public, prefix, _digits if by_label else lambda split: split)
    convert = as_float32 if as_published else _turned if held.form == "hub" else _ink
    return FEMNIST.dataset(
        train,
        test,
        rows,
        convert,
        input_shape=SHAPE,
        classes=DIGITS if only_digits else CLASSES,
        task=CLASSIFICATION,
        uncovered=(
            "only_digits leaves out the examples with another label: how many examples each training user has, and how many "
            "users train, follows from their labels, an uncovered release. TFF's files have splits of the digits.",
        )
        * by_label,
    )


def _picture(columns: Mapping[str, Any]) -> Made:
    """Return a picture [28, 28] as it is stored, and its label: TFF's pixels and label, LEAF's x and y.

    Those are float32 with white = 1; of the hub's image and character uint8 with white = 255.
    """
    if "image" in columns:
        image, label = columns["image"], columns["character"]
        mode, pixels = pixels_of(image.get("bytes") if isinstance(image, Mapping) else None, "A picture")
        if mode != "L" or pixels.shape != SHAPE:
            raise DataError(
                f"A picture is {mode} {list(pixels.shape)}; it must be 8-bit grey (L), {list(SHAPE)}."
            )
    else:
        x, label = columns.values()
        pixels = _numbers(x, "fiu", SHAPE)
        if not ((pixels >= 0) & (pixels <= 1)).all():
            raise DataError("A stored example holds pixels that are not 0 (black) to 1 (white).")
        pixels = pixels.astype(np.float32)
    return pixels, _numbers(label, "iu").astype(np.int64)


def _numbers(value: Any, kinds: str, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Return a value as numbers [*shape] of one of numpy's `kinds`; raise `DataError` for another."""
    with reading("It", f"{prod(shape)} numbers"):  # numpy's own view of lists of many lengths and types
        array = np.asarray(value)
    if array.dtype.kind not in kinds or array.size != prod(shape):
        raise DataError(f"It must hold {prod(shape)} {'pixels' if shape else 'whole number as its label'}.")
    return array.reshape(shape)


def _ink(x: np.ndarray) -> np.ndarray:
    """Return pixels with white = 1 as float32 with ink = 1."""
    return 1 - as_float32(x)


def _turned(x: np.ndarray) -> np.ndarray:
    """Return uint8 pixels with white = 255 as float32 with ink = 1."""
    return as_float32(255 - x)


def _digits(split: Split) -> Split:
    """Return the examples of digits, and those of no class at all: these are an error of their client, not a letter."""
    chosen = split.only((split.y < DIGITS) | (split.y >= CLASSES))
    if not len(chosen.order):
        raise DataError("only_digits is True, but the files hold no label below 10; they must hold digits.")
    return chosen


_NO_PICTURE = np.zeros(SHAPE, np.float32), np.int64(UNREADABLE)
FEMNIST = Benchmark(
    "femnist",
    Files(
        "emnist_all.sqlite",
        {
            "train": ("all_train", "fed_emnist_train.h5"),
            "test": ("all_test", "fed_emnist_test.h5"),
            "digits_train": ("digits_only_train", "fed_emnist_digitsonly_train.h5"),
            "digits_test": ("digits_only_test", "fed_emnist_digitsonly_test.h5"),
        },
        ("pixels", "label"),
        "flwrlabs/femnist",
        ("writer_id", "image", "character"),
    ),
    _picture,
    {"tff": _NO_PICTURE, "leaf": _NO_PICTURE, "hub": (np.zeros(SHAPE, np.uint8), np.int64(UNREADABLE))},
    "writer",
    "NIST SD 19: public domain; LEAF and hub copies BSD-2-Clause",
    "LEAF (Caldas et al. 2018); TFF emnist; hub flwrlabs/femnist",
)

# Shakespeare.
LENGTH = 80
CHARACTERS = Vocabulary(tuple(LEAF_CHARACTERS))


def load_shakespeare(
    path: str | None = None, *, as_published: bool = False, public: Public | None = None
) -> Dataset:
    """Return Shakespeare's roles; inputs int64 [n, 80], 86 public characters and 4 special tokens.

    TFF's snippets are cut into windows in which each character is predicted from those before it. LEAF's and the hub's
    examples are 80 characters and one next character, the only target. With `as_published` snippets are read as bytes and cut
    into pieces of 81 that share no character, the first of which is never predicted, and the accuracy leaves out padding
    alone: unknown characters and ends count, as in TFF.
    """
    held = SHAKESPEARE.held(path)
    train, test, rows = held.train_and_test(public)
    if held.form == "tff":
        train = _cut(train, as_published)
        if test is not None:
            test = _cut(test, as_published)
            rows = test.order
    return SHAKESPEARE.dataset(
        train,
        test,
        rows,
        as_targets,
        input_shape=(LENGTH,),
        classes=CHARACTERS.size,
        task=NEXT_TOKEN,
        uncounted=() if as_published else UNCOUNTED,
        note=lambda y: note_unknown(
            y, "the benchmark's 86 characters", "the files must hold the English plays."
        ),
    )


def _line(columns: Mapping[str, Any]) -> Made:
    """Return one of TFF's snippets, or LEAF's and the hub's tokens int8 [80], of which the next one is the only target."""
    if "snippets" in columns:
        return _text(columns["snippets"])
    context, character = columns["x"], columns["y"]
    if not isinstance(context, str) or not isinstance(character, str):
        raise DataError("Its x or y is no text; both must be.")
    if len(context) != LENGTH or len(character) != 1:
        sizes = f"{len(context)} and {len(character)}"
        raise DataError(f"It has {sizes} characters as x and y; there must be {LENGTH} and 1.")
    y = np.full(LENGTH, IGNORED_TARGET, np.int8)
    y[-1] = CHARACTERS.encode(character)[0]
    return CHARACTERS.encode(context).astype(np.int8), y


def _text(value: Any) -> Made:
    """Return a text as bytes of UTF-8; raise `DataError` for what is none."""
    if not isinstance(value, bytes):
        raise DataError("A stored example holds what is no text; it must be bytes of UTF-8.")
    with reading("A stored text", "UTF-8"):
        value.decode()
    return bytes(value), np.int8(0)


def _encoded(split: Split, rows: np.ndarray, numbers_of: Any) -> list[np.ndarray]:
    """Return the token numbers of the texts `rows`, a function of their bytes; `UNREADABLE` for one that cannot be read."""
    unreadable = np.array([UNREADABLE], dtype=np.int32)
    return [unreadable if split.y[row] == UNREADABLE else numbers_of(split.x[row]) for row in rows.tolist()]


def _cut(split: Split, as_published: bool) -> Split:
    """Return TFF's snippets as windows of tokens, user by user."""
    encoding = "latin-1" if as_published else "utf-8"  # TFF takes bytes for characters
    encoded = _encoded(split, split.order, lambda text: CHARACTERS.encode(text.decode(encoding)))
    x, y, owner = windows(encoded, LENGTH, apart=as_published)
    return Split(x, y, np.arange(len(x)), np.searchsorted(owner, split.bounds), split.names)


_NO_TEXT = (b"", np.int8(UNREADABLE))
_NO_LINE = (np.full(LENGTH, UNREADABLE, np.int8),) * 2
SHAKESPEARE = Benchmark(
    "shakespeare",
    Files(
        "shakespeare.sqlite",
        {"train": ("train", "shakespeare_train.h5"), "test": ("test", "shakespeare_test.h5")},
        ("snippets",),
        "flwrlabs/shakespeare",
        ("character_id", "x", "y"),
    ),
    _line,
    {"tff": _NO_TEXT, "leaf": _NO_LINE, "hub": _NO_LINE},
    "role of a play",
    "text: public domain; LEAF and hub copies BSD-2-Clause",
    "LEAF (Caldas et al. 2018); TFF shakespeare; hub flwrlabs/shakespeare",
)

# Stack Overflow.
TEST, VALIDATION, HELD_OUT = TEST_SPLITS
# Sentences of the test split on which settings are chosen, and which are not reported on (Kairouz et al. 2021).
FOR_VALIDATION = 10_000
OTHER_WORDS = "set vocabulary to TFF's stackoverflow.word_count, or to another public file of English words."


def load_stackoverflow(
    path: str | None = None,
    *,
    vocabulary: str | None = None,
    vocabulary_size: int = 10_000,
    test: str = TEST,
    length: int = 20,
    max_test_examples: int = 10_000,
    public: Public | None = None,
) -> Dataset:
    """Return TFF's Stack Overflow; inputs int64 [n, 20], one row for each sentence, cut after 20 words.

    Sentences become tokens when their client takes its turn. `test` is one of three sets of sentences. TFF splits by date,
    so that nearly all users of its test split train too; its held-out users never do. Of the test split, users in an order
    drawn by a public seed, "validation" is the first 10,000 sentences (half of a smaller split), on which the papers choose
    their settings, "test" is what follows, on which they report. "heldout" is the held-out users in such an order.
    """
    held = STACKOVERFLOW.held(path)
    if vocabulary is None:
        raise DataError(
            "Dataset stackoverflow needs a public vocabulary: set vocabulary to TFF's stackoverflow.word_count, or "
            "to a file with one word on each line. `fedmf vocabulary` makes one from public text."
        )
    check_choice("test", test, TEST_SPLITS)
    check_at_least("max_test_examples", max_test_examples, 1)
    listed, counted = read_vocabulary(vocabulary, vocabulary_size)
    known = Vocabulary(listed)
    training = held.split("train")
    tested, rows = None, np.empty(0, np.int64)
    if public is None:
        tested = held.split("heldout" if test == HELD_OUT else "test")
        rows = tested.shuffled()[slice(*_place(tested, test, max_test_examples))]

    def encoded(split: Split) -> Split:
        x, y = (Sentences(split, known, asks, (len(split.y), length)) for asks in (False, True))
        return replace(split, x=x, y=cast(np.ndarray, y), known_by=split.x.ends)

    return STACKOVERFLOW.dataset(
        encoded(training),
        None if tested is None else encoded(tested),
        rows,
        as_targets,
        input_shape=(length,),
        classes=known.size,
        task=NEXT_TOKEN,
        uncovered=(
            "The words were given with counts, as TFF gives them, and TFF counted its words among the training users: an "
            "uncovered release.",
        )
        * counted,
        uncounted=UNCOUNTED,
        note=lambda y: note_unknown(y, f"the {len(listed):,} words of {vocabulary}", OTHER_WORDS),
    )


def _place(tested: Split, test: str, most: int) -> tuple[int, int]:
    """Return where the sentences of the test set begin and end among those of the split."""
    held = len(tested.order)
    border = min(FOR_VALIDATION, held // 2)
    begins, ends = {TEST: (border, held), VALIDATION: (0, border), HELD_OUT: (0, held)}[test]
    if begins == ends:
        raise DataError(
            f"The test split of stackoverflow holds {held} sentence, too few to split; set test={TEST}, or path to a larger file."
        )
    return begins, min(ends, begins + most)


@dataclass(frozen=True)
class Sentences(Rows):
    """The inputs of a split's sentences, or its targets (`asks`), int64 [n, length], made when they are taken."""

    split: Split
    vocabulary: Vocabulary
    asks: bool
    shape: tuple[int, int]

    def take(self, rows: np.ndarray) -> np.ndarray:
        encoded = _encoded(self.split, rows, lambda text: self.vocabulary.encode(text.decode().split()))
        return as_targets(windows(encoded, self.shape[1], truncate=True)[int(self.asks)])


STACKOVERFLOW = Benchmark(
    "stackoverflow",
    Files(
        "stackoverflow.sqlite",
        {
            "train": ("train", "stackoverflow_train.h5"),
            "test": ("test", "stackoverflow_test.h5"),
            "heldout": ("heldout", "stackoverflow_held_out.h5"),
        },
        ("tokens",),
    ),
    lambda columns: _text(columns["tokens"]),
    {"tff": _NO_TEXT},
    "user",
    "CC BY-SA 3.0",
    "TFF stackoverflow (Kaggle's Stack Overflow data, 2019)",
)
BENCHMARKS = (FEMNIST, STACKOVERFLOW, SHAKESPEARE)
