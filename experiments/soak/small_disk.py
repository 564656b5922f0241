"""A file system of a few megabytes in memory that can be filled: writes then fail with ENOSPC, as on a full disk.

Mounting one needs the right to mount: root has it, and any user where the kernel allows user namespaces, by
`unshare -rm python -m experiments.soak ...`. Nothing else gives a real ENOSPC to one program alone: RLIMIT_FSIZE raises
EFBIG and a quota is for a user.
"""

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

_BALLAST = "ballast"
_PART = bytes(1 << 20)


class SmallDisk:
    """A tmpfs of `megabytes` at `folder`, which must be empty: a context, at whose end it is unmounted.

    `is_small` says whether it could be mounted; if not, `folder` is a folder as any other and cannot be filled.
    """

    def __init__(self, folder: Path, megabytes: int = 64) -> None:
        """Mount it."""
        self.folder, self._parts = folder, megabytes
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            self.is_small = False
        else:
            self.is_small = done.returncode == 0

    def __enter__(self) -> Self:
        """Return the disk."""
        return self

    def __exit__(self, *error: object) -> None:
        """Unmount it, and what is on it is gone."""
        if self.is_small:  # lazily: a process that is about to end may have a file open there
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)

    def fill(self) -> None:
        """Leave no room. Raises `RuntimeError` where the folder is not of a small disk."""
        if not self.is_small:
            raise RuntimeError(f"{self.folder} is no small disk: filling it would fill this machine's.")
        descriptor = os.open(self.folder / _BALLAST, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        left = self._parts + 1  # whatever lies there, no more than the disk can hold
        try:
            while left:
                os.write(descriptor, _PART)
                left -= 1
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        finally:
            os.close(descriptor)

    def make_room(self) -> None:
        """Remove what filled it."""
        with suppress(FileNotFoundError):
            (self.folder / _BALLAST).unlink()
