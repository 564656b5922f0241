"""Processes that are killed at random instants: no round is lost that was shown, none is released twice, no noise row is used twice.

A process restores the checkpoint, continues, and shows each release once `commit` has returned, on a pipe that outlives it.
It is ended as by SIGKILL after a random time, longer on average after one that released nothing, and the next one continues.
The witness has the pipe, and computes each release again from the clients' vectors and a noise stream that nothing interrupts.
`python -m chaos.rounds KILLS SEED` prints what it found.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from plans import KEY, SETTINGS, SGD, begun, kept_releases, random_vector, small_plan
from server.checkpoint import Checkpoint
from server.record import Record
from server.state import apply_release, begin_epoch, first_state, make_release

PLAN = small_plan(dimension=40, clients=180, rounds_per_epoch=60, epochs=10)
MEAN, LONGER = 0.06, 1.1  # seconds that a process lives; factor after one that released nothing


def live(folder, pipe, seconds, seed):
    """Release rounds of the run in `folder` until this process is ended after `seconds`, or the run is over."""

    def tell(line):
        os.write(pipe, json.dumps(line).encode() + b"\n")  # short lines of a pipe are whole

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process, as by SIGKILL
    signal.setitimer(signal.ITIMER_REAL, seconds)
    checkpoint = Checkpoint(folder, SETTINGS, PLAN.factorization.epochs, 7)
    checkpoint.refuse_copy()
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
            live(folder, write, seconds, seed)
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


if __name__ == "__main__":
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=".") as place:
        os.environ["FEDMF_STATE"] = f"{place}/state"
        (lost, twice, other), released = kill(Path(place), int(sys.argv[1]), int(sys.argv[2]))
    found = f"{len(lost)} lost, {len(twice)} twice, {len(other)} with another noise row"
    print(f"{sys.argv[1]} kills, {released} rounds released, {found}, {time.monotonic() - began:.0f} seconds")
    if 10 * released < int(sys.argv[1]):
        sys.exit("the kills show nothing: fewer rounds were released than a tenth of them.")
