"""The nodes that were agreed on: public key, name, and for how many clients each may count; and when an epoch may begin.

The operator of the server keeps them in a file (`experiments.settings.nodes`). Without one every node that
the SuperLink knows takes part, with as many clients as it says. A name is for people: record and roster call a node by its key.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

from fedmf.checks import check_at_least
from fedmf.errors import SettingError
from fedmf.sealing import public_box_key
from server.cohort import UnreadyNodes

_KEY_DIGITS = 32  # 128 bits of SHA-256: another key with the same ones cannot be found
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def node_key(public_key: bytes) -> str:
    """Return the short lasting name of a node: the first 128 bits of the SHA-256 of its public key, in hex."""
    return hashlib.sha256(public_key).hexdigest()[:_KEY_DIGITS]


def connected(grid: Any) -> dict[str, int]:
    """Return {key: node id} of the connected nodes that have a public key.

    Raises `SettingError` for a grid that does not give public keys.
    """
    get_nodes = getattr(grid, "get_nodes", None)
    if get_nodes is None:
        raise SettingError(f"{type(grid).__name__} does not give the nodes' public keys; use a SuperLink.")
    return {node_key(bytes(node.public_key)): node.node_id for node in get_nodes() if node.public_key}


@dataclass(frozen=True)
class KnownNode:
    """A node by its `name`, its `public_key` as ssh-keygen writes it, and the most clients that it counts for.

    `box_key` is the public key that its tasks are sealed for (`fedmf.sealing`), the base64 of 32 bytes; None: they are not.
    Raises `SettingError` for a name with other characters than letters, digits and `._-`, for what is no public key on an
    elliptic curve, for a number below 1, and for what is no box key.
    """

    name: str
    public_key: str
    most_clients: int
    box_key: str | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingError(
                f"name is {self.name!r}; it must be 1 to 63 letters, digits, dots, dashes or underscores, and begin with a "
                "letter or digit."
            )
        check_at_least("most_clients", self.most_clients, 1)
        object.__setattr__(self, "public_key", " ".join(self.public_key.split()[:2]))  # no comment
        assert self.key
        if self.box_key is not None:
            try:
                public_box_key(self.box_key)
            except ValueError as error:
                raise SettingError(
                    f"box_key of {self.name} is {self.box_key!r}; it must be the base64 of 32 bytes ({error})."
                ) from error

    @cached_property
    def key(self) -> str:
        """What record and roster call the node: `node_key` of what Flower gives as its public key."""
        try:
            loaded = load_ssh_public_key(self.public_key.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise SettingError(
                f"the public key of {self.name} cannot be read ({error}); it must be the line that ssh-keygen -t ecdsa "
                "writes into FILE.pub."
            ) from error
        if not isinstance(loaded, EllipticCurvePublicKey):
            raise SettingError(
                f"the public key of {self.name} is none on an elliptic curve; make the pair by ssh-keygen -t ecdsa -b 384."
            )
        return node_key(loaded.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


@dataclass(frozen=True)
class KnownNodes:
    """The nodes that may take part; `listed` None: all of them, each with any number of clients.

    Raises `SettingError` for two nodes of one name or one key.
    """

    listed: tuple[KnownNode, ...] | None = None

    def __post_init__(self) -> None:
        for what in ("name", "key"):
            seen: dict[str, KnownNode] = {}
            for node in self:
                if (other := seen.setdefault(getattr(node, what), node)) is not node:
                    raise SettingError(
                        f"the nodes {other.name} and {node.name} have the same {what}; each needs its own."
                    )

    @cached_property
    def by_key(self) -> dict[str, KnownNode]:
        """The listed nodes by their keys."""
        return {node.key: node for node in self}

    def __iter__(self) -> Iterator[KnownNode]:
        return iter(self.listed or ())

    def admit(self, key: str) -> bool:
        """Return whether the node with this key may take part."""
        return self.listed is None or key in self.by_key

    def called(self, key: str) -> str:
        """Return what people call the node with this key: its name, or the key itself for who is not listed."""
        return self.by_key[key].name if key in self.by_key else key


EVERY_NODE = KnownNodes()


@dataclass(frozen=True)
class Attendance:
    """When an epoch may begin: with `min_available` clients connected, waited for at most `timeout` seconds.

    A node counts for at most `max_clients_per_node` clients, and for no more than was agreed in `nodes`; it has
    `query_timeout` seconds to say how many it holds. A node that `nodes` does not admit is not asked.

    `unready` is what happens about a connected node that reports that it is not ready: the epoch waits for it, so that
    no release depends on what a node says of its data, or begins without it. Numbers are at least 1, timeouts above 0.
    """

    min_available: int
    max_clients_per_node: int = 10_000
    timeout: float = 600
    query_timeout: float = 120
    nodes: KnownNodes = EVERY_NODE
    unready: UnreadyNodes = UnreadyNodes.wait

    def most_clients(self, key: str) -> int:
        """Return for how many clients the node with this key counts at most."""
        most, known = self.max_clients_per_node, self.nodes.by_key.get(key)
        return most if known is None else min(most, known.most_clients)
