"""What a system must offer for faults to be injected into it: ids of processes, ports, and how its parts are started.

`python -m experiments.soak` has one such target, a deployment of this project on the loopback interface
(`experiments.soak.loopback_target`). Another system becomes one by a class of these methods: docs/soak.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from experiments.soak.forwarder import Forwarder
from experiments.soak.small_disk import SmallDisk
from experiments.soak.small_proxy import SmallProxy

SERVER, LINK = "server app", "SuperLink"
"""The parts of a target besides its nodes: who decides over rounds, and who passes messages."""


class Target(Protocol):
    """A system under test: a server, who passes messages, and nodes by name, each behind a forwarder of its own."""

    @property
    def nodes(self) -> Sequence[str]:
        """The names of the nodes."""

    @property
    def folder(self) -> Path:
        """A folder for the injectors' own files."""

    @property
    def disk(self) -> SmallDisk:
        """Where the server writes what it must not lose."""

    def processes(self, part: str) -> list[int]:
        """Return the ids of the running processes of a part: `SERVER`, `LINK` or a node."""

    def playing(self, node: str) -> list[int]:
        """Return the ids of a node's processes that play a message at this moment and end with it."""

    def lies(self, node: str) -> int:
        """Return how many answers that are not those asked for a node has given since it was last started with `lying`."""

    def way_of(self, node: str) -> Forwarder:
        """Return the forwarder through which a node reaches who passes messages."""

    def start(self, part: str, environment: Mapping[str, str] | None = None, *, lying: bool = False) -> None:
        """Start a part, as its operator would after it was killed or stopped, with further variables of the environment.

        With `lying` a node is started that answers with values that are not those asked for.
        """

    def stop(self, part: str) -> None:
        """End a part in order, as its operator would."""

    def lose_database(self) -> None:
        """Remove what `LINK` keeps, while it does not run, and do after its next start what its operator has to do then."""

    def refuse_replies(self, node: str) -> SmallProxy:
        """Put a proxy before `LINK` that refuses what a node sends for its size, and return it."""

    @property
    def link_port(self) -> int:
        """The port on which nodes reach `LINK`."""

    def released(self) -> int:
        """Return how many rounds have been released since the target began, over all runs."""

    def tend(self) -> None:
        """Do what the operator of the system does all the time; called several times a second."""
