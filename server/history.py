"""The public part of a checkpoint: the newest states of a run, and every release after them, as files of one folder."""

from dataclasses import dataclass, field
from pathlib import Path

from server import journal, register_log
from server.register_log import RegisterLog
from server.state import Release
from server.state_files import Base, register_of

_KEPT = 2  # base files: the newest and the one before it


@dataclass(frozen=True)
class History:
    """The base files and journals in `folder`. `register` knows what this process wrote of the register.

    Each base is followed by a journal of its own, which holds no torn record of another process.
    """

    folder: Path
    register: RegisterLog = field(default_factory=RegisterLog, repr=False)

    def bases(self) -> list[int]:
        """Return the rounds of the base files, increasing."""
        return sorted(int(path.stem.removeprefix("base-")) for path in self.folder.glob("base-*.npz"))

    def read(self) -> Base:
        """Return the newest base, of which there must be one. Raises `RunDirectoryError` where it is damaged."""
        *others, newest = self.bases()
        offer = ""
        if others:
            offer = f" The checkpoint of round {others[-1]} before it is kept: move this file away to use it."
        return Base.load(self._base(newest), otherwise=offer)

    def save(self, base: Base) -> None:
        """Save a base, and remove what neither it nor the one before it needs."""
        register = self.register.save(self.folder, base.state.round, base.state.register)
        base.save(self._base(base.state.round), register)
        for old in self.bases()[:-_KEPT]:
            self._base(old).unlink()
            self._journal(old).unlink(missing_ok=True)
        register_log.remove_others(self.folder, [register_of(self._base(kept)) for kept in self.bases()])

    def append(self, release: Release) -> None:
        """Put a release on disk, behind the newest base. Raises `OSError` if it is not there."""
        journal.append(self._journal(self.bases()[-1]), release)

    def releases(self, base: int) -> list[Release]:
        """Return the releases after round `base`, from its journal and any later one."""
        found = [
            release for path in sorted(self.folder.glob("journal-*.bin")) for release in journal.read(path)
        ]
        return [release for release in found if release.round > base]

    def released(self) -> int:
        """Return the last released round; there must be a base."""
        last = self.bases()[-1]
        return max([last, *(release.round for release in self.releases(last))])

    def begin_journal(self, base: int) -> None:
        """Remove what stands in the journal after `base`: at most a torn record, where whole ones were replayed."""
        self._journal(base).unlink(missing_ok=True)

    def _base(self, number: int) -> Path:
        return self.folder / f"base-{number:06d}.npz"

    def _journal(self, base: int) -> Path:
        return self.folder / f"journal-{base:06d}.bin"
