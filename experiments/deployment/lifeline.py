"""Processes that end with the one that started them, however that one ends, and what a start tells them.

A started process reads its settings as one line of JSON from its standard input, which no list of processes shows. The
other end of that pipe stays open for as long as the starter lives: the kernel closes it even after a SIGKILL. On
Linux the kernel is asked for a signal too, which also ends a process that is busy.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]  # what holds this package
PACKAGES = ("experiments", "server", "client", "fedmf")
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_INPUT = 0  # the standard input


def start_module(
    module: str, settings: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE` in a process group of its own and tell it `settings`.

    To be called by the main thread: Linux takes the end of the thread that started a process for that of the process.
    It finds the packages that this process finds, and no folder of the current directory first. `environment` is put
    over this process's own.
    """
    search = {"PYTHONPATH": os.pathsep.join(search_path(sys.path)), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        env={**os.environ, **(environment or {}), **search},
        stdin=subprocess.PIPE,
        stdout=2,  # stdout is for data
        process_group=0,  # Ctrl-C is for the starter, which then ends all
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, as its starter will see
        process.stdin.write(json.dumps({**settings, "starter": os.getpid()}).encode() + b"\n")
        process.stdin.flush()
    return process


def search_path(entries: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return where a started process looks for packages: `entries`, made absolute, in which nothing hides our own.

    `root` is the folder that this process has our packages from. What holds others of their names comes behind it: the
    current directory stands first where this process was started by `python -c` or `-m`.
    """
    path = list(dict.fromkeys(map(os.path.abspath, entries)))
    hiding = [entry for entry in path if entry != str(root) and _holds_ours(Path(entry))]
    if str(root) not in path:  # an editable installation finds them beside the path
        path.append(str(root))
    kept = [entry for entry in path if entry not in hiding]
    place = kept.index(str(root)) + 1
    return [*kept[:place], *hiding, *kept[place:]]


def _holds_ours(folder: Path) -> bool:
    """Whether a folder holds a package or module that is called as one of ours."""
    return any((folder / name).is_dir() or (folder / f"{name}.py").is_file() for name in PACKAGES)


def told(signal_number: int) -> dict[str, Any]:
    """Return what the starter of this process tells it; from now on its end brings `signal_number`, 0 for none."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(_INPUT, 1)  # no more than the line: what follows is the end of the starter
        if not part:
            sys.exit("the process that started this one has ended.")
        line += part
    settings: dict[str, Any] = json.loads(line)
    end_with_parent(settings.pop("starter"), signal_number)
    return settings


def end_with_parent(parent: int, signal_number: int) -> None:
    """Let the kernel send `signal_number` to this process when `parent` ends, and at once if it has (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PARENT_DEATH_SIGNAL, int(signal_number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal_number)


def is_cut() -> bool:
    """Return whether the starter of this process has ended, or closed its end of the pipe."""
    readable, _, _ = select.select([_INPUT], [], [], 0)
    return bool(readable) and not os.read(_INPUT, 1)


def wait_for_starter() -> None:
    """Return when the starter of this process has ended, or closed its end of the pipe."""
    while os.read(_INPUT, 1):
        pass


def watch(grace: float) -> None:
    """Send SIGTERM to this process, from a thread, when its starter ends, and SIGKILL `grace` seconds later."""

    def wait() -> None:
        wait_for_starter()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP pass while processes are being ended."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def code_of(end: SystemExit) -> int:
    """Return the exit code of a process that `end` ends.

    >>> [code_of(SystemExit(given)) for given in (3, None, "a sentence")]
    [3, 0, 1]
    """
    return end.code if isinstance(end.code, int) else int(end.code is not None)
