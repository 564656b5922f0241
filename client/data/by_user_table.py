"""One table with a user, a label and an input in each row becomes a data set, wherever the table is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from client.data import by_user_text
from client.data.by_user_npz import LICENCE, SOURCE, TEST_USERS
from client.data.converted import pieces
from client.data.dataset import CLASSIFICATION, Dataset, describe_unit, shared_users, split_by_user
from client.data.labels import LEARNT_NAMES, read_labels
from client.data.pictures import ColumnBytes, Pictures, pictures
from client.data.rows import Rows, lists
from client.data.split import check_split
from client.data.table import (
    Table,
    Users,
    encoded,
    is_encoded,
    is_list,
    is_text,
    numbers,
    numeric_columns,
    plain,
    storage,
    test_rows,
    users_of,
)
from client.data.text import words
from fedmf.checks import check_choice
from fedmf.errors import DataError, SettingError

__all__ = ["LICENCE", "SOURCE", "TEST_USERS", "Columns", "OfText", "from_table", "refuse_given"]

MARK = "{} in the split column"


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what. One of `features`, `text` and `image`, or none: all numbers are features."""

    user: str
    label: str
    features: Sequence[str] | None = None
    text: str | None = None
    image: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` for more than one kind of input."""
        given = [name for name in ("features", "text", "image") if getattr(self, name) is not None]
        if len(given) > 1:
            raise SettingError(f"{' and '.join(given)} are given; an input is one of them.")
        _check_names("features", self.features)
        for role in ("user", "label", "split"):
            if self.features is not None and (name := getattr(self, role) or role) in self.features:
                raise SettingError(
                    f"features holds {name!r}, which is the column of {role}; a column is either an input or that."
                )

    def roles(self) -> list[str]:
        """Return the columns that say more of a row than its input."""
        return [self.user, self.split or "split", *([self.label] if self.text is None else [])]

    def refuse_near(self, path: Path, names: Sequence[str], *, may_be_inputs: bool = True) -> None:
        """Raise `DataError` for a column that would be an input, or ignored, for a blank or a capital letter.

        `names` are all columns of the table at `path`; `may_be_inputs`: those that nothing names are inputs.
        """
        may_be_inputs = may_be_inputs and self.features is self.text is self.image is None
        for role in self.roles():
            near = [name for name in names if name != role and _plain(name) == _plain(role)]
            if near and (may_be_inputs or role not in names):
                raise DataError(
                    f"{path} has a column {near[0]!r}, which differs from {role!r} in blanks or capital letters alone; "
                    "rename one of them."
                )


def _plain(name: str) -> str:
    """Return a name of a column without what is easily overlooked."""
    return name.strip().casefold()


@dataclass(frozen=True)
class OfText:
    """Settings that only texts have; None: the default of by_user_text."""

    vocabulary: str | None = None
    vocabulary_size: int | None = None
    level: str | None = None
    length: int | None = None

    def given(self) -> dict[str, Any]:
        """Return the settings that are given."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Sentences(Sequence[Sequence[str] | None]):
    """A column of texts, or of lists of tokens, as tokens of one level, None for an empty cell; made at each access."""

    column: Any
    level: str

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> Sequence[str] | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sequence[str] | None]: ...
    def __getitem__(self, index: int | slice) -> Sequence[str] | Sequence[Sequence[str] | None] | None:
        """Return the tokens of one text, or of several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        value = self.column[range(len(self))[index]].as_py()
        if value is None or (isinstance(value, list) and None in value):
            return None
        if isinstance(value, str):
            return value if self.level == "characters" else words(value)
        return " ".join(value) if self.level == "characters" else [token.lower() for token in value]


def from_table(
    name: str,
    table: Table,
    columns: Columns,
    *,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    of_text: OfText = OfText(),
    inputs: Callable[[Table, np.ndarray], np.ndarray | Rows] | None = None,
    clients_only: bool = False,
) -> Dataset:
    """Return the data set `name` in a table; without a split a fifth of each user's rows is the test set.

    `inputs(table, shown)` returns the inputs [rows, ...] where the columns do not hold them; `shown` [rows] are the rows
    that say the shape of all: the test rows, or all with `clients_only`, with which no other test input is read.
    """
    _check_names("labels", labels)
    columns.refuse_near(table.path, list(table.types), may_be_inputs=inputs is None)
    users = users_of(table, columns.user)
    test = test_rows(table, columns.split)
    if columns.text is not None:
        refuse_given("text is given", {"classes": classes, "labels": labels})
        return _of_texts(name, table, columns.text, users, test, of_text, clients_only)
    refuse_given("text is not given", of_text.given())
    if test is None:
        test = users.test_rows(may_be_none=clients_only)
    check_split(table.path, test, mark=MARK, may_be_none=clients_only)
    known = read_labels(table, columns.label, test, classes, labels, clients_only=clients_only)
    shown = np.ones_like(test) if clients_only else test
    x = inputs(table, shown) if inputs is not None else _inputs(table, columns, test, clients_only)
    # Rows are an array as far as clients need one.
    clients, tested = split_by_user(
        cast(np.ndarray, x), known.y, users.numbers, test, clients_only=clients_only
    )
    # Pictures are whole numbers, and decoding all of them once more would take long.
    if not isinstance(x, Pictures) and not all(np.isfinite(part).all() for part in pieces(tested.x)):
        raise DataError(
            f"The test rows of {table.path} hold inputs that are empty or not finite; all must be numbers."
        )
    return Dataset(
        name=name,
        clients=clients,
        test=tested,
        input_shape=tuple(x.shape[1:]),
        classes=known.classes,
        task=CLASSIFICATION,
        licence=LICENCE,
        source=table.path.name,
        unit=describe_unit("user"),
        uncovered=(LEARNT_NAMES,) * known.learnt + shared_users(users.numbers[~test], users.numbers[test]),
        person="user",
    )


def refuse_given(why: str, given: dict[str, Any]) -> None:
    """Raise `SettingError` for a setting that would be ignored."""
    for key, value in given.items():
        if value is not None:
            raise SettingError(f"{key} is {value!r}, but {why}, so that it would be ignored; leave it out.")


def _check_names(key: str, given: object) -> None:
    """Raise `SettingError` unless a setting is a list of texts, or None; one text is no list of its letters."""
    if given is not None and (
        isinstance(given, str)
        or not isinstance(given, Sequence)
        or not all(isinstance(name, str) for name in given)
    ):
        raise SettingError(f"{key} is {given!r}; it must be a list of names, such as ['one', 'two'].")


def _inputs(table: Table, columns: Columns, test: np.ndarray, clients_only: bool) -> np.ndarray | Rows:
    """Return the inputs of all rows. With `clients_only` no single row says what the others are; test rows are no different."""
    shown = np.ones_like(test) if clients_only else test  # the rows that say the shape of all
    if columns.image is not None:
        if columns.image in table.types and not is_encoded(table.types[columns.image]):
            return lists(table, columns.image, "image", shown)
        column = table.column(columns.image, "image", may_be_empty=True)
        return pictures(ColumnBytes(table.path, encoded(column)), table.rows, shown)
    names = columns.features
    if names is None:
        names = numeric_columns(
            table, (columns.user, columns.label, columns.split or "split"), test, clients_only=clients_only
        )
    if len(names) == 1 and names[0] in table.types and is_list(storage(table.types[names[0]])):
        return lists(table, names[0], "features", shown)
    return numbers(table, names, test, clients_only=clients_only)


def _of_texts(
    name: str,
    table: Table,
    column: str,
    users: Users,
    test: np.ndarray | None,
    of_text: OfText,
    clients_only: bool,
) -> Dataset:
    """Return the next-token data set of a column of texts or lists of tokens."""
    if test is None:
        test = users.test_rows(may_be_none=clients_only)
    check_split(table.path, test, mark=MARK, may_be_none=clients_only)
    level = of_text.level or by_user_text.LEVELS[0]
    check_choice("level", level, by_user_text.LEVELS)
    texts = plain(table.column(column, "text", may_be_empty=True))
    if not is_text(texts.type.value_type if is_list(texts.type) else texts.type):
        raise DataError(
            f"The column {column!r} of {table.path} is {texts.type}; it must hold texts, or lists of tokens."
        )
    return by_user_text.from_texts(
        name,
        table.path,
        by_user_text.Texts(users.numbers, Sentences(texts, level), test),
        **{**of_text.given(), "level": level, "clients_only": clients_only},
    )
