"""An immutable mapping of which a changed copy costs what was changed, not what is in it.

It is cut into `SHARDS` dicts by a digest of the key. A copy shares all of them but those with a changed entry, so that
the old value stays valid and two values of one history are told apart by the shards that they do not share.
"""

import zlib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")
Key = tuple[str, int]

SHARDS = 4096


class Sharded(Generic[V]):
    """An immutable mapping from (text, number) to `V`; entries are added and replaced, never removed.

    >>> few = Sharded().updated({("a", 1): "x"})
    >>> more = few.updated({("a", 2): "y"})
    >>> few.get(("a", 2), None), more.get(("a", 2), None), dict(more.changed_since(few))
    (None, 'y', {('a', 2): 'y'})
    """

    __slots__ = ("_shards",)

    def __init__(self) -> None:
        self._shards: dict[int, dict[Key, V]] = {}

    def get(self, key: Key, otherwise: V) -> V:
        """Return the value of `key`, `otherwise` where there is none."""
        shard = self._shards.get(_shard(key))
        return otherwise if shard is None else shard.get(key, otherwise)

    def updated(self, changes: Mapping[Key, V]) -> "Sharded[V]":
        """Return the mapping with `changes` in it."""
        result: Sharded[V] = Sharded()
        result._shards = dict(self._shards)
        copied: set[int] = set()
        for key, value in changes.items():
            number = _shard(key)
            if number not in copied:
                copied.add(number)
                result._shards[number] = dict(self._shards.get(number, ()))
            result._shards[number][key] = value
        return result

    def items(self) -> Iterator[tuple[Key, V]]:
        """Yield all entries, in no order that means anything."""
        for shard in self._shards.values():
            yield from shard.items()

    def changed_since(self, earlier: "Sharded[V]") -> Iterator[tuple[Key, V]]:
        """Yield the entries that `earlier` has not, or with another value; shards that both share are not looked at."""
        for number, shard in self._shards.items():
            before = earlier._shards.get(number, {})
            if shard is before:
                continue
            for key, value in shard.items():
                if key not in before or before[key] != value:
                    yield key, value

    def __eq__(self, other: object) -> bool:
        """Say whether both have the same entries."""
        return isinstance(other, Sharded) and self._shards == other._shards


def _shard(key: Key) -> int:
    """Return the number of the shard of `key`, the same in every process."""
    return (zlib.crc32(key[0].encode("utf-8", "surrogatepass")) + key[1]) % SHARDS
