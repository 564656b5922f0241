"""Who was heard in the epoch under way: immutable sets that a new value shares with the old one.

A value stays valid when the next one is made. As with the digits of a binary counter, a set is merged with those before it
that are no larger, so that n clients are copied at most log2(n) times each, and a lookup asks at most log2(n) sets.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fedmf.errors import ParticipationError


@dataclass(frozen=True, eq=False)
class Register:
    """The clients heard in the current epoch, in disjoint sets of decreasing size.

    >>> Register().spend(["a", "b"]).spend(["a"])
    Traceback (most recent call last):
    fedmf.errors.ParticipationError: client a would enter a second released sum of this epoch; one is allowed.
    """

    heard: tuple[frozenset[str], ...] = ()

    def spend(self, clients: Iterable[str]) -> "Register":
        """Return the register with `clients` spent too. Raises `ParticipationError` for a client seen twice."""
        added: set[str] = set()
        for client in clients:
            if client in added or any(client in earlier for earlier in self.heard):
                raise ParticipationError(
                    f"client {client} would enter a second released sum of this epoch; one is allowed."
                )
            added.add(client)
        larger = list(self.heard)
        while larger and len(larger[-1]) <= len(added):
            added |= larger.pop()
        return Register((*larger, frozenset(added)))

    @property
    def spent(self) -> frozenset[str]:
        """The clients spent in the current epoch."""
        return frozenset().union(*self.heard)

    def __eq__(self, other: object) -> bool:
        """Return whether the same clients are spent."""
        return isinstance(other, Register) and self.spent == other.spent

    __hash__ = None  # type: ignore[assignment]
