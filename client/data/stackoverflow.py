"""Stack Overflow, next-word prediction: 342,477 users, 135.8 M sentences; TFF's sqlite or HDF5 files."""

from functools import partial

from client.data.dataset import (
    NEXT_TOKEN,
    Dataset,
    Examples,
    as_tokens,
    describe_unit,
    shared_users,
    stand_in,
)
from client.data.fields import TEXTS, Field, texts
from client.data.split import SPLIT_SEED
from client.data.stores import Columns, Store, active_users, first_examples, given_path, stored_clients
from client.data.text import UNCOUNTED, Vocabulary, note_unknown, read_words, windows
from client.data.tff_files import TffFiles, open_test, open_training
from client.settings import TEST_SPLITS
from fedmf.checks import check_at_least, check_choice
from fedmf.errors import DataError

LICENCE = "CC BY-SA 3.0"
SOURCE = "TFF stackoverflow (Kaggle's Stack Overflow data, 2019)"
FIELDS = {"tokens": Field(TEXTS)}
TEST_USERS = (
    "about 97 % train too, by TFF's counts, and none with test=heldout; counted when loaded, and said in the "
    "privacy statement"
)
TEST, VALIDATION, HELD_OUT = TEST_SPLITS
FILES = TffFiles(("train", "test"), ("stackoverflow_train.h5", "stackoverflow_test.h5"), FIELDS)
HELD_OUT_FILES = TffFiles(
    ("train", "heldout"), ("stackoverflow_train.h5", "stackoverflow_held_out.h5"), FIELDS
)
FOR_VALIDATION = 10_000
"""Sentences of the test split on which settings are chosen, and which are not reported on (Kairouz et al. 2021)."""
WHERE = (
    "Dataset stackoverflow needs a file: set path to TFF's stackoverflow.sqlite (~/.tff where TFF has put it), or to "
    "the folder of stackoverflow_train.h5, stackoverflow_held_out.h5 and stackoverflow_test.h5."
)
WHICH_WORDS = (
    "Dataset stackoverflow needs a public vocabulary: set vocabulary to TFF's stackoverflow.word_count, or "
    "to a file with one word on each line. `python -m experiments.vocabulary` makes one from public text."
)
OTHER_WORDS = "set vocabulary to TFF's stackoverflow.word_count, or to another public file of English words."
COUNTED = (
    "The words were given with counts, as TFF gives them, and TFF counted its words among the training users: an "
    "uncovered release."
)


def load(
    path: str | None = None,
    *,
    vocabulary: str | None = None,
    vocabulary_size: int = 10_000,
    test: str = TEST,
    length: int = 20,
    max_test_examples: int = 10_000,
    clients_only: bool = False,
) -> Dataset:
    """Return TFF's Stack Overflow; inputs int64 [n, 20], one row for each sentence, cut after 20 words.

    Clients are read from disk when asked for. The vocabulary is the first `vocabulary_size` words of the public file
    `vocabulary`.

    `test` is one of three sets of sentences. TFF splits by date, so that nearly all users of its test split train
    too; its held-out users never do. Of the test split, users in an order drawn by a public seed, "validation" is
    the first 10,000 sentences (half of a smaller split), on which the papers choose their settings, "test" is what
    follows, on which they report. "heldout" is the held-out users in such an order. At most `max_test_examples`
    sentences are read, from the beginning. With `clients_only` nothing but the training split is opened.

    Raises `DataError` when a file is missing, or holds no such sentences.
    """
    folder = given_path(path, WHERE)
    if folder is None:
        raise DataError(WHERE)
    if vocabulary is None:
        raise DataError(WHICH_WORDS)
    check_choice("test", test, TEST_SPLITS)
    check_at_least("max_test_examples", max_test_examples, 1)
    listed = read_words(vocabulary, vocabulary_size)
    known = Vocabulary(listed.tokens)
    training = open_training(folder, FILES)
    convert = partial(sentences, vocabulary=known, length=length)
    examples, overlap, notes = stand_in((length,), NEXT_TOKEN), tuple[str, ...](), tuple[str, ...]()
    if not clients_only:
        tested = open_test(folder, HELD_OUT_FILES if test == HELD_OUT else FILES)
        start, stop = _place(tested, test, max_test_examples)
        examples = first_examples(tested, convert, stop - start, seed=SPLIT_SEED, skip=start)
        overlap = shared_users(active_users(training), active_users(tested))
        notes = (note_unknown(examples.y, f"the {len(listed.tokens):,} words of {vocabulary}", OTHER_WORDS),)
    return Dataset(
        name="stackoverflow",
        clients=stored_clients(training, convert),
        test=examples,
        input_shape=(length,),
        classes=known.size,
        task=NEXT_TOKEN,
        licence=LICENCE,
        source=SOURCE,
        unit=describe_unit("user"),
        uncovered=(COUNTED,) * listed.counted + overlap,
        uncounted=UNCOUNTED,
        person="user",
        notes=notes,
    )


def _place(tested: Store, test: str, most: int) -> tuple[int, int]:
    """Return where the sentences of the test set begin and end among those of the split."""
    held = int(tested.counts.sum())
    border = min(FOR_VALIDATION, held // 2)
    begins, ends = {TEST: (border, held), VALIDATION: (0, border), HELD_OUT: (0, held)}[test]
    if begins == ends:
        raise DataError(
            f"{tested.path} holds {held} sentence in its test split, too few to part them; set test={TEST}, or path to a "
            "file with more."
        )
    return begins, min(ends, begins + most)


def sentences(columns: Columns, *, vocabulary: Vocabulary, length: int) -> Examples:
    """Return TFF's column tokens (words parted by spaces) as examples."""
    encoded = [vocabulary.encode(text.split()) for text in texts(columns, "tokens")]
    x, y, _ = windows(encoded, length, truncate=True)
    return Examples(as_tokens(x), as_tokens(y))
