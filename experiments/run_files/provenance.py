"""provenance.json: with what, where and when each session of a run ran, and the wall time that it took.

A session is one call that began the run, resumed or extended it. Its entry is written when it begins and updated while
it runs, so that a killed session leaves all but its last seconds. A resume compares nothing of it. No name of a machine
or a user and no path is recorded: a run directory is shown to others.
"""

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fedmf
from experiments.run_files.directory import (
    PROVENANCE,
    PROVENANCE_KINDS,
    read_json_if_there,
    set_aside,
    write_json,
)
from fedmf import compiling
from fedmf.errors import RunDirectoryError

PACKAGES = ("torch", "flwr", "numpy", "cryptography")
IMAGE = "FEDMF_IMAGE"  # environment variable: the digest of the container image, unknown inside the container
ACCEPT_COPY, WITHOUT_UNREADY = "accept_copy", "unready_nodes=without"  # permissions that a statement names
_OURS = ("fedmf", "server", "client", "experiments", "conf")
_NOT_INSTALLED = ("experiments/benchmark/", "experiments/reproduce/")
_CODE = {".py", ".yaml"}
_CHECKOUT = Path(fedmf.__file__).resolve().parents[1]
_EVERY = 10.0  # seconds between two records


class Provenance:
    """The entry of a session in provenance.json, and those before it. Its clock starts when it is made.

    `allows` are the permissions of the session that a statement names; `bundle` is the digest of Flower's bundle.
    """

    def __init__(
        self,
        directory: Path,
        allows: Sequence[str] = (),
        accelerator: str | None = None,
        bundle: str | None = None,
    ) -> None:
        self._directory = directory
        self._begun = self._recorded = time.perf_counter()
        self._session: dict[str, Any] = {
            "started": _now(),
            "allows": list(allows),
            "software": software() | {"bundle": bundle},
            "machine": {  # its class
                "system": f"{platform.system()} on {platform.machine()}",
                "cores": len(os.sched_getaffinity(0)),
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "accelerator": accelerator,
            },
        }
        self._sessions = [self._session]

    def begin(self, first_round: int) -> None:
        """Read the earlier entries; this session runs rounds from `first_round` on."""
        file = self._directory / PROVENANCE
        self._session["first_round"] = first_round
        try:
            self._sessions = [*read_json_if_there(file, PROVENANCE_KINDS).get("sessions", []), self._session]
        except (OSError, RunDirectoryError) as error:  # which keeps no run from being resumed
            set_aside(file, error)

    def write(self) -> None:
        """Write the entry as it is now, after those of earlier sessions."""
        self._recorded = time.perf_counter()
        self._session |= {"until": _now(), "wall_seconds": self._recorded - self._begun}
        write_json(self._directory / PROVENANCE, {"sessions": self._sessions})

    def end(self) -> float:
        """Write the entry for the last time; return the wall seconds of all recorded sessions."""
        self.write()
        return sum(float(session.get("wall_seconds") or 0) for session in self._sessions)

    def allowed(self, what: str) -> bool:
        """Return whether any session of the run was started with this permission."""
        return any(what in (session.get("allows") or ()) for session in self._sessions)

    def code(self) -> list[dict[str, Any]]:
        """Return the code of each recorded session and its first round, as the statement names them."""
        first = min(int(session.get("first_round") or 1) for session in self._sessions)
        return ([{"first_round": 1, "code": None}] if first > 1 else []) + [
            {"first_round": session.get("first_round"), **(session.get("software") or {})}
            for session in self._sessions
        ]

    def on_release(self) -> None:
        """Bring the entry up to date, if it has not been for a while."""
        if time.perf_counter() - self._recorded >= _EVERY:
            self.write()


def software(checkout: Path = _CHECKOUT) -> dict[str, Any]:
    """Return versions, and the commit of the checkout that the code comes from or was built from, None where none is known.

    That of numba is None where none can be used, as then numpy computes, whatever is installed.
    """
    return {
        "fedmf": fedmf.__version__,
        "code": code_digest(checkout),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "numba": compiling.version(),
        **_commit(checkout),
        "image": os.environ.get(IMAGE) or None,
    }


def _commit(checkout: Path) -> dict[str, Any]:
    """Return the commit of the code, and whether something was changed since: of the checkout, or as setup.py noted it."""
    if (noted := checkout / "fedmf" / "commit.json").exists():
        return dict(json.loads(noted.read_bytes()))
    where = [f"--git-dir={checkout / '.git'}", f"--work-tree={checkout}"]  # that of no folder above it
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        described = subprocess.check_output(
            [
                "git",
                "--no-optional-locks",
                *where,
                "describe",
                "--always",
                "--dirty",
                "--exclude=*",
                "--abbrev=40",
            ],  # no tag, the whole name
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=10,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError):
        return {"git_commit": None, "git_modified": None}
    commit, _, dirty = described.strip().partition("-")
    return {"git_commit": commit, "git_modified": bool(dirty)}


def own_code() -> dict[str, str]:
    """Return what a checkpoint is bound to: other code continues a run only where its user allows it."""
    return {"fedmf": fedmf.__version__, "code": code_digest(_CHECKOUT)}


@cache
def code_digest(checkout: Path) -> str:
    """Return the SHA-256 of fedmf's own modules and settings, their names and contents, 16 hexadecimal digits of it.

    The same for a checkout, an installed package and Flower's bundle of one state of the code.
    """
    files = (file for package in _OURS for file in (checkout / package).rglob("*") if file.suffix in _CODE)
    named = ((file.relative_to(checkout).as_posix(), file) for file in files)
    return files_digest(pair for pair in named if not pair[0].startswith(_NOT_INSTALLED))


def files_digest(files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 of files, given with their names, 16 hexadecimal digits of it."""
    digest = hashlib.sha256()
    for name, file in sorted(files):
        data = file.read_bytes()
        digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
        digest.update(data)
    return digest.hexdigest()[:16]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
