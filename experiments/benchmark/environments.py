"""Virtual environments of other systems, made once below the cache folder and used again while their pins are the same.

FEDMF_CACHE/benchmark/pfl/           the environment
FEDMF_CACHE/benchmark/pfl/pins.json  what it holds, written last: without it the environment is broken
FEDMF_CACHE/benchmark/pfl.lock       held while it is made, so that two commands do not make it at once
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from fedmf.errors import SettingError
from fedmf.mechanisms.cache import directory

_MARK = "pins.json"
_WORTH_SAYING = ("Collecting ", "Downloading ", "Installing collected")
_ENDING = 5  # lines of a failed installation that are shown

Say = Callable[[str], None]


def torch_pin() -> str:
    """Return the torch that the other systems get: the version that ours runs on, so that training costs them the same.

    A suffix such as +cpu names a build and not a version; pip finds a build by its own settings.
    """
    return f"torch=={version('torch').partition('+')[0]}"


def pins() -> dict[str, tuple[str, ...]]:
    """Return {name of a system: what pip installs for it}."""
    return {
        "pfl": ("pfl[pytorch]==0.6.0", torch_pin()),
        "flower": (f"flwr[simulation]=={version('flwr')}", torch_pin()),
    }


def ready_python(name: str, pinned: Sequence[str], say: Say) -> Path:
    """Return the interpreter of an environment called `name` that holds `pinned`; it is made if it is not there.

    `say` is given a line now and then while it is made. Raises `SettingError` where pip cannot install; then nothing is
    left behind.
    """
    room = directory() / "benchmark"
    room.mkdir(parents=True, exist_ok=True)
    with _alone(room / f"{name}.lock"):
        home = room / name
        python = home / "bin" / "python"
        if _contents(home, python) != _wanted(pinned):
            shutil.rmtree(home, ignore_errors=True)
            say(f"{name}: making its environment in {home}, once; this takes minutes")
            try:
                _make(name, home, python, pinned, say)
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
        return python


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of another system: ours without what leads Python to our packages."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {key: value for key, value in os.environ.items() if key not in ours} | dict(extra)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other command makes the environment that `path` stands for."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _wanted(pinned: Sequence[str]) -> dict[str, object]:
    """Return what a finished environment says it holds."""
    return {"python": list(sys.version_info[:3]), "pins": list(pinned)}


def _contents(home: Path, python: Path) -> object:
    """Return what the environment says it holds, None where it is not finished or its interpreter has gone."""
    try:
        return json.loads((home / _MARK).read_text()) if python.exists() else None
    except (OSError, ValueError):
        return None


def _make(name: str, home: Path, python: Path, pinned: Sequence[str], say: Say) -> None:
    """Make the environment and install what is pinned, torch first: what needs any torch is then content with it."""
    _call(name, [sys.executable, "-m", "venv", str(home)], say)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    for wanted in ([pin for pin in pinned if pin.startswith("torch==")], list(pinned)):
        if wanted:
            _call(name, [*pip, *wanted], say)
    (home / _MARK).write_text(json.dumps(_wanted(pinned)))


def _call(name: str, command: Sequence[str], say: Say) -> None:
    """Run a step of the installation. Raises `SettingError` with the end of what it printed where it fails."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=clean_environment({}),
    ) as process:
        printed = []
        try:
            assert process.stdout is not None
            for line in process.stdout:
                printed.append(line.strip())
                if line.strip().startswith(_WORTH_SAYING):
                    say(f"{name}: {line.strip()}")
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        errors = [line for line in printed if line.startswith("ERROR")] or printed
        raise SettingError(
            f"compare is {name}, whose environment could not be made: `{' '.join(command[1:3])} ...` ended with code "
            f"{process.returncode} and said: {' '.join(errors[-_ENDING:])} Nothing is left of it; with a connection to a "
            f"package index, run the command again, or leave {name} out of compare."
        )
