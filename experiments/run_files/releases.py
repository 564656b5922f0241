"""The releases of a run, kept in its directory for an audit: releases.bin, in the journal's format.

What is kept is the noisy sum of every round, which is what the statement covers: the models follow from it. Who answered is
not kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.run_files.directory import RELEASES
from fedmf.errors import RunDirectoryError
from server import journal
from server.files import sync_folder
from server.state import Release


def restore_releases(directory: Path, replayed: Sequence[Release]) -> None:
    """Begin the file, or complete it after a crash: a torn record goes, and what the journal has beyond the file is added."""
    path = directory / RELEASES
    kept = journal.read(path)
    last = kept[-1].round if kept else 0
    whole = path.with_name(f"{RELEASES}.new")  # both files are whole at every instant
    whole.unlink(missing_ok=True)
    for release in [*kept, *(release for release in replayed if release.round > last)]:
        journal.append(whole, replace(release, answered=()))
    if whole.exists():
        whole.replace(path)
        sync_folder(directory)


def keep_release(directory: Path, release: Release) -> None:
    """Append one release, and return when it is on disk."""
    journal.append(directory / RELEASES, replace(release, answered=()))


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
