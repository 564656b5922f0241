"""Shakespeare's plays by role, for next-character prediction; TFF, LEAF or hub files."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from client.data import hub, leaf
from client.data.checked import UNREADABLE
from client.data.dataset import (
    NEXT_TOKEN,
    ArrayClients,
    Dataset,
    as_tokens,
    describe_unit,
    group_by_user,
    shared_users,
    stand_in,
    stored_examples,
)
from client.data.fields import TEXTS, Field, texts
from client.data.prepared import Part, Prepared, prepared
from client.data.reading import Unreadable, user_names
from client.data.split import SPLIT_SEED, fifth_of_each
from client.data.stores import Columns, Store, converted, given_path
from client.data.text import (
    LEAF_CHARACTERS,
    UNCOUNTED,
    Vocabulary,
    next_characters,
    note_unknown,
    separate_pieces,
    windows,
)
from client.data.tff_files import TffFiles, open_test, open_training
from fedmf.errors import DataError

LICENCE = "text: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF shakespeare; hub flwrlabs/shakespeare"
TEST_USERS = "all train too; counted when loaded, and said in the privacy statement"
HUB = "flwrlabs/shakespeare"
LENGTH = 80
FIELDS = {"snippets": Field(TEXTS)}
ROLE = "role of a play"
FILES = TffFiles(("train", "test"), ("shakespeare_train.h5", "shakespeare_test.h5"), FIELDS)
VOCABULARY = Vocabulary(tuple(LEAF_CHARACTERS))
WHERE = (
    "Dataset shakespeare needs files: set path to the folder of TFF's shakespeare_train.h5 and "
    "shakespeare_test.h5, to TFF's shakespeare.sqlite (~/.tff where TFF has put it), to a LEAF folder with train/*.json and test/*.json, "
    f"or to the folder of shakespeare.csv of {HUB}; or set download=True."
)


def load(
    path: str | None = None,
    *,
    as_published: bool = False,
    download: bool = False,
    clients_only: bool = False,
) -> Dataset:
    """Return Shakespeare's roles; inputs int64 [n, 80], 86 public characters and 4 special tokens.

    TFF's snippets are cut into windows of 80 characters, each predicted from those before it. LEAF's and the
    hub's examples are 80 characters and one next character, the only target. TFF and LEAF bring a test split
    of the same roles; of the hub's file a fifth of each role, chosen by a public seed, is the test set.

    With `as_published` snippets are read as bytes and cut into pieces of 81 that share no character, the first of
    which is never predicted, and the accuracy leaves out padding alone: unknown characters and ends count, as in TFF.
    With `clients_only` no test example is read, nor TFF's and LEAF's test files. Raises `DataError` with the file to put
    where, when there is none.
    """
    files = given_path(path, WHERE)
    if files is None and not download:
        raise DataError(WHERE)
    if files is None or hub.is_table(files):
        train, rows, tested = _from_hub(files)
        test = train
    else:
        read = _leaf_split if leaf.is_leaf(files) else partial(_tff_split, as_published=as_published)
        train = read(files, "train")
        rows = np.arange(len(train.y))
        if not clients_only:
            test = read(files, "test")
            tested = np.arange(len(test.y))
    examples, overlap, notes = stand_in((LENGTH,), NEXT_TOKEN), tuple[str, ...](), tuple[str, ...]()
    if not clients_only:
        examples = stored_examples(test.x, test.y, tested, as_tokens)
        overlap = shared_users(train.users(rows), test.users(tested))
        said = "the files must hold the English plays."
        notes = (note_unknown(examples.y, "the benchmark's 86 characters", said),)
    order, bounds = group_by_user(train.user[rows])
    return Dataset(
        name="shakespeare",
        clients=ArrayClients(train.x, train.y, rows[order], bounds, convert=as_tokens),
        test=examples,
        input_shape=(LENGTH,),
        classes=VOCABULARY.size,
        task=NEXT_TOKEN,
        licence=LICENCE,
        source=SOURCE,
        unit=describe_unit(ROLE),
        uncovered=overlap,
        uncounted=() if as_published else UNCOUNTED,
        person=ROLE,
        notes=notes,
    )


def _from_hub(path: Path | None) -> tuple[Prepared, np.ndarray, np.ndarray]:
    """Return the hub's file, from disk or downloaded, with its training rows and its test rows."""
    source = hub.source(HUB, path)
    # Marked examples that turn out to be test examples are refused with the test set.
    unreadable = Unreadable(path or HUB, is_public=False)
    held = prepared(source.files, "shakespeare-hub", partial(_hub_parts, source), unreadable)
    test = fifth_of_each(held.user, seed=SPLIT_SEED, names=held.names)
    return held, np.flatnonzero(~test), np.flatnonzero(test)


