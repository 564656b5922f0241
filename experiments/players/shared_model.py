"""A round's model for the worker processes of this machine: written once, read once by each of them."""

import os
import pickle

from flwr.app import ArrayRecord

# What a chunk of tasks carries in place of the model: where it lies, and which one it is.
Place = tuple[str, int]


class SharedModel:
    """A record in memory that other processes of this user can open by its place; it goes with this process.

    A file of its own that nobody can find by a name: nothing stays behind where this process is killed. `number` tells
    it from those before.
    """

    def __init__(self, record: ArrayRecord, number: int) -> None:
        self._file = os.fdopen(os.memfd_create("model"), "wb")
        pickle.dump(record, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._file.flush()
        self.place: Place = (f"/proc/{os.getpid()}/fd/{self._file.fileno()}", number)

    def close(self) -> None:
        """Give the memory back."""
        self._file.close()

    @staticmethod
    def is_possible() -> bool:
        """Say whether this system has such files; without them each chunk carries the model."""
        return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


_held: tuple[Place, ArrayRecord] | None = None  # of this worker process


def model_at(place: Place) -> ArrayRecord:
    """Return the record at `place`, in this process read once."""
    global _held
    if _held is None or _held[0] != place:
        with open(place[0], "rb") as file:
            _held = place, pickle.load(file)
    return _held[1]
