"""Examples of users as arrays in the cache, written once while the files are parsed part by part, and mapped.

What is written is what a parser made of the files, whole; settings that only choose or convert are applied when it is
used, so that all of them share one entry.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from client.data.made import opened
from client.data.maps import ArrayFile, mapped
from client.data.progress import Preparation
from client.data.reading import Unreadable
from fedmf.errors import DataError

_WHERE = "\0"  # stands in a note for the path, which another start may have another name for


@dataclass(frozen=True)
class Part:
    """Some examples in memory, in the files' order: the user of each, inputs and targets.

    `share` is how much of a file they are.
    """

    users: Sequence[str]
    x: np.ndarray
    y: np.ndarray
    share: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """Examples in the files' order; row i is of the user `names[user[i]]`, and `names` are in alphabetical order."""

    x: np.ndarray
    y: np.ndarray
    user: np.ndarray
    names: np.ndarray

    def users(self, rows: np.ndarray) -> np.ndarray:
        """Return the names of those who have a part in the examples `rows`, each once."""
        found: np.ndarray = self.names[np.unique(self.user[rows])]
        return found


def prepared(
    sources: Sequence[Path],
    kind: str,
    parts: Callable[[Unreadable], Iterator[Part]],
    unreadable: Unreadable,
    *,
    pixels: bool = False,
) -> Prepared:
    """Return the examples that `parts(unreadable)` makes of the files `sources`, or those of an earlier start.

    What could not be read is noted in `unreadable` at every start. Raises what `parts` raises, and keeps nothing then.
    `pixels`: see `ArrayFile`.
    """
    write = partial(_write, parts, unreadable, max(1, len(sources)), pixels)
    with opened(sources, kind, write) as folder:
        notes = json.loads((folder / "notes.json").read_text())
        held = Prepared(*(mapped(folder / f"{name}.npy") for name in ("x", "y", "user", "names")))
    unreadable.noted[:] = [note.replace(_WHERE, str(unreadable.where)) for note in notes]
    unreadable.warn()
    return held


def _write(
    parts: Callable[[Unreadable], Iterator[Part]],
    unreadable: Unreadable,
    total: float,
    pixels: bool,
    folder: Path,
) -> None:
    """Write all parts into a folder."""
    numbers: dict[str, int] = {}
    users: list[np.ndarray] = []
    with (
        ArrayFile(folder / "x.npy", pixels=pixels) as x,
        ArrayFile(folder / "y.npy") as y,
        Preparation(f"preparing {unreadable.where} in the cache", total) as progress,
    ):
        for part in parts(unreadable):
            if len(part.users):
                x.append(part.x)
                y.append(part.y)
                users.append(
                    np.array([numbers.setdefault(name, len(numbers)) for name in part.users], np.int32)
                )
            progress.advance(part.share)
    if not users:
        raise DataError(f"{unreadable.where} holds no examples; it must hold some.")
    names = np.array(list(numbers))
    order = np.argsort(names)
    place = np.empty(len(names), np.int32)
    place[order] = np.arange(len(names))
    np.save(folder / "names.npy", names[order])
    np.save(folder / "user.npy", place[np.concatenate(users)])
    notes = [note.replace(str(unreadable.where), _WHERE) for note in unreadable.noted]
    (folder / "notes.json").write_text(json.dumps(notes))
