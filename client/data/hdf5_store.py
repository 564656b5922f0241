"""TFF's HDF5 files: one group for each user, read one user at a time."""

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from client.data.fields import Fields, check_group
from client.data.reading import reading
from client.data.stores import Columns, State, state_of
from client.imports import need
from fedmf.errors import DataError


@dataclass(frozen=True)
class Hdf5Store:
    """A TFF HDF5 file: /examples/USER/COLUMN with the examples of a user along the first axis."""

    path: Path
    users: tuple[str, ...]
    counts: np.ndarray
    state: State = ()

    def read(self, user: int, start: int, stop: int) -> Columns:
        """Return slices of the user's columns."""
        with reading(self.path, "an HDF5 file of TFF"):
            group = _hdf5(self.path, os.getpid(), self.state)["examples"][self.users[user]]
            lengths = {name: column.shape[:1] for name, column in group.items()}
            read = {name: column[start:stop] for name, column in group.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"The columns of {self.users[user]!r} in {self.path} are not of one length.")
        return read


def open_hdf5(path: Path, fields: Fields) -> Hdf5Store:
    """Return the store of a TFF HDF5 file, or raise `DataError`."""
    users, counts = [], []
    with reading(path, "an HDF5 file of TFF"):
        state = state_of(path)
        groups = _hdf5(path, os.getpid(), state).get("examples")
        if not hasattr(groups, "keys") or not len(groups):
            raise DataError(f"{path} holds no group examples/USER; it must be an HDF5 file of TFF.")
        for user in groups:
            counts.append(check_group(groups[user], fields, f"User {user!r} in {path}"))
            users.append(user)
    if not sum(counts):
        raise DataError(f"{path} holds no example; fetch TFF's file again, or set path to another.")
    return Hdf5Store(path, tuple(users), np.array(counts, dtype=np.int64), state)


@lru_cache(maxsize=8)
def _hdf5(path: Path, process: int, state: State) -> Any:
    """Return an open HDF5 file; `process` keeps a handle from crossing into a forked worker.

    `state` is that of the file when it was loaded: another file under the same name gets a handle of its own.
    """
    with reading(path, "an HDF5 file"):
        return need("h5py", f"Reading {path}").File(path, "r")
