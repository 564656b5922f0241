"""The files of this folder: every package that an installation needs, by version and hash; `make hashes` writes them.

Versions are those of constraints.txt. Which of them are needed follows from pyproject.toml and from what the packages say
that they need, with the conditions of each Python. A hash is that of the one file that pip would choose on a Linux x86_64 machine
with glibc 2.28 or newer. torch is left out: you choose its build (CPU or CUDA) and take its hash from the publisher.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("fast", "data", "safetensors", "metrics")
CHOSEN_BY_HAND = "torch"
_PATCH = 9  # of each Python: packages name the first patch releases as too old
_PLATFORMS = (
    *("manylinux_2_28", "manylinux_2_27", "manylinux_2_24", "manylinux_2_17", "manylinux2014", "manylinux_2_12"),
    *("manylinux2010", "manylinux_2_5", "manylinux1", "linux"),
)  # fmt: skip
_HEAD = """\
# Linux x86_64, Python {python}, glibc 2.28 or newer, extras {extras}; written by `make hashes`, see docs/deployment.md.
# Each hash is of the one file that pip chose in the registry on the day of writing. torch is not in this file.
"""


def main() -> None:
    """Write the file of every Python."""
    for python in PYTHONS:
        report = asked(pins(), python)
        needed = closure({name: needs for name, (_, needs) in report.items()}, python)
        lines = [f"{name}=={pins()[name]} --hash=sha256:{report[name][0]}\n" for name in sorted(needed)]
        head = _HEAD.format(python=python, extras=", ".join(EXTRAS))
        path(python).write_text(head + "".join(lines))
        print(f"{path(python).relative_to(ROOT)}: {len(lines)} packages", file=sys.stderr)


def path(python: str) -> Path:
    """Return the file of a Python."""
    return FOLDER / f"linux-x86_64-py{python}.txt"


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt by name, without torch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {
        canonicalize_name(name): version
        for name, version in pairs
        if canonicalize_name(name) != CHOSEN_BY_HAND
    }


def asked(versions: Mapping[str, str], python: str) -> dict[str, tuple[str, list[str]]]:
    """Return the hash of each package's file for `python` and what it needs, as pip finds them; nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder) / "wanted.txt", Path(folder) / "report.json"
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        tags = [word for name in _PLATFORMS for word in ("--platform", f"{name}_x86_64")]
        tags += [word for abi in (f"cp{python.replace('.', '')}", "abi3", "none") for word in ("--abi", abi)]
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
        ]
        command += ["--target", folder, "--report", str(report), "--requirement", str(wanted)]
        command += ["--implementation", "cp", "--python-version", f"{python}.{_PATCH}", *tags]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text())["install"]
    answer = {}
    for item in found:
        name, source = canonicalize_name(item["metadata"]["name"]), item["download_info"]
        if source["url"].startswith("file:"):
            sys.exit(f"{name} was found on this machine; its hash must be that of the registry's file.")
        answer[name] = (source["archive_info"]["hashes"]["sha256"], item["metadata"].get("requires_dist", []))
    return answer


def closure(needs: Mapping[str, Sequence[str]], python: str) -> set[str]:
    """Return the packages that pyproject.toml needs on `python`, directly or through others, without torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(text for name in EXTRAS for text in project["optional-dependencies"][name]),
    ]
    found: set[tuple[str, str]] = set()
    waiting = list(_met(wanted, python, ""))
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found:
            continue
        found.add((name, extra))
        own = requires(CHOSEN_BY_HAND) or [] if name == CHOSEN_BY_HAND else needs[name]
        waiting += _met(own, python, extra)
    return {name for name, _ in found} - {CHOSEN_BY_HAND}


def _met(texts: Sequence[str], python: str, extra: str) -> Iterator[tuple[str, str]]:
    """Yield the name and each extra ("" for none) of the requirements that hold on `python` with `extra`."""
    machine = {
        "python_version": python,
        "python_full_version": f"{python}.{_PATCH}",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": extra,
    }
    for text in texts:
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate(machine):
            yield from ((canonicalize_name(needed.name), name) for name in ("", *sorted(needed.extras)))


def read(python: str) -> dict[str, tuple[str, str]]:
    """Return version and hash by name, as the file of `python` holds them."""
    found = re.findall(r"(?m)^([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$", path(python).read_text())
    return {name: (version, digest) for name, version, digest in found}


if __name__ == "__main__":
    main()