def _tff_split(path: Path, split: str, *, as_published: bool) -> Prepared:
    """Return one split of TFF's files, which is small enough for memory."""
    store = (open_training if split == "train" else open_test)(path, FILES)
    return _snippets(store, as_published, Unreadable(path, is_public=split == "test"))


def _leaf_split(path: Path, split: str) -> Prepared:
    """Return one split of a LEAF folder."""
    return prepared(
        leaf.files(path, split),
        f"shakespeare-leaf-{split}",
        partial(_leaf_parts, path, split),
        Unreadable(path / split, is_public=split == "test"),
    )


def _leaf_parts(path: Path, split: str, unreadable: Unreadable) -> Iterator[Part]:
    """Yield a LEAF split as tokens, file by file."""
    for rows in leaf.read_leaf(path, split, unreadable):
        yield _pairs(rows.users, rows.x, rows.y, unreadable, 1)


def _hub_parts(source: hub.Files | hub.Download, unreadable: Unreadable) -> Iterator[Part]:
    """Yield the hub's file as tokens, some rows at a time."""
    for table in source.read(("character_id", "x", "y"), "character_id"):
        yield _pairs(table["character_id"], table["x"], table["y"], unreadable, table.share)


def _pairs(
    roles: Sequence[Any],
    contexts: Sequence[Any],
    characters: Sequence[Any],
    unreadable: Unreadable,
    share: float,
) -> Part:
    """Return tokens of pairs of 80 characters and the next one, as int8, in which all of them fit.

    Values that are no texts, and texts of another length, are `unreadable`.
    """
    good = np.ones(len(contexts), dtype=bool)
    for row, (context, character) in enumerate(zip(contexts, characters, strict=True)):
        if context is leaf.UNEQUAL:  # noted by `read_leaf`
            good[row] = False
        elif not isinstance(context, str) or not isinstance(character, str):
            good[row] = False
            unreadable.note(
                f"{unreadable.where} holds an x or y of {roles[row]!r} that is no text; both must be."
            )
        elif len(context) != LENGTH or len(character) != 1:
            good[row] = False
            unreadable.note(
                f"An example of {roles[row]!r} in {unreadable.where} has {len(context)} and {len(character)} characters "
                f"as x and y; there must be {LENGTH} and 1."
            )
    x, y = (np.full((len(contexts), LENGTH), UNREADABLE, dtype=np.int8) for _ in "xy")
    if good.any():
        chosen = np.flatnonzero(good).tolist()
        x[good], y[good] = next_characters(
            [contexts[row] for row in chosen], [characters[row] for row in chosen], VOCABULARY, LENGTH
        )
    return Part(user_names(unreadable.where, roles).tolist(), x, y, share)


def _snippets(store: Store, as_published: bool, unreadable: Unreadable) -> Prepared:
    """Return tokens of TFF's snippets; the data set is small enough for memory. A user that fails is `unreadable`."""
    encode = partial(
        _encode, encoding="latin-1" if as_published else "utf-8"
    )  # TFF takes bytes for characters
    sentences, roles = [], []
    for number, count in enumerate(store.counts):
        try:
            encoded = converted(store, encode, number, 0, int(count)) if count else []
        except DataError as error:
            unreadable.note(str(error))
            encoded = [np.full(2, UNREADABLE, dtype=np.int32)]
        sentences += encoded
        roles += [store.users[number]] * len(encoded)
    unreadable.warn()
    if not sentences:
        raise DataError(f"{unreadable.where} holds no snippets; it must hold at least one.")
    x, y, owner = (separate_pieces if as_published else windows)(sentences, LENGTH)
    names, user = np.unique(user_names(unreadable.where, roles), return_inverse=True)
    return Prepared(x, y, user[owner], names)


def _encode(columns: Columns, encoding: str) -> list[np.ndarray]:
    """Return the tokens of each snippet."""
    return [VOCABULARY.encode(snippet) for snippet in texts(columns, "snippets", encoding)]
