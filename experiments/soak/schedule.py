"""When which fault strikes whom: a function of the seed alone."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

FAULTS_IN_ALL = 10  # where nobody says which
_LONGEST = 90.0  # seconds that a fault lasts at most: a dead node is noticed after one minute
_SHARE = 0.5  # of the time between two faults that one lasts at most


@dataclass(frozen=True)
class Planned:
    """A fault by its name that strikes `node` (or no node) `at` seconds after the begin and is mended `seconds` later."""

    at: float
    fault: str
    node: str
    seconds: float


def drawn(seed: int, minutes: float, faults: Sequence[str], nodes: Sequence[str]) -> list[Planned]:
    """Return `faults` in their order, spread over `minutes` at random: one in each equal part of them.

    >>> [planned.fault for planned in drawn(0, 5, ["node_killed", "disk_full"], ["a", "b"])]
    ['node_killed', 'disk_full']
    """
    rng = random.Random(f"schedule {seed}")
    part = 60 * minutes / len(faults)
    return [
        Planned(
            at=round(part * (number + rng.uniform(0.0, 0.4)), 1),
            fault=fault,
            node=rng.choice(nodes),
            seconds=round(min(_LONGEST, _SHARE * part) * rng.uniform(0.3, 1.0), 1),
        )
        for number, fault in enumerate(faults)
    ]


def any_ten(seed: int, kinds: Sequence[str]) -> list[str]:
    """Return ten of `kinds` in random order, no kind again before every other one had its turn.

    >>> sorted(any_ten(3, ["a", "b"])) == 5 * ["a"] + 5 * ["b"]
    True
    """
    rng, names = random.Random(f"faults {seed}"), list[str]()
    while len(names) < FAULTS_IN_ALL:
        names += rng.sample(kinds, len(kinds))
    return names[:FAULTS_IN_ALL]
