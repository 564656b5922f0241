"""Simulations that die at random instants, and what each life leaves: `python -m chaos.kills DIRECTORY KILLS SEED OVERRIDE...`.

Every life is a fork of this process, which has one thread and has imported everything. It ends by SIGKILL: after a random
time; just before or just after a file or a transaction is forced to disk; or with all that was written and not forced cut at a
random byte, as a power failure would leave it. Or the disk is full from some such instant on, and the life ends by itself. Runs are resumed until
`KILLS` lives have ended so, and then until the last run is done. A life is a line of JSON on stdout.
"""

import errno
import itertools
import json
import os
import random
import signal
import sqlite3
import stat
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from chaos.witness import last_on_disk
from experiments.cli.command import guard
from experiments.session.session import simulate
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
from server import record
from server.checkpoint import Checkpoint

FAULTS = ("timer", "before", "after", "torn", "full")
_FORCED_WRITES = 60  # some 20 precede a resumed round; a kill at a write is at one of the first so many
_LONGEST = 3.0  # seconds until a kill by the clock


def main(folder, kills, seed, *overrides):
    """Live and die in runs below `folder`: the run called 0 is disturbed by nothing."""
    rng, number, ended = random.Random(int(seed)), 0, 0
    settings = compose("config", ["run.reproducible=true", "output=json", *overrides], Settings)
    while ended < int(kills) or number == 0:
        directory, status = Path(folder) / str(number), None
        while status != 0:
            kind = FAULTS[ended % len(FAULTS)] if number and ended < int(kills) else "none"
            fault = SimpleNamespace(kind=kind, seconds=rng.uniform(0, _LONGEST), share=rng.random())
            fault.write, before = rng.randint(1, _FORCED_WRITES), last_on_disk(directory)
            process, status = live(settings, directory, fault)
            life = {"run": number, "process": process, "fault": kind, "status": status}
            print(json.dumps({**life, "before": before, "after": last_on_disk(directory)}), flush=True)
            if status not in (0, -signal.SIGKILL, -signal.SIGALRM) and (kind, status) != ("full", 1):
                sys.exit(f"a life of {directory} ended with {status}")
            ended += status != 0
        number += 1


def live(settings, directory, fault):
    """Run or resume the run in `directory` in a process of its own; return its id and exit status.

    It ends after `fault.seconds`, or at its forced write number `fault.write`; `fault.share` is what is left of what is cut.
    """
    if child := os.fork():
        return child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
        os.dup2(os.open(f"{directory}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        os.dup2(1, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends a process as SIGKILL does
        if fault.kind == "timer":
            signal.setitimer(signal.ITIMER_REAL, fault.seconds)
        elif fault.kind != "none":
            os.fsync, record.commit = deadly(fault, directory)
        Checkpoint.commit = noting(Checkpoint.commit, f"{directory}.commits")
        resumed = replace(settings.run, directory=str(directory), resume=True)
        status = guard(lambda: simulate(replace(settings, run=resumed), directory))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def noting(commit, file):
    """Return `commit`, which adds a line to `file` before a release is on disk, and one afterwards."""
    notes = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def noted(self, release):
        noisy = release.noisy_sum.tobytes().hex()
        about = {"answered": release.answered, "sum": noisy, "process": os.getpid()}
        os.write(notes, json.dumps({"round": release.round, **about}).encode() + b"\n")
        commit(self, release)
        os.write(notes, json.dumps({"done": release.round, **about}).encode() + b"\n")

    return noted


def deadly(fault, directory):
    """Return an fsync and a commit that end the life, or find no room, from their call number `fault.write` on."""
    calls, force, real_commit = itertools.count(1), os.fsync, record.commit
    log = directory / "checkpoint" / f"{record.FILE}-wal"
    # How much of each file is on disk, by its inode: what was there before, and what was forced since.
    safe = {file.st_ino: file.st_size for file in sizes(directory).values()}

    def fsync(descriptor):
        call, file = next(calls), os.fstat(descriptor)
        if call < fault.write or fault.kind == "after":
            force(descriptor)
            safe[file.st_ino] = file.st_size
        if call >= fault.write:
            if fault.kind == "full":
                cut(f"/proc/self/fd/{descriptor}", safe, fault.share)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            end()

    def commit(connection):
        call, before = next(calls), log.stat().st_size if log.exists() else 0
        if call >= fault.write and fault.kind == "full":
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        if call < fault.write or fault.kind in ("after", "torn"):
            real_commit(connection)
        if call >= fault.write:
            if fault.kind == "torn":
                cut(log, {log.stat().st_ino: before}, fault.share)
            end()

    def end():
        for path in sizes(directory) if fault.kind == "torn" else ():
            if not path.name.startswith(record.FILE):  # SQLite has forced these
                cut(path, safe, fault.share)
        os.kill(os.getpid(), signal.SIGKILL)

    return fsync, commit


def sizes(directory):
    """Return how much there is of each file of a run, by its path."""
    return {path: path.stat() for path in directory.rglob("*") if path.is_file()}


def cut(path, safe, share):
    """Leave of a file what is safe, and a share of the rest; a folder stays as it is."""
    file = os.stat(path)
    if stat.S_ISREG(file.st_mode) and (added := file.st_size - safe.get(file.st_ino, 0)) > 0:
        os.truncate(path, file.st_size - added + int(added * share))


if __name__ == "__main__":
    main(*sys.argv[1:])
