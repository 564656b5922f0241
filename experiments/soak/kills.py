"""Kills of a simulation at random instants, its resumes, and the comparison: `python -m experiments.soak kills=100`.

A reference run goes through undisturbed. Then the same run is started again and again as a process of its own
and killed with SIGKILL: at a random moment; just before or just after a file is forced to disk; or with the
file that was being written cut at a random byte, as a power failure would leave it. Every run that gets to
its end must equal the reference bit for bit: model, metrics (less seconds), summary.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from experiments.cli import command, output
from experiments.run_files.directory import METRICS, MODEL, SUMMARY
from experiments.session.session import simulate
from experiments.settings.compose import compose
from experiments.settings.experiment import build
from experiments.settings.schema import Settings
from fedmf.checks import check_at_least
from fedmf.errors import RunDirectoryError, RunStoppedError

KINDS = {
    "timer": "at a random moment",
    "before": "just before a forced write",
    "after": "just after a forced write",
    "torn": "with the file being written cut short",
}
_FORCED_WRITES = 40  # a kill at a write happens within this many of them
_LONGEST_LIFE = 3.0  # seconds until a kill by the clock


def soak(kills: int, seed: int, overrides: Sequence[str], directory: str | None) -> dict[str, Any]:
    """Run the kill test and return what it found. Raises `RunStoppedError` if a run does not end well."""
    check_at_least("kills", kills, 1)
    run = _composed(overrides)
    # A mistake is one sentence here instead of in a child; a GPU must not be begun with before the fork.
    build(replace(run, client=replace(run.client, device="cpu")))
    with ExitStack() as stack:
        folder = place(directory, stack)
        if _in_child(run, folder / "reference", None):
            raise RunStoppedError("the reference run did not end well; look at the lines above.")
        return kill_and_compare(run, folder, kills, random.Random(seed))


def kill_and_compare(run: Settings, folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Return what happened until `kills` kills were survived: counts by kind, runs finished, differences."""
    survived: Counter[str] = Counter()
    differences: list[str] = []
    finished = 0
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("kills", total=kills)
        while survived.total() < kills:
            directory = folder / f"run-{finished}"
            while True:
                kind = list(KINDS)[survived.total() % len(KINDS)] if survived.total() < kills else None
                status = _in_child(run, directory, None if kind is None else _Kill.draw(kind, rng))
                if status == 0:
                    break
                if status != -signal.SIGKILL or kind is None:
                    raise RunStoppedError(f"a resumed run in {directory} ended with status {status}.")
                survived[kind] += 1
                progress.update(task, completed=survived.total())
            differences += [f"{directory.name}: {name}" for name in compare(folder / "reference", directory)]
            finished += 1
    return {"kills": dict(survived), "runs": finished, "differences": differences}


def compare(reference: Path, directory: Path) -> list[str]:
    """Return the names of the files in which two runs differ, clocks left out."""
    return [
        name
        for name, read in ((MODEL, _model), (METRICS, _metrics), (SUMMARY, _summary))
        if read(reference / name) != read(directory / name)
    ]


@dataclass(frozen=True)
class _Kill:
    """How a child dies: by the clock after `seconds`, or at its `write`-th forced write."""

    kind: str
    seconds: float
    write: int
    share: float  # of the file that a torn write leaves

    @classmethod
    def draw(cls, kind: str, rng: random.Random) -> "_Kill":
        return cls(kind, rng.uniform(0, _LONGEST_LIFE), rng.randint(1, _FORCED_WRITES), rng.random())


def _in_child(run: Settings, directory: Path, kill: _Kill | None) -> int:
    """Run, or resume, in a process of its own that `kill` ends; returns its exit status, -9 when killed.

    The process is forked, so that it need not import everything anew.
    """
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = command.guard(lambda: _child(run, directory, kill))
        finally:
            os._exit(status)
    try:
        return _status(child, kill)
    except BaseException:  # Ctrl-C: the child goes with its parent
        os.kill(child, signal.SIGKILL)
        raise


def _status(child: int, kill: _Kill | None) -> int:
    """Return a child's exit status once it has ended, by itself or by the clock."""
    if kill is not None and kill.kind == "timer":
        deadline = time.monotonic() + kill.seconds
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _child(run: Settings, directory: Path, kill: _Kill | None) -> None:
    """Simulate with the descriptors of the terminal closed, and die as `kill` says."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    if kill is not None:
        os.dup2(nowhere, 2)
    if kill is not None and kill.kind != "timer":
        os.fsync = _deadly(os.fsync, kill)  # type: ignore[assignment]
    simulate(replace(run, run=replace(run.run, directory=str(directory), resume=True)), directory)


def _deadly(force: Callable[[int], None], kill: _Kill) -> Callable[[int], None]:
    """Return an fsync that ends the process at its `kill.write`-th call."""
    calls = 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == kill.write:
            if kill.kind == "torn" and os.fstat(descriptor).st_size:
                _tear(descriptor, kill.share)
            elif kill.kind == "after":
                force(descriptor)
            os.kill(os.getpid(), signal.SIGKILL)
        force(descriptor)

    return fsync


def _tear(descriptor: int, share: float) -> None:
    """Cut a file that is being written at a random byte of what was added last (all of it for a new file)."""
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if Path(path).is_dir():
        return
    size = os.fstat(descriptor).st_size
    is_appended = path.endswith(
        (".bin", METRICS)
    )  # a journal, a register or the metrics; a new file ends in .new
    start = _whole_records(Path(path)) if is_appended else 0
    os.truncate(path, start + int((size - start) * share))


def _whole_records(path: Path) -> int:
    """Return where the last record of an append-only file begins: what was forced to disk before is safe."""
    data = path.read_bytes()
    if path.name == METRICS:
        return data.rstrip(b"\n").rfind(b"\n") + 1
    if path.name.startswith("register-"):
        return data.rfind(b'{"begun"')
    return data.rfind(b' {"format"') - 8


def place(directory: str | None, stack: ExitStack) -> Path:
    """Return an empty folder for the runs."""
    if directory is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedmf-soak-")))
    folder = Path(directory).resolve()
    if folder.exists() and any(folder.iterdir()):
        raise RunDirectoryError(f"directory {folder} is not empty; name one that is, or leave the key out.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _composed(overrides: Sequence[str]) -> Settings:
    """Return the reproducible run that is killed."""
    return compose("config", ["run.reproducible=true", "output=json", *overrides], Settings)


def _model(path: Path) -> dict[str, bytes]:
    with np.load(path) as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


def _metrics(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _summary(path: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "wall_seconds"}


def print_table(outcome: dict[str, Any]) -> None:
    """Print what the kill test found, for people."""
    table = Table(title="Kill test", show_header=False)
    for kind, count in outcome["kills"].items():
        table.add_row(f"kills survived, {KINDS[kind]}", str(count))
    table.add_row("runs finished", str(outcome["runs"]))
    table.add_row("differences from the undisturbed run", str(len(outcome["differences"])))
    output.console().print(table)
