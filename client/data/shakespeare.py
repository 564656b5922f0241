"""Shakespeare's plays by role, for next-character prediction; TFF, LEAF or hub files."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from client.data.benchmark import Benchmark, Converted, Split, no_texts, texts
from client.data.dataset import IGNORED_TARGET, NEXT_TOKEN, UNREADABLE, Dataset, Public, as_tokens
from client.data.sources import Files
from client.data.text import (
    LEAF_CHARACTERS,
    UNCOUNTED,
    Vocabulary,
    note_unknown,
    windows,
)
from fedmf.errors import DataError

LICENCE = "text: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF shakespeare; hub flwrlabs/shakespeare"
TEST_USERS = "all train too; counted when loaded, and said in the privacy statement"
LENGTH = 80
VOCABULARY = Vocabulary(tuple(LEAF_CHARACTERS))
FILES = Files(
    "shakespeare.sqlite",
    {"train": ("train", "shakespeare_train.h5"), "test": ("test", "shakespeare_test.h5")},
    ("snippets",),
    "flwrlabs/shakespeare",
    ("character_id", "x", "y"),
)


def load(path: str | None = None, *, as_published: bool = False, public: Public | None = None) -> Dataset:
    """Return Shakespeare's roles; inputs int64 [n, 80], 86 public characters and 4 special tokens.

    TFF's snippets are cut into windows of 80 characters, each predicted from those before it. LEAF's and the
    hub's examples are 80 characters and one next character, the only target. TFF and LEAF bring a test split
    of the same roles; of the hub's file a fifth of each role, chosen by a public seed, is the test set.

    With `as_published` snippets are read as bytes and cut into pieces of 81 that share no character, the first of
    which is never predicted, and the accuracy leaves out padding alone: unknown characters and ends count, as in TFF.
    With `public` no test example is read, nor TFF's and LEAF's test files. Raises `DataError` with the file to put
    where, when there is none.
    """
    held = BENCHMARK.held(path)
    train, test, rows = held.parted(public)
    if held.form == "tff":
        train = _cut(train, as_published)
        if test is not None:
            test = _cut(test, as_published)
            rows = test.order
    said = "the files must hold the English plays."
    return BENCHMARK.dataset(
        train,
        test,
        rows,
        as_tokens,
        input_shape=(LENGTH,),
        classes=VOCABULARY.size,
        task=NEXT_TOKEN,
        uncounted=() if as_published else UNCOUNTED,
        note=lambda y: note_unknown(y, "the benchmark's 86 characters", said),
    )


def convert(columns: Mapping[str, Any]) -> Converted:
    """Return TFF's snippets as they are, or of LEAF and the hub tokens int8 [n, 80], in which all of them fit.

    LEAF scores 80 characters and the next one, which is the only target.
    """
    if "snippets" in columns:
        return texts(columns["snippets"])
    for context, character in zip(columns["x"], columns["y"], strict=True):
        if not isinstance(context, str) or not isinstance(character, str):
            raise DataError("Its x or y is no text; both must be.")
        if len(context) != LENGTH or len(character) != 1:
            raise DataError(
                f"It has {len(context)} and {len(character)} characters as x and y; there must be {LENGTH} and 1."
            )
    x = np.stack([VOCABULARY.encode(context) for context in columns["x"]]).astype(np.int8)
    y = np.full_like(x, IGNORED_TARGET)
    y[:, -1] = VOCABULARY.encode(columns["y"])
    return x, y


def blank(count: int, form: str) -> Converted:
    """Return examples that cannot be read."""
    if form == "tff":
        return no_texts(count, form)
    return (np.full((count, LENGTH), UNREADABLE, np.int8),) * 2


def _cut(split: Split, as_published: bool) -> Split:
    """Return TFF's snippets as windows of tokens, user by user."""
    encoding = "latin-1" if as_published else "utf-8"  # TFF takes bytes for characters
    encoded = [
        np.array([UNREADABLE], dtype=np.int32)
        if split.y[row] == UNREADABLE
        else VOCABULARY.encode(split.x[row].decode(encoding))
        for row in split.order.tolist()
    ]
    x, y, owner = windows(encoded, LENGTH, apart=as_published)
    bounds = np.searchsorted(owner, split.bounds)
    return Split(x, y, np.arange(len(x)), bounds, split.names)


BENCHMARK = Benchmark("shakespeare", FILES, convert, blank, "role of a play", LICENCE, SOURCE)
