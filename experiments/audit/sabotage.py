"""What the audit breaks in the pipeline on purpose, from outside: no product code has a switch for any of it.

A `Sabotage` says where it reaches in: the plan that the server follows, the run secret, the strategy's class, the
population, the initial model, the state after a resume, or functions of the product that are replaced while the
pipeline runs and put back after it. `SABOTAGES` has all of them by name.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from client.data import Examples
from fedmf.plan import Plan
from fedmf.randomness import SecretKey
from fedmf.updates.vectors import Vector
from server.cohort import Population, SimulatedPopulation
from server.optimizer import Optimizer
from server.state import Release, ServerState
from server.strategy import FedMF

ExamplesOf = Callable[[int, int], Examples]
"""What a client (0-based) holds in a server round (1-based)."""

Restored = tuple[ServerState, list[tuple[ServerState, Release]]]
"""What `Checkpoint.restore` returns: the state, and what was replayed from the journal."""


def _same(value: Any, *_: Any) -> Any:
    return value


@dataclass(frozen=True)
class Sabotage:
    """One thing broken in the pipeline. `caught_by` names the tests (`Row.test`) that must refute it.

    Where no test can, `caught_by` is empty and `why_not` says why. The hooks must be importable functions, because
    processes are given a sabotage by its name.
    """

    name: str
    sentence: str
    caught_by: tuple[str, ...] = ()
    why_not: str = ""
    plan: Callable[[Plan], Plan] = _same
    secret: Callable[[SecretKey], SecretKey] = _same
    optimizer: Callable[[Optimizer], Optimizer] = _same
    strategy: type[FedMF] = FedMF
    population: Callable[[], Population] = SimulatedPopulation
    start: Callable[[Vector, Plan, ExamplesOf], Vector] = _same
    restored: Callable[[Restored, Plan], Restored] = _same
    patches: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sabotage) and other.name == self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.name,)


def _named(name: str) -> Sabotage:
    return NONE if name == NONE.name else SABOTAGES[name]


@contextmanager
def patched(*replacements: tuple[object, str, Any]) -> Iterator[None]:
    """Set each (object, attribute) to a value for the block, and put back what was there."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    try:
        for owner, name, value in replacements:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


class SharedMaskKey(SecretKey):
    """A secret with one mask key for all clients of a round: the fault that voids the amplification."""

    def mask_key(self, client: str, step: int) -> SecretKey:
        """Return one key for all clients."""
        return super().mask_key("everyone", step)

    def ratchet(self) -> SecretKey:
        """Return the next epoch's secret, as broken as this one."""
        return SharedMaskKey(super().ratchet().reveal())


def with_half_noise(plan: Plan) -> Plan:
    """Return the plan with half the noise that was calibrated."""
    return replace(plan, noise_multiplier=plan.noise_multiplier / 2)


def with_shared_mask(secret: SecretKey) -> SecretKey:
    """Return the run secret that gives everyone the same mask."""
    return SharedMaskKey(secret.reveal())


NONE = Sabotage("as shipped", "nothing is broken")

HALF_NOISE = Sabotage(
    "noise halved", "the server adds half of the calibrated noise", ("many runs",), plan=with_half_noise
)
SHARED_MASK = Sabotage(
    "one mask for all",
    "all clients of a round are given the same mask key",
    ("many runs",),
    secret=with_shared_mask,
)

SABOTAGES: dict[str, Sabotage] = {sabotage.name: sabotage for sabotage in (HALF_NOISE, SHARED_MASK)}
