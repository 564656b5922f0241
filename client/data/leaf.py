"""LEAF's folders of JSON files: {"users", "num_samples", "user_data": {user: {"x", "y"}}}."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client.data.reading import Unreadable, read_json, reading, user_names
from fedmf.errors import DataError

SPLITS = ("train", "test")
UNEQUAL = object()  # the input and label of a user who has no lists of as many inputs as labels


@dataclass(frozen=True)
class Rows:
    """Examples in memory: the user of each, its input and its label as they stand in the file.

    `may_hold_truths`: true or false may stand among them, which arrays take for 1 and 0.
    """

    users: list[str]
    x: list[Any]
    y: list[Any]
    may_hold_truths: bool


def is_leaf(path: Path) -> bool:
    """Return whether `path` looks like a LEAF folder; a process that plays clients needs no test files."""
    return any(any((path / split).glob("*.json")) for split in SPLITS)


def files(path: Path, split: str) -> list[Path]:
    """Return the files of one split, in their order."""
    return sorted((path / split).glob("*.json"))


def read_leaf(path: Path, split: str, unreadable: Unreadable) -> Iterator[Rows]:
    """Yield the examples of one split file by file, user by user, or raise `DataError`.

    One file is in memory at a time. A user without lists of as many inputs as labels is `unreadable`, and so is a
    training user without any: one example of `UNEQUAL` stands for it. Who the clients are is said by the names alone.
    """
    empty = True
    for file in files(path, split):
        data, may_hold_truths = _user_data(file)
        rows = Rows([], [], [], may_hold_truths)
        for user, examples in data.items():
            x, y = (examples.get("x"), examples.get("y")) if isinstance(examples, dict) else (None, None)
            if not isinstance(x, list) or not isinstance(y, list):
                unreadable.note(f"User {user!r} in {file} must have lists x and y.")
                x, y = [UNEQUAL], [UNEQUAL]
            elif len(x) != len(y):
                unreadable.note(f"User {user!r} in {file} has {len(x)} x and {len(y)} y.")
                x, y = [UNEQUAL], [UNEQUAL]
            elif not x and not unreadable.is_public:
                unreadable.note(f"User {user!r} in {file} has no examples.")
                x, y = [UNEQUAL], [UNEQUAL]
            user_names(file, [user])
            rows.users.extend([user] * len(x))
            rows.x.extend(x)
            rows.y.extend(y)
        empty = empty and not rows.users
        yield rows
    if empty:
        raise DataError(f"{path / split} holds no examples; it must hold LEAF's JSON files.")


def _user_data(file: Path) -> tuple[dict[str, Any], bool]:
    """Return the part of a LEAF file that holds the examples, and whether true or false may stand in it."""
    with reading(file, "JSON"):
        text = file.read_text(encoding="utf-8-sig")
    document = read_json(text, file)
    data = document.get("user_data") if isinstance(document, dict) else None
    if not isinstance(data, dict):
        raise DataError(f"{file} holds no user_data; a LEAF file is {{users, num_samples, user_data}}.")
    return data, "true" in text or "false" in text
