"""With what and where a run was made: versions, the commit of the code, and the class of the machine.

No name of a machine or a user and no path is recorded: a run directory is shown to others.
"""

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import fedmf
from fedmf import compiling

PACKAGES = ("torch", "flwr", "numpy", "cryptography")
IMAGE = (
    "FEDMF_IMAGE"  # environment variable: the digest of the container image, which nobody in it can find out
)
_OURS = ("fedmf", "server", "client", "experiments", "conf")
_CODE = {".py", ".yaml"}
_CHECKOUT = Path(fedmf.__file__).resolve().parents[1]
_PROCESSORS, _MEMORY_LIMIT = Path("/proc/cpuinfo"), Path("/sys/fs/cgroup/memory.max")


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
    """Return what a checkpoint is bound to: other code goes on with a run only where its user allows it."""
    return {"fedmf": fedmf.__version__, "code": code_digest(_CHECKOUT)}


@cache
def code_digest(checkout: Path) -> str:
    """Return the SHA-256 of fedmf's own modules and settings, their names and contents, 16 hexadecimal digits of it.

    The same for a checkout, an installed package and Flower's bundle of one state of the code.
    """
    digest = hashlib.sha256()
    files = (file for package in _OURS for file in (checkout / package).rglob("*") if file.suffix in _CODE)
    for name, file in sorted((file.relative_to(checkout).as_posix(), file) for file in files):
        data = file.read_bytes()
        digest.update(b"%s\0%d\0" % (name.encode(), len(data)))
        digest.update(data)
    return digest.hexdigest()[:16]


def machine(accelerator: str | None) -> dict[str, Any]:
    """Return the class of this machine; `accelerator` is the one that the run uses, None for none."""
    return {
        "system": f"{platform.system()} on {platform.machine()}",
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": _memory(),
        "accelerator": accelerator,
    }


def installed_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return what git says of a checkout, None where there is no git or it will not say."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def processor() -> str:
    """Return the model of the processor, its architecture where the system does not say more."""
    try:
        lines = _PROCESSORS.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine()


def _memory() -> int | None:
    """Return the bytes of memory that this process could use: those of the machine, or fewer where its group is limited."""
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    try:
        limit = int(_MEMORY_LIMIT.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return whole
    return min(whole, limit)
