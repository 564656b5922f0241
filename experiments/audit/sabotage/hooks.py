"""Where a sabotage reaches into the pipeline, and how a function of the product is replaced for a while."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from client.data import Examples
from experiments.audit.row import AS_SHIPPED
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server.cohort import Population, SimulatedPopulation
from server.state import Release, ServerState
from server.strategy import FedMF

ExamplesOf = Callable[[int, int], Examples]
"""What a client (0-based) holds in a server round (1-based)."""

Restored = tuple[ServerState, list[tuple[ServerState, Release]]]
"""What `Checkpoint.restore` returns: the state, and what was replayed from the journal."""

Patches = Callable[[], AbstractContextManager[Any]]


def _same(value: Any, *_: Any) -> Any:
    return value


@dataclass(frozen=True)
class Sabotage:
    """One thing broken in the pipeline. `caught_by` names the tests (`Row.test`) that must refute it.

    Where no test can, `caught_by` is empty and `why_not` says why. `plan` is what the server follows, `secret` the run
    secret, `start` the initial model, `restored` what a resume goes on from; `patches` holds functions of the product
    replaced while a run is played. `masks` says that the sabotage changes nothing where there are none; `resumes`, that
    it changes nothing in a run that is not resumed; `hostile`, that it changes nothing where every client keeps to the
    protocol; `int8` and `padded`, that it changes nothing where values are float32, where no coordinate is padded;
    `dimension` and `clients`, that it changes nothing in fewer of them.
    """

    name: str
    sentence: str
    caught_by: tuple[str, ...] = ()
    why_not: str = ""
    masks: bool = False
    resumes: bool = False
    hostile: bool = False
    int8: bool = False
    padded: bool = False
    dimension: int = 0
    clients: int = 0
    plan: Callable[[Plan], Plan] = _same
    secret: Callable[[SecretKey], SecretKey] = _same
    strategy: type[FedMF] = FedMF
    population: Callable[[], Population] = SimulatedPopulation
    start: Callable[[Vector, Plan, ExamplesOf], Vector] = _same
    restored: Callable[[Restored, Plan], Restored] = _same
    patches: Patches = nullcontext

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sabotage) and other.name == self.name

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process by name: not every hook can be pickled."""
        return _named, (self.name,)


def _named(name: str) -> Sabotage:
    from experiments.audit import sabotage

    return NONE if name == NONE.name else sabotage.SABOTAGES[name]


NONE = Sabotage(AS_SHIPPED, "nothing is broken")


@contextmanager
def patched(*replacements: tuple[object, str, Any]) -> Iterator[None]:
    """Set each (object, attribute) to a value for the block, and put back what was there."""
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
