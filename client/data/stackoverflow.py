"""Stack Overflow, next-word prediction: 342,477 users, 135.8 M sentences; TFF's sqlite or HDF5 files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from client.data.benchmark import Benchmark, Converted, Split, no_texts, texts
from client.data.clients import ArrayClients
from client.data.dataset import NEXT_TOKEN, UNREADABLE, Dataset, Public, as_tokens
from client.data.identity import Fingerprint
from client.data.rows import Rows
from client.data.sources import Files
from client.data.text import UNCOUNTED, Vocabulary, note_unknown, read_words, windows
from client.settings import TEST_SPLITS
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import DataError

LICENCE = "CC BY-SA 3.0"
SOURCE = "TFF stackoverflow (Kaggle's Stack Overflow data, 2019)"
TEST_USERS = (
    "about 97 % train too, by TFF's counts, and none with test=heldout; counted when loaded, and said in the "
    "privacy statement"
)
TEST, VALIDATION, HELD_OUT = TEST_SPLITS
FILES = Files(
    "stackoverflow.sqlite",
    {
        "train": ("train", "stackoverflow_train.h5"),
        "test": ("test", "stackoverflow_test.h5"),
        "heldout": ("heldout", "stackoverflow_held_out.h5"),
    },
    ("tokens",),
)
FOR_VALIDATION = 10_000
"""Sentences of the test split on which settings are chosen, and which are not reported on (Kairouz et al. 2021)."""
WHICH_WORDS = (
    "Dataset stackoverflow needs a public vocabulary: set vocabulary to TFF's stackoverflow.word_count, or "
    "to a file with one word on each line. `python -m experiments.vocabulary` makes one from public text."
)
OTHER_WORDS = "set vocabulary to TFF's stackoverflow.word_count, or to another public file of English words."
COUNTED = (
    "The words were given with counts, as TFF gives them, and TFF counted its words among the training users: an "
    "uncovered release."
)
_AT_ONCE = 1 << 21  # sentences of which the clients are identified at once


def load(
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

    Sentences become tokens when their client takes its turn. The vocabulary is the first `vocabulary_size` words of the
    public file `vocabulary`.

    `test` is one of three sets of sentences. TFF splits by date, so that nearly all users of its test split train
    too; its held-out users never do. Of the test split, users in an order drawn by a public seed, "validation" is
    the first 10,000 sentences (half of a smaller split), on which the papers choose their settings, "test" is what
    follows, on which they report. "heldout" is the held-out users in such an order. At most `max_test_examples`
    sentences are read, from the beginning. With `public` nothing but the training split is opened.

    Raises `DataError` when a file is missing, or holds no such sentences.
    """
    held = BENCHMARK.held(path)
    if vocabulary is None:
        raise DataError(WHICH_WORDS)
    check_choice("test", test, TEST_SPLITS)
    check_at_least("max_test_examples", max_test_examples, 1)
    listed, counted = read_words(vocabulary, vocabulary_size)
    known = Vocabulary(listed)
    training = held.split("train")
    tested, rows = None, np.empty(0, np.int64)
    if public is None:
        tested = held.split("heldout" if test == HELD_OUT else "test")
        rows = tested.shuffled()[slice(*_place(tested, test, max_test_examples))]

    def encoded(split: Split) -> Split:
        inputs, targets = (cast(np.ndarray, Sentences(split, known, length, asks)) for asks in (False, True))
        return replace(split, x=inputs, y=targets)

    return BENCHMARK.dataset(
        encoded(training),
        None if tested is None else encoded(tested),
        rows,
        as_tokens,
        clients=SentenceClients,
        input_shape=(length,),
        classes=known.size,
        task=NEXT_TOKEN,
        uncovered=(COUNTED,) * counted,
        uncounted=UNCOUNTED,
        note=lambda y: note_unknown(y, f"the {len(listed):,} words of {vocabulary}", OTHER_WORDS),
    )


def _place(tested: Split, test: str, most: int) -> tuple[int, int]:
    """Return where the sentences of the test set begin and end among those of the split."""
    held = int(tested.counts.sum())
    border = min(FOR_VALIDATION, held // 2)
    begins, ends = {TEST: (border, held), VALIDATION: (0, border), HELD_OUT: (0, held)}[test]
    if begins == ends:
        raise DataError(
            f"The test split of stackoverflow holds {held} sentence, too few to split them; set test={TEST}, or path to a file "
            "with more."
        )
    return begins, min(ends, begins + most)


def convert(columns: Mapping[str, Any]) -> Converted:
    """Return TFF's tokens, sentences of words parted by spaces, as they are."""
    return texts(columns["tokens"])


@dataclass(frozen=True)
class Sentences(Rows):
    """The inputs of a split's sentences, or its targets (`asks`), int64 [n, length], made when they are taken."""

    split: Split
    vocabulary: Vocabulary
    length: int
    asks: bool

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Return the shape of all."""
        return len(self.split.y), self.length

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the windows of the sentences `rows`."""
        unreadable = np.array([UNREADABLE], dtype=np.int32)
        encoded = [
            unreadable
            if self.split.y[row] == UNREADABLE
            else self.vocabulary.encode(self.split.x[row].decode().split())
            for row in rows.tolist()
        ]
        return as_tokens(windows(encoded, self.length, truncate=True)[int(self.asks)])


class SentenceClients(ArrayClients):
    """Clients whose sentences stay as they are stored."""

    def identify(self, fingerprint: Fingerprint, numbers: range) -> None:
        """Write how many sentences each client has, and how long each sentence is; they are not read."""
        assert isinstance(self.x, Sentences)
        sizes, rows = self.owned(numbers)
        fingerprint.array(sizes)
        ends = self.x.split.x.ends
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            fingerprint.array(ends[some] - np.where(some > 0, ends[some - 1], 0))


BENCHMARK = Benchmark("stackoverflow", FILES, convert, no_texts, "user", LICENCE, SOURCE)
