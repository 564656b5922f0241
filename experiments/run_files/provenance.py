"""provenance.json: with what, where and when each session of a run ran, and the wall time that it took.

A session is one call that began the run, resumed or extended it. Its entry is written when it begins and updated while
it runs, so that a killed session leaves all but its last seconds. A resume compares nothing of it. No name of a machine
or a user and no path is recorded: a run directory is shown to others.
"""

import hashlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fedmf
from experiments.run_files.directory import PRIVACY, PROVENANCE, RunDirectory, set_aside
from experiments.run_files.values import PROVENANCE as KINDS, read_json
from experiments.settings.log import messages
from fedmf import compiling
from fedmf.errors import RunDirectoryError
from server.state import Release, ServerState

PACKAGES = ("torch", "flwr", "numpy", "cryptography")
IMAGE = "FEDMF_IMAGE"  # environment variable: the digest of the container image, unknown inside the container
ACCEPT_COPY, WITHOUT_UNREADY = "accept_copy", "unready_nodes=without"  # permissions that a statement names
_OURS = ("fedmf", "server", "client", "experiments", "conf")
_CODE = {".py", ".yaml"}
_CHECKOUT = Path(fedmf.__file__).resolve().parents[1]
_EVERY = 10.0  # seconds between two records


class Provenance:
    """The entry of a session in provenance.json, and those before it. Its clock starts when it is made.

    `allows` are the permissions of the session that a statement names; `bundle` is the digest of Flower's bundle.
    """

    def __init__(
        self,
        directory: RunDirectory,
        allows: Sequence[str] = (),
        accelerator: str | None = None,
        bundle: str | None = None,
    ) -> None:
        self._directory = directory
        self._began, self._wall = datetime.now(UTC), time.perf_counter()
        self._fixed: dict[str, Any] = {
            "allows": list(allows),
            "software": software() | {"bundle": bundle},
            "machine": machine(accelerator),
        }
        self._earlier: list[Any] = []
        self._recorded = 0.0
        self._ended: dict[str, Any] | None = None

    def begin(self, first_round: int) -> None:
        """Read the earlier entries; this session runs rounds from `first_round` on. Warns of what differs from them."""
        self._earlier = _earlier_sessions(self._directory.path / PROVENANCE)
        self._fixed["first_round"] = first_round
        if first_round == 1:
            return
        if (first := _first_round(self._earlier)) > 1:
            messages.warning(
                f"{PROVENANCE} does not say with what rounds 1 to {min(first, first_round) - 1} were played; {PRIVACY} "
                "will say so."
            )
        now = self._fixed["software"]
        before: Mapping[str, Any] = next(
            (entry["software"] for entry in reversed(self._earlier) if entry.get("software")), {}
        )
        others = [
            f"{name} {before[name] or 'none'} before, {now[name] or 'none'} now"
            for name in ("python", *PACKAGES, "numba")
            if name in before and before[name] != now[name]
        ]
        if others:
            messages.warning(
                f"other libraries than before go on with this run: {'; '.join(others)}. What is computed may differ in its last "
                f"bits; masks, the law of the noise, the bounds and epsilon are the same. {PROVENANCE} and {PRIVACY} name both."
            )

    def _times(self) -> dict[str, Any]:
        return {
            "started": _text(self._began),
            "until": _text(datetime.now(UTC)),
            "wall_seconds": time.perf_counter() - self._wall,
        }

    def write(self) -> None:
        """Write the entry as it is now, after those of earlier sessions."""
        session = {**(self._ended or self._times()), **self._fixed}
        self._directory.write_json(PROVENANCE, {"sessions": [*self._earlier, session]})
        self._recorded = time.perf_counter()

    def end(self) -> float:
        """Stop the session's clock; return the wall seconds of all recorded sessions, which then agree with the record."""
        self._ended = self._times()
        return sum(float(session.get("wall_seconds") or 0) for session in (*self._earlier, self._ended))

    def allowed(self, what: str) -> bool:
        """Return whether any session of the run was started with this permission."""
        return any(what in (session.get("allows") or ()) for session in (*self._earlier, self._fixed))

    def code(self) -> list[dict[str, Any]]:
        """Return the code of each recorded session and its first round, as the statement names them."""
        sessions = [*self._earlier, self._fixed]
        unknown = [{"first_round": 1, "code": None}] if _first_round(sessions) > 1 else []
        named = [
            {"first_round": session.get("first_round"), **(session.get("software") or {})}
            for session in sessions
        ]
        return [*unknown, *named]

    def on_release(self, state: ServerState, release: Release) -> None:
        """Bring the entry up to date, if it has not been for a while."""
        if time.perf_counter() - self._recorded >= _EVERY:
            self.write()


def _first_round(sessions: list[Any]) -> float:
    """Return the first round of any of the sessions, infinity where there is none."""
    return min((int(session.get("first_round") or 1) for session in sessions), default=math.inf)


def _earlier_sessions(file: Path) -> list[Any]:
    """Return the entries of earlier sessions, none of a damaged file: it does not keep a run from being resumed."""
    try:
        return list(read_json(file, KINDS)["sessions"]) if file.exists() else []
    except (OSError, RunDirectoryError) as error:
        set_aside(file, error)
        return []


def software(checkout: Path = _CHECKOUT) -> dict[str, Any]:
    """Return versions, and the commit of the checkout that the code comes from or was built from, None where none is known.

    That of numba is None where none can be used, as then numpy computes, whatever is installed.
    """
    return {
        "fedmf": fedmf.__version__,
        "code": code_digest(checkout),
        "python": platform.python_version(),
        **{name: installed_version(name) for name in PACKAGES},
        "numba": compiling.version(),
        **_commit(checkout),
        "image": os.environ.get(IMAGE) or None,
    }


def _commit(checkout: Path) -> dict[str, Any]:
    """Return the commit of the code, and whether something was changed since: of the checkout, or as setup.py noted it."""
    if (noted := checkout / "fedmf" / "commit.json").exists():
        return dict(json.loads(noted.read_bytes()))
    if not (checkout / ".git").exists():
        return {"git_commit": None, "git_modified": None}
    commit = _git(checkout, "rev-parse", "HEAD")
    changes = commit and _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return {"git_commit": commit, "git_modified": None if changes is None else bool(changes)}


def own_code() -> dict[str, str]:
    """Return what a checkpoint is bound to: other code continues a run only where its user allows it."""
    return {"fedmf": fedmf.__version__, "code": code_digest(_CHECKOUT)}


@cache
def code_digest(checkout: Path) -> str:
    """Return the SHA-256 of fedmf's own modules and settings, their names and contents, 16 hexadecimal digits of it.

    The same for a checkout, an installed package and Flower's bundle of one state of the code.
    """
    files = (file for package in _OURS for file in (checkout / package).rglob("*") if file.suffix in _CODE)
    return files_digest((file.relative_to(checkout).as_posix(), file) for file in files)


def files_digest(files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 of files, given with their names, 16 hexadecimal digits of it."""
    digest = hashlib.sha256()
    for name, file in sorted(files):
        data = file.read_bytes()
        digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
        digest.update(data)
    return digest.hexdigest()[:16]


def machine(accelerator: str | None) -> dict[str, Any]:
    """Return the class of this machine; `accelerator` is the one that the run uses, None for none."""
    return {
        "system": f"{platform.system()} on {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerator": accelerator,
    }


def installed_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return what git prints about a checkout, None where there is no git or it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _text(moment: datetime) -> str:
    """Return a time in UTC as ISO 8601 writes it, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
