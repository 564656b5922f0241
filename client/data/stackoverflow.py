"""Stack Overflow, next-word prediction: 342,477 users, 135.8 M sentences; TFF's sqlite or HDF5 files."""

from functools import partial

from client.data.by_user_npz import SPLIT_SEED
from client.data.dataset import NEXT_TOKEN, Dataset, Examples, as_tokens, describe_unit
from client.data.fields import TEXTS, Field, texts
from client.data.stores import Columns, first_examples, given_path, open_tff, stored_clients
from client.data.text import UNCOUNTED, Vocabulary, read_vocabulary, windows
from fedmf.checks import check_at_least
from fedmf.errors import DataError

LICENCE = "CC BY-SA 3.0"
SOURCE = "TFF stackoverflow (Kaggle's Stack Overflow data, 2019)"
FIELDS = {"tokens": Field(TEXTS)}
WHERE = (
    "Dataset stackoverflow needs a file: set path to TFF's stackoverflow.sqlite (unpacked), or to "
    "the folder of stackoverflow_train.h5 and stackoverflow_test.h5."
)
WHICH_WORDS = (
    "Dataset stackoverflow needs a public vocabulary: set vocabulary to a file with one word on "
    "each line. `python -m experiments.vocabulary` makes one from public text."
)


def load(
    path: str | None = None,
    *,
    vocabulary: str | None = None,
    examples_per_client: int | None = None,
    length: int = 20,
    test_examples: int = 10_000,
) -> Dataset:
    """Return TFF's Stack Overflow; inputs int64 [n, 20], one row for each sentence, cut after 20 words.

    Clients are read from disk when asked for. The test set holds `test_examples` sentences of TFF's test
    users, who are not among the training users; the users are drawn by a public seed. Raises `DataError` when
    a file is missing.
    """
    folder = given_path(path, WHERE)
    if folder is None:
        raise DataError(WHERE)
    if vocabulary is None:
        raise DataError(WHICH_WORDS)
    check_at_least("test_examples", test_examples, 1)
    known = read_vocabulary(vocabulary)
    train, test = open_tff(folder, FIELDS)
    convert = partial(sentences, vocabulary=known, length=length)
    return Dataset(
        name="stackoverflow",
        clients=stored_clients(train, convert, examples_per_client),
        test=first_examples(test, convert, test_examples, seed=SPLIT_SEED),
        input_shape=(length,),
        classes=known.size,
        task=NEXT_TOKEN,
        licence=LICENCE,
        source=SOURCE,
        unit=describe_unit("user", examples_per_client),
        uncounted=UNCOUNTED,
    )


def sentences(columns: Columns, *, vocabulary: Vocabulary, length: int) -> Examples:
    """Return TFF's column tokens (words parted by spaces) as examples."""
    encoded = [vocabulary.encode(text.split()) for text in texts(columns, "tokens")]
    x, y, _ = windows(encoded, length, truncate=True)
    return Examples(as_tokens(x), as_tokens(y))
