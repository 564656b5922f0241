"""Processes that are killed at random instants, and what each life leaves.

`python -m kills runs DIRECTORY KILLS SEED OVERRIDE...`: simulations. Every life is a fork of this process, which has one thread and
has imported everything. It ends by SIGKILL: after a random time; just before or just after a file or a transaction is forced to
disk; or with all that was written and not forced cut at a random byte, as a power failure would leave it. Or the disk is full from
some such instant on, and the life ends by itself. Runs are resumed until `KILLS` lives have ended so, and then until the last run is
done. A life is a line of JSON on stdout.

`FEDMF_STATE=$(mktemp -d) python -m kills rounds KILLS SEED`: rounds alone. No round is lost that was shown, none is released twice, no noise row is used
twice. A process restores the checkpoint, continues, and shows each release once `commit` has returned, on a pipe that outlives it.
It is ended as by SIGKILL after a random time, longer on average after one that released nothing, and the next one continues. The
witness has the pipe, and computes each release again from the clients' vectors and a noise stream that nothing interrupts.
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
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from experiments.cli.command import guard
from experiments.session.session import simulate
from experiments.settings.compose import compose
from experiments.settings.schema import Settings
from plans import KEY, SETTINGS, SGD, begun, kept_releases, random_vector, small_plan
from server import record
from server.checkpoint import Checkpoint
from server.record import Record
from server.state import apply_release, begin_epoch, first_state, make_release
from witness import last_on_disk

FAULTS = ("timer", "before", "after", "torn", "full")
_FORCED_WRITES = 60  # some 20 precede a resumed round; a kill at a write is at one of the first so many
_LONGEST = 3.0  # seconds until a kill by the clock
PLAN = small_plan(dimension=40, clients=180, rounds_per_epoch=60, epochs=10)
MEAN, LONGER = 0.06, 1.1  # seconds that a process lives; factor after one that released nothing


def runs(folder, kills, seed, *overrides):
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


def release_until(folder, pipe, seconds, seed):
    """Release rounds of the run in `folder` until this process is ended after `seconds`, or the run is over."""

    def tell(line):
        os.write(pipe, json.dumps(line).encode() + b"\n")  # short lines of a pipe are whole

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process, as by SIGKILL
    signal.setitimer(signal.ITIMER_REAL, seconds)
    checkpoint = Checkpoint(folder, SETTINGS, PLAN.factorization.epochs, 7)
    checkpoint.check_not_a_copy()
    state, _ = checkpoint.restore(PLAN, SGD)
    checkpoint.rebase(state)
    while state.secrets is not None:
        state = begin_epoch(PLAN, state)
        release, secrets = made(state, seed)
        tell({"tried": release.round, "seed": seed})
        state = apply_release(PLAN, SGD, state, release, secrets)
        checkpoint.commit(release)
        tell({"shown": release.round, "sum": release.noisy_sum.tobytes().hex()})
        checkpoint.settle(PLAN, state)
    checkpoint.forget_secrets()
    checkpoint.close()


def made(state, seed):
    """Return the next release and the secrets after it; what clients send is another thing in each life."""
    names = [f"{3 * state.position(PLAN)[1] + place}" for place in range(3)]
    return make_release(PLAN, state, random_vector(PLAN.rotation.padded, 1.0, seed + state.round), names)


def life(folder, seconds, seed):
    """Return how a process ended that lived so long, and what it told."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        status = 70
        try:
            release_until(folder, write, seconds, seed)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        told = [json.loads(line) for line in pipe.read().splitlines()]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def examine(folder, told):
    """Return which rounds of a run were lost, were released twice, or have another noise row than their own.

    `told` is what all lives told, in order. The last attempt at a round is the one that may be on record.
    """
    record, sums, seeds, twice, other = Record(folder), {}, {}, set(), set()
    record.check()
    for line in told:
        number = line.get("tried", line.get("shown"))
        if number in sums:
            twice.add(number)
        elif "shown" in line:
            sums[number] = line["sum"]
        else:
            seeds[number] = line["seed"]
    sums |= {release.round: release.noisy_sum.tobytes().hex() for release in kept_releases(record)}
    state = first_state(PLAN, np.zeros(PLAN.dimension, "f4"), KEY)
    for number in range(1, record.released() + 1):
        state = begin_epoch(PLAN, state)
        release, secrets = made(state, seeds[number])
        if sums.get(number, "") not in ("", release.noisy_sum.tobytes().hex()):
            other.add(number)
        state = apply_release(PLAN, SGD, state, release, secrets)
    return {number for number in sums if number > record.released()}, twice, other


def kill(folder, kills, seed):
    """Kill processes until `kills` have ended so, in as many runs as it takes; return what is wrong, and how many rounds were released."""
    choose, mean, ended, rounds, wrong = random.Random(seed), MEAN, 0, 0, [set(), set(), set()]
    while ended < kills:
        run = Path(tempfile.mkdtemp(dir=folder)) / "checkpoint"
        checkpoint, state = begun(PLAN, run)
        checkpoint.close()
        made(begin_epoch(PLAN, state), 0)  # with what it imports and compiles, so that no life does
        told, status = [], None
        while status != 0 and ended < kills:
            status, more = life(run, choose.expovariate(1 / mean) + 1e-6, 1000 * ended)
            assert status in (0, -signal.SIGALRM), status
            mean = max(MEAN, mean / LONGER) if more else mean * LONGER
            told += more
            ended += status != 0
        for found, new in zip(wrong, examine(run, told), strict=True):
            found |= {(str(run), number) for number in new}
        rounds += Record(run).released()
    return wrong, rounds


def rounds(kills, seed):
    """Print what `kill` finds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=".") as place:
        (lost, twice, other), released = kill(Path(place), int(kills), int(seed))
    found = f"{len(lost)} lost, {len(twice)} twice, {len(other)} with another noise row"
    print(f"{kills} kills, {released} rounds released, {found}, {time.monotonic() - began:.0f} seconds")
    if 10 * released < int(kills):
        sys.exit("the kills show nothing: fewer rounds were released than a tenth of them.")


if __name__ == "__main__":
    {"runs": runs, "rounds": rounds}[sys.argv[1]](*sys.argv[2:])
