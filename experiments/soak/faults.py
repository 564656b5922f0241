"""The faults: what each does to a target's processes and ports, and how it is mended.

Nothing here knows what the system under test computes.
"""

import os
import random
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from experiments.soak.shifted_clock import environment
from experiments.soak.target import LINK, SERVER, Target

Act = Callable[[Target, str, random.Random], None]
"""Does something to a target; is given the node that was drawn, and what random numbers there are."""


@dataclass(frozen=True)
class Fault:
    """A fault: what is done, and after a while undone; `says` is what it is, for people. `of_node`: whether to one node."""

    says: str
    inject: Act
    mend: Act
    of_node: bool = True


def send(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes; those that have ended are left out."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def kill(target: Target, part: str) -> None:
    """Kill all processes of a part, also those that are started meanwhile."""
    while left := target.processes(part):
        send(left, signal.SIGKILL)


def _kill_node(target: Target, node: str, rng: random.Random) -> None:
    kill(target, node)


def _start_node(target: Target, node: str, rng: random.Random) -> None:
    target.start(node)


def _freeze_node(target: Target, node: str, rng: random.Random) -> None:
    send(target.processes(node), signal.SIGSTOP)


def _thaw_node(target: Target, node: str, rng: random.Random) -> None:
    send(target.processes(node), signal.SIGCONT)


def _cut(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).cut()


def _reset(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).reset()


def _slow(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).slow(delay=rng.uniform(0.2, 1.0), rate=rng.choice([2_000, 20_000, None]))


def _heal(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).heal()


def _lie(target: Target, node: str, rng: random.Random) -> None:
    target.stop(node)
    target.start(node, lying=True)


def _shift_clock(target: Target, node: str, rng: random.Random) -> None:
    target.stop(node)
    target.start(node, environment(target.folder / "clock", rng.choice([-3600.0, -400.0, 60.0, 3600.0])))


def _start_again(target: Target, node: str, rng: random.Random) -> None:
    target.stop(node)
    target.start(node)


def _kill_server(target: Target, node: str, rng: random.Random) -> None:
    kill(target, SERVER)


def _start_server(target: Target, node: str, rng: random.Random) -> None:
    target.start(SERVER)


def _kill_link(target: Target, node: str, rng: random.Random) -> None:
    kill(target, LINK)


def _start_link(target: Target, node: str, rng: random.Random) -> None:
    target.start(LINK)


def _lose_database(target: Target, node: str, rng: random.Random) -> None:
    kill(target, LINK)
    target.lose_database()


def _fill_disk(target: Target, node: str, rng: random.Random) -> None:
    target.disk.fill()


def _make_room(target: Target, node: str, rng: random.Random) -> None:
    target.disk.make_room()


def _refuse_replies(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).lead_to(target.refuse_replies(node))


def _pass_replies(target: Target, node: str, rng: random.Random) -> None:
    target.way_of(node).lead_to(target.link_port)


FAULTS = {
    "node_killed": Fault("a node's processes are killed, and started again", _kill_node, _start_node),
    "node_frozen": Fault("a node's processes are stopped (SIGSTOP), and go on", _freeze_node, _thaw_node),
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
