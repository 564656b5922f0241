"""Shakespeare's plays by role, for next-character prediction; TFF, LEAF or hub files."""

from pathlib import Path

import numpy as np

from client.data import hub, leaf
from client.data.by_user_npz import SPLIT_SEED, fifth_of_each
from client.data.dataset import (
    NEXT_TOKEN,
    ArrayClients,
    Dataset,
    Examples,
    as_tokens,
    describe_unit,
    group_by_user,
    shared_users,
)
from client.data.stores import Store, TffFiles, given_path, open_tff
from client.data.text import (
    LEAF_CHARACTERS,
    UNCOUNTED,
    Vocabulary,
    next_characters,
    note_unknown,
    separate_pieces,
    windows,
)
from fedmf.errors import DataError

LICENCE = "text: public domain; LEAF and hub copies BSD-2-Clause"
SOURCE = "LEAF (Caldas et al. 2018); TFF shakespeare; hub flwrlabs/shakespeare"
TEST_USERS = "all train too; counted when loaded, and said in the privacy statement"
HUB = "flwrlabs/shakespeare"
LENGTH = 80
ROLE = "role of a play"
FILES = TffFiles(("train", "test"), ("shakespeare_train.h5", "shakespeare_test.h5"))
VOCABULARY = Vocabulary(tuple(LEAF_CHARACTERS))
WHERE = (
    "Dataset shakespeare needs files: set path to the folder of TFF's shakespeare_train.h5 and "
    "shakespeare_test.h5, to TFF's shakespeare.sqlite, to a LEAF folder with train/*.json and test/*.json, "
    f"or to the folder of shakespeare.csv of {HUB}; or set download=True."
)
Tokens = tuple[np.ndarray, np.ndarray, np.ndarray]
"""x and y int32 [n, 80], and the role of each row."""


def load(path: str | None = None, *, as_published: bool = False, download: bool = False) -> Dataset:
    """Return Shakespeare's roles; inputs int64 [n, 80], 86 public characters and 4 special tokens.

    TFF's snippets are cut into windows of 80 characters, each predicted from those before it. LEAF's and the
    hub's examples are 80 characters and one next character, the only target. TFF and LEAF bring a test split
    of the same roles; of the hub's file a fifth of each role, chosen by a public seed, is the test set.

    With `as_published` snippets are read as bytes and cut into pieces of 81 that share no character, the first of
    which is never predicted, and the accuracy leaves out padding alone: unknown characters and ends count, as in TFF.
    Raises `DataError` with the file to put where, when there is none.
    """
    files = given_path(path, WHERE)
    if files is None and not download:
        raise DataError(WHERE)
    if files is None or hub.is_table(files):
        train, test = _from_hub(files)
    else:
        train, test = _from_disk(files, as_published)
    note = note_unknown(test[1], "the benchmark's 86 characters", "the files must hold the English plays.")
    return Dataset(
        name="shakespeare",
        clients=ArrayClients(train[0], train[1], *group_by_user(train[2]), convert=as_tokens),
        test=Examples(as_tokens(test[0]), as_tokens(test[1])),
        input_shape=(LENGTH,),
        classes=VOCABULARY.size,
        task=NEXT_TOKEN,
        licence=LICENCE,
        source=SOURCE,
        unit=describe_unit(ROLE),
        uncovered=shared_users(train[2], test[2]),
        uncounted=() if as_published else UNCOUNTED,
        person=ROLE,
        notes=(note,),
    )


def _from_disk(path: Path, as_published: bool) -> tuple[Tokens, Tokens]:
    """Return (train, test) of TFF's or LEAF's files."""
    if leaf.is_leaf(path):
        train, test = (leaf.read_leaf(path, split) for split in leaf.SPLITS)
        return _pairs(train.users, train.x, train.y), _pairs(test.users, test.x, test.y)
    train_store, test_store = open_tff(path, FILES)
    return _snippets(train_store, as_published), _snippets(test_store, as_published)


def _from_hub(path: Path | None) -> tuple[Tokens, Tokens]:
    """Return (train, test) of the hub's file, from disk or downloaded."""
    columns = ("character_id", "x", "y")
    table = hub.download(HUB, columns) if path is None else hub.read_table(path, columns)
    x, y, roles = _pairs(table["character_id"], table["x"], table["y"])
    test = fifth_of_each(roles, seed=SPLIT_SEED)
    return (x[~test], y[~test], roles[~test]), (x[test], y[test], roles[test])


def _pairs(roles: list[str], contexts: list[str], characters: list[str]) -> Tokens:
    """Return tokens of pairs of 80 characters and the next one."""
    return *next_characters(contexts, characters, VOCABULARY, LENGTH), np.array(roles)


def _snippets(store: Store, as_published: bool) -> Tokens:
    """Return tokens of TFF's snippets; the data set is small enough for memory."""
    sentences, roles = [], []
    for user, count in enumerate(store.counts):
        for snippet in store.read(user, 0, int(count))["snippets"]:
            text = snippet.decode("latin-1" if as_published else "utf-8")  # TFF takes bytes for characters
            sentences.append(VOCABULARY.encode(text))
            roles.append(store.users[user])
    x, y, owner = (separate_pieces if as_published else windows)(sentences, LENGTH)
    return x, y, np.array(roles)[owner]
