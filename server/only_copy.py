"""That a run goes on in one directory alone: its rounds are counted outside it, under an id that it noted when it began.

A copy of a run directory, or an older state of it, holds the same key and would release the same noise on other replies.
What the run noted is its origin (`server.origin`); the count of its rounds lies with the user of the machine (`server.marks`).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedmf.errors import RunDirectoryError
from server import marks, origin
from server.history import History
from server.origin import Clients, Origin, Place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OnlyCopy:
    """The checkpoint `folder` as the only one of its run; `accepted`: another may go on here too.

    `clients` are those of the data at hand.
    """

    folder: Path
    clients: Clients
    accepted: bool = False

    def begin(self, released: int) -> None:
        """Note a new origin in the place of an earlier one, and count `released` rounds."""
        self.forget()
        self._count(Origin.of(self.folder.parent, self.clients), released)

    def origin(self) -> Origin:
        """Return the run's origin. Raises `RunDirectoryError` where it is lost."""
        if (begun := origin.load(self.folder)) is None:
            raise RunDirectoryError(
                f"{self.folder / origin.ORIGIN} is missing, so that nothing tells whether these are the run's clients; "
                "restore the checkpoint folder."
            )
        return begun

    @contextmanager
    def counting(self, number: int) -> Iterator[None]:
        """Hold the count while round `number` is put on disk, and count it once it is there.

        Raises `RunDirectoryError` before that, where it was counted already (another copy of this run has released that round) or the
        count is lost.
        """
        begun = self.origin()
        with marks.held(begun.run):
            counted = marks.read(begun.run)
            if begun.marked and counted is None:
                raise RunDirectoryError(
                    f"{marks.folder()} no longer says how many rounds of the run in {self.folder.parent} were released; "
                    f"round {number} was not. Only if you know that no other copy goes on: set accept_copy=True."
                )
            if begun.marked and counted is not None and counted >= number:
                raise RunDirectoryError(
                    f"round {number} of the run in {self.folder.parent} was released from another copy of this "
                    "directory; the same noise must not cover other replies. End this copy."
                )
            # In this order: after a crash between them the next process sees the round and counts it.
            yield
            if begun.marked:
                marks.write(begun.run, number)

    def refuse(self, history: History) -> None:
        """Raise `RunDirectoryError` unless the run began in this directory and `history` has all that it released.

        Where copies are accepted one is let pass with a warning.
        """
        if (begun := origin.load(self.folder)) is None:
            return
        place, counted = Place.of(self.folder.parent), marks.read(begun.run)
        released = history.released()
        where = begun.place.path if place.machine == begun.place.machine else "a directory of another machine"
        if not place.is_same(begun.place):
            wrong = f"this directory is a copy: the run began in {where}"
        elif begun.marked and counted is None:
            wrong = f"{marks.folder()} does not say how many of its rounds were released"
        elif begun.marked and counted is not None and counted > released:
            wrong = f"this is an older state: {counted} of its rounds were released"
        else:
            return
        said = f"the run in {self.folder.parent} ends at round {released}, but {wrong}. "
        if not self.accepted:
            raise RunDirectoryError(
                f"{said}Two copies would release the same noise on other replies. Only if you know that nobody saw a "
                f"later round than {released}, and that no other copy goes on: set accept_copy=True."
            )
        log.warning("%sIt goes on all the same, because accept_copy was set.", said)

    def go_on(self, released: int) -> None:
        """Count `released` rounds where that was lost, or the run went on in another directory, and note this one."""
        begun, place = self.origin(), Place.of(self.folder.parent)
        if begun.place != place or not begun.marked or marks.read(begun.run) != released:
            with marks.held(begun.run):
                self._count(replace(begun, place=place), released)

    def forget(self) -> None:
        """End the count of the run's rounds and remove its origin; a damaged origin is removed as well."""
        try:
            begun = origin.load(self.folder)
        except RunDirectoryError:
            begun = None
        if begun is not None:
            marks.end(begun.run)
        origin.forget(self.folder)

    def _count(self, begun: Origin, released: int) -> None:
        replace(begun, marked=marks.write(begun.run, released)).save(self.folder)
