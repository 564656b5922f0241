"""Whether the app that a SuperLink hands out is the code that this machine has installed, file by file.

A process that has imported the code beforehand runs that, whatever bundle a run comes with. So it compares both, by the
SHA-256 of every file, and a version number that nobody raised hides nothing.
"""

import hashlib
import io
import os
import tomllib
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.settings.reference import CONF
from fedmf.errors import FedmfError

ROOT = CONF.parent
# The apps that are imported beforehand, as pyproject.toml names them.
APPS = {
    "clientapp": ("client app", "experiments.deployment.apps:client_app"),
    "serverapp": ("server app", "experiments.deployment.apps:server_app"),
}
NODE_WORK = "Install the same version here and on the server's machine; until then this node does no work for the run."
SERVER_WORK = (
    "Submit the app that is installed here, or install the same version first; the run was not started."
)
# What the bundle holds (fab-include in pyproject.toml) and decides what a client does; the licence does not.
_CODE = ("fedmf/**/*.py", "server/**/*.py", "client/**/*.py", "experiments/**/*.py")
_DATA = ("conf/**/*.yaml",)
_BESIDES = ("pyproject.toml", "LICENSE", ".info/")
_NAMED = 3  # files in a sentence

Files = Mapping[str, str]
"""The SHA-256 of each file by its path from the root, with slashes."""


class OtherCodeError(FedmfError):
    """A bundle is not the code that is installed here, or the installed code is not what was imported."""


def installed_files(root: Path = ROOT) -> dict[str, str]:
    """Return the files below `root` that a bundle of the same code has, each with its digest."""
    return {
        file.relative_to(root).as_posix(): _digest(file.read_bytes())
        for pattern in (*_CODE, *_DATA)
        for file in root.glob(pattern)
    }


def bundled_files(bundle: bytes, component: str = "clientapp") -> dict[str, str]:
    """Return the files of a bundle (FAB) that decide what an app does, each with its digest.

    Raises `OtherCodeError` for a bundle that cannot be read or names another app than ours as `component`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            files = {name: archive.read(name) for name in names if not name.startswith(_BESIDES)}
            project = tomllib.loads(archive.read("pyproject.toml").decode())
        app = project["tool"]["flwr"]["app"]["components"][component]
    except (KeyError, TypeError, ValueError, OSError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise OtherCodeError(f"the run's bundle cannot be read ({type(error).__name__}: {error}).") from error
    kind, ours = APPS[component]
    if app != ours:
        raise OtherCodeError(f"the run's bundle names the {kind} {app!r}; this machine runs {ours!r} only.")
    return {name: _digest(content) for name, content in files.items()}


def refuse_other_code(bundled: Files, installed: Files, advice: str = NODE_WORK) -> None:
    """Raise `OtherCodeError` where two sets of files differ, with the names of some that do and what to do."""
    if differing := _differing(bundled, installed):
        raise OtherCodeError(f"the run's code is not the code installed here: {_named(differing)}. {advice}")


def refuse_changed_code(now: Files, imported: Files) -> None:
    """Raise `OtherCodeError` where files have changed since they were imported: both would run, mixed."""
    if differing := _differing(now, imported):
        raise OtherCodeError(
            f"the code installed here has changed since it was imported: {_named(differing)}."
        )


def stamp_of(files: Iterable[str], root: Path = ROOT) -> tuple[tuple[int, ...] | None, ...]:
    """Return what changes when one of `files` does, much faster than their digests are made; None for one that is gone."""
    return tuple(_stamp(root / name) for name in files)


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        state = os.stat(file)
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _differing(these: Files, those: Files) -> list[str]:
    return sorted(name for name in {*these, *those} if these.get(name) != those.get(name))


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return f"{', '.join(listed[:_NAMED])}{more} {'differs' if len(listed) == 1 else 'differ'}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
