"""Who was heard in the epoch under way, and how often in earlier ones: bitmaps that a new value shares with the old.

A value stays valid when the next one is made, and a round costs what its cohort does, whoever was heard before: of the bitmaps
only those of the cohort's clients are made anew (`fedmf.sharded`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from fedmf.client_bits import count_of, counted_once_more, names, place
from fedmf.errors import ParticipationError
from fedmf.sharded import Key, Sharded


@dataclass(frozen=True)
class Register:
    """The clients spent in the current epoch, and in how many earlier epochs each client took part.

    `begun` counts the epochs begun, `count` the clients spent, `most_epochs` is in how many epochs the most frequent
    client took part, the current one included.

    >>> Register().spend(["a", "b"]).spend(["a"])
    Traceback (most recent call last):
    fedmf.errors.ParticipationError: client a would enter a second released sum of this epoch; one is allowed.
    """

    bitmaps: Sharded[int] = field(default_factory=Sharded, repr=False)
    planes: Sharded[tuple[int, ...]] = field(default_factory=Sharded, repr=False)
    begun: int = 0
    count: int = 0
    most_epochs: int = 0

    def spend(self, clients: Iterable[str]) -> Self:
        """Return the register with `clients` spent too. Raises `ParticipationError` for a client seen twice."""
        changed: dict[Key, int] = {}
        planes: dict[Key, tuple[int, ...]] = {}
        count, most = self.count, self.most_epochs
        for client in clients:
            key, bit = place(client)
            if key not in changed:
                changed[key], planes[key] = self.bitmaps.get(key, 0), self.planes.get(key, ())
            if changed[key] >> bit & 1:
                raise ParticipationError(
                    f"client {client} would enter a second released sum of this epoch; one is allowed."
                )
            changed[key] |= 1 << bit
            count += 1
            most = max(most, 1 + count_of(planes[key], bit))
        return replace(self, bitmaps=self.bitmaps.updated(changed), count=count, most_epochs=most)

    def next_epoch(self) -> Self:
        """Return the register of an epoch in which nobody is spent yet."""
        counted = {
            key: counted_once_more(self.planes.get(key, ()), bitmap) for key, bitmap in self.bitmaps.items()
        }
        return replace(
            self, bitmaps=Sharded(), planes=self.planes.updated(counted), begun=self.begun + 1, count=0
        )

    @property
    def spent(self) -> "Spent":
        """The clients spent in the current epoch, as a set."""
        return Spent(self)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the register as plain arrays, the same ones for equal registers.

        One entry a bitmap: its group (into `groups`), its piece, and how many bytes it and each plane of it take in `bits`.
        """
        keys = sorted({key for key, _ in self.bitmaps.items()} | {key for key, _ in self.planes.items()})
        groups = sorted({group for group, _ in keys})
        number = {group: place for place, group in enumerate(groups)}
        held = [(self.bitmaps.get(key, 0), *self.planes.get(key, ())) for key in keys]
        data = [bits.to_bytes(-(-bits.bit_length() // 8), "little") for each in held for bits in each]
        return {
            "numbers": np.array([self.begun, self.count, self.most_epochs], np.int64),
            "groups": np.array(json.dumps(groups)),
            "group": np.array([number[group] for group, _ in keys], np.uint32),
            "piece": np.array([piece for _, piece in keys], np.int64),
            "kept": np.array([len(each) for each in held], np.uint8),
            "sizes": np.array([len(bits) for bits in data], np.uint16),
            "bits": np.frombuffer(b"".join(data), np.uint8),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the register of `to_arrays`. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        begun, count, most = (int(number) for number in arrays["numbers"])
        groups, data = json.loads(str(arrays["groups"])), arrays["bits"].tobytes()
        ends = np.cumsum(arrays["sizes"], dtype=np.int64).tolist()
        starts = [0, *ends]
        bits = [int.from_bytes(data[starts[i] : end], "little") for i, end in enumerate(ends)]
        bitmaps: dict[Key, int] = {}
        planes: dict[Key, tuple[int, ...]] = {}
        first = 0
        for group, piece, kept in zip(arrays["group"], arrays["piece"], arrays["kept"], strict=True):
            key = (str(groups[group]), int(piece))
            bitmap, *counted = bits[first : first + int(kept)]
            first += int(kept)
            if bitmap:
                bitmaps[key] = bitmap
            if counted:
                planes[key] = tuple(counted)
        if count != sum(bitmap.bit_count() for bitmap in bitmaps.values()):
            raise ValueError(f"{count} clients are spent, but not as many bits are set")
        spent, earlier = Sharded[int](), Sharded[tuple[int, ...]]()
        return cls(spent.updated(bitmaps), earlier.updated(planes), begun, count, most)

    def spent_since(self, earlier: "Register") -> list[str] | None:
        """Return whom this register has spent beyond `earlier`; None unless it only adds clients to it.

        `earlier` is of the same epoch, or was complete when that one began.
        """
        if self.begun == earlier.begun + 1:
            earlier = earlier.next_epoch()
        if self.begun != earlier.begun or self.planes != earlier.planes:
            return None
        added = {
            key: bitmap & ~earlier.bitmaps.get(key, 0)
            for key, bitmap in self.bitmaps.changed_since(earlier.bitmaps)
        }
        if self.count - earlier.count != sum(bitmap.bit_count() for bitmap in added.values()):
            return None  # somebody is missing
        return [client for key, bitmap in sorted(added.items()) for client in names(key, bitmap)]


class Spent(Set[str]):
    """The clients spent in the current epoch of a register, which no list of them holds."""

    def __init__(self, register: Register) -> None:
        self._register = register

    @classmethod
    def _from_iterable(cls, it: Iterable[str]) -> frozenset[str]:  # type: ignore[override]
        return frozenset(it)

    def __contains__(self, client: object) -> bool:
        """Say whether a client is spent."""
        if not isinstance(client, str):
            return False
        key, bit = place(client)
        return bool(self._register.bitmaps.get(key, 0) >> bit & 1)

    def __iter__(self) -> Iterator[str]:
        """Yield the clients, in no order that means anything."""
        for key, bitmap in self._register.bitmaps.items():
            yield from names(key, bitmap)

    def __len__(self) -> int:
        """Return how many clients are spent."""
        return self._register.count
