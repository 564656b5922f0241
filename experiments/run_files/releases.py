"""The releases of a run, kept in its directory for an audit: releases.bin, in the journal's format.

What is kept is the noisy sum of every round, which is what the statement covers: the models follow from it. Who answered is
not kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.run_files.directory import RELEASES
from fedmf.errors import RunDirectoryError
from server import journal
from server.files import sync_folder
from server.state import Release


@dataclass(frozen=True)
class KeptReleases:
    """The file of one run directory."""

    directory: Path

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self.directory / RELEASES

    def go_on(self, replayed: Sequence[Release]) -> None:
        """Begin, or go on after a crash: a torn record goes, and what the journal has beyond the file is added."""
        kept = journal.read(self.path)
        last = kept[-1].round if kept else 0
        whole = self.path.with_name(
            f"{RELEASES}.new"
        )  # the file is whole at every instant, and so is this one at its end
        whole.unlink(missing_ok=True)
        for release in [*kept, *(release for release in replayed if release.round > last)]:
            journal.append(whole, replace(release, answered=()))
        if whole.exists():
            whole.replace(self.path)
            sync_folder(self.directory)

    def keep(self, release: Release) -> None:
        """Append one release, and return when it is on disk."""
        journal.append(self.path, replace(release, answered=()))


def read_releases(directory: Path) -> list[Release]:
    """Return the releases of a run in order, one for each round from the first on.

    Raises `RunDirectoryError` where none were kept, or one is missing.
    """
    path = directory / RELEASES
    if not path.is_file():
        raise RunDirectoryError(
            f"{directory} holds no {RELEASES}; a run keeps its releases with run.keep_releases=true."
        )
    releases = journal.read(path)
    numbers = [release.round for release in releases]
    if numbers != list(range(1, len(numbers) + 1)):
        raise RunDirectoryError(f"{path} holds the rounds {numbers}; each must be there once, in order.")
    return releases
