"""The faults: what each does to a target's processes and ports, and how it is mended.

Nothing here knows what the system under test computes.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from experiments.soak.shifted_clock import environment, was_asked
from experiments.soak.target import LINK, SERVER, Target

_BURST = 1.0  # seconds for which a moment that is short is looked for without a pause
_PAUSE = 0.005  # seconds between two looks meanwhile

Look = Callable[[], bool]
"""Says whether a fault has been seen to have an effect so far; one that must wait for its moment strikes when it is asked."""

Inject = Callable[[Target, str, random.Random], Look]
"""Does something to a target; is given the node that was drawn, and what random numbers there are."""

Mend = Callable[[Target, str, random.Random], None]
"""Undoes it, whether it had an effect or not."""


@dataclass(frozen=True)
class Fault:
    """A fault: what is done, and after a while undone; `says` is what it is, for people. `of_node`: whether to one node."""

    says: str
    inject: Inject
    mend: Mend
    of_node: bool = True


def send(processes: Iterable[int], number: signal.Signals) -> int:
    """Send a signal to processes, and return to how many; those that have ended are left out."""
    sent = 0
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
            sent += 1
    return sent


def kill(target: Target, part: str) -> int:
    """Kill all processes of a part, also those that are started meanwhile, and return how many there were."""
    killed = set[int]()
    while left := target.processes(part):
        send(left, signal.SIGKILL)
        killed |= {*left}
    return len(killed)


def is_stopped(process: int) -> bool:
    """Return whether a process is stopped by a signal; False for one that has ended."""
    return _state(process) == "T"


def _state(process: int) -> str:
    """Return the letter of a process's state, "" for none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _until_it_strikes(strike: Callable[[], int]) -> Look:
    """Strike now, and again whenever it is asked until there was something to strike; `strike` returns how much there was."""
    struck = strike()

    def look() -> bool:
        nonlocal struck
        struck = struck or strike()
        return struck > 0

    return look


def _kill_node(target: Target, node: str, rng: random.Random) -> Look:
    return _until_it_strikes(lambda: kill(target, node))


def _start_node(target: Target, node: str, rng: random.Random) -> None:
    target.start(node)


def _freeze_node(target: Target, node: str, rng: random.Random) -> Look:
    return _until_it_strikes(lambda: send(target.processes(node), signal.SIGSTOP))


def _thaw_node(target: Target, node: str, rng: random.Random) -> None:
    send(target.processes(node), signal.SIGCONT)


def _freeze_child(target: Target, node: str, rng: random.Random) -> Look:
    def strike() -> int:
        deadline = time.monotonic() + _BURST
        while time.monotonic() < deadline:
            struck = [process for process in target.playing(node) if send([process], signal.SIGSTOP)]
            if any(_has_stopped(process) for process in struck):
                return 1
            time.sleep(_PAUSE)
        return 0

    return _until_it_strikes(strike)


def _has_stopped(process: int) -> bool:
    """Return whether a process to which SIGSTOP was sent is stopped by it, and did not end before."""
    while (state := _state(process)) not in ("T", "Z", "X", ""):
        time.sleep(_PAUSE)
    return state == "T"


def _end_child(target: Target, node: str, rng: random.Random) -> None:
    """Let what is stopped go on, or end it; none is there where the node has ended it by itself."""
    stopped = [process for process in target.processes(node) if is_stopped(process)]
    send(stopped, rng.choice([signal.SIGCONT, signal.SIGKILL]))


def _cut(target: Target, node: str, rng: random.Random) -> Look:
    way = target.way_of(node)
    way.cut()
    return lambda: way.held > 0


def _reset(target: Target, node: str, rng: random.Random) -> Look:
    return _until_it_strikes(target.way_of(node).reset)


def _slow(target: Target, node: str, rng: random.Random) -> Look:
    way = target.way_of(node)
    way.slow(delay=rng.uniform(0.2, 1.0), rate=rng.choice([2_000, 20_000, None]))
    return lambda: way.held > 0


def _heal(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).heal()


def _lie(target: Target, node: str, rng: random.Random) -> Look:
    target.stop(node)
    target.start(node, lying=True)
    return lambda: target.lies(node) > 1  # the one before the last has left the node


def _shift_clock(target: Target, node: str, rng: random.Random) -> Look:
    target.stop(node)
    way, folder = target.way_of(node), target.folder / "clock"
    before = way.opened
    target.start(node, environment(folder, rng.choice([-3600.0, -400.0, 60.0, 3600.0])))
    return lambda: was_asked(folder) and way.opened > before


def _start_again(target: Target, node: str, rng: random.Random) -> None:
    target.stop(node)
    target.start(node)


def _kill_server(target: Target, node: str, rng: random.Random) -> Look:
    return _until_it_strikes(lambda: kill(target, SERVER))


def _start_server(target: Target, node: str, rng: random.Random) -> None:
    target.start(SERVER)


def _kill_link(target: Target, node: str, rng: random.Random) -> Look:
    return _until_it_strikes(lambda: kill(target, LINK))


def _start_link(target: Target, node: str, rng: random.Random) -> None:
    target.start(LINK)


def _lose_database(target: Target, node: str, rng: random.Random) -> Look:
    look = _kill_link(target, node, rng)
    target.lose_database()
    return look


def _fill_disk(target: Target, node: str, rng: random.Random) -> Look:
    target.disk.fill()

    def look() -> bool:
        target.disk.fill()  # also what the server has freed meanwhile
        return not target.processes(SERVER)  # which ends when it cannot write, as no other fault makes it now

    return look


def _make_room(target: Target, node: str, rng: random.Random) -> None:
    target.disk.make_room()


def _refuse_replies(target: Target, node: str, rng: random.Random) -> Look:
    proxy = target.refuse_replies(node)
    target.way_of(node).lead_to(proxy.port)
    return lambda: proxy.refused > 0


def _pass_replies(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).lead_to(target.link_port)


FAULTS = {
    "node_killed": Fault("a node's processes are killed, and started again", _kill_node, _start_node),
    "node_frozen": Fault("a node's processes are stopped (SIGSTOP), and go on", _freeze_node, _thaw_node),
    "child_frozen": Fault(
        "a process of a node is stopped (SIGSTOP) while it plays a message, and goes on or is ended",
        _freeze_child,
        _end_child,
    ),
    "node_cut_off": Fault("nothing passes between a node and the SuperLink", _cut, _heal),
    "node_reset": Fault("a node's connections are broken", _reset, _heal),
    "node_slow": Fault("what a node sends and gets is late and slow", _slow, _heal),
    "node_lies": Fault("a node answers with what was not asked for, in five ways", _lie, _start_again),
    "clock_off": Fault("a node's clock is off, by a minute to an hour", _shift_clock, _start_again),
    "replies_refused": Fault(
        "a proxy refuses a node's replies for their size (413)", _refuse_replies, _pass_replies
    ),
    "server_killed": Fault("the server app is killed", _kill_server, _start_server, of_node=False),
    "superlink_killed": Fault("SuperLink and server app are killed", _kill_link, _start_link, of_node=False),
    "database_lost": Fault(
        "and the SuperLink's database is gone", _lose_database, _start_link, of_node=False
    ),
    "disk_full": Fault("the disk of the run directory is full", _fill_disk, _make_room, of_node=False),
}
NEEDS_SMALL_DISK = "disk_full"
