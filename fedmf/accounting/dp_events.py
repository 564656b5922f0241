"""The edge to dp_accounting: our epochs among others' events, refused where the composition is not valid.

An epoch with keep probability 1 is a `GaussianDpEvent`. A sparsified one is a `SparsifiedGaussianDpEvent`,
an event of our own, which dp_accounting's accountants refuse: expressed as Poisson-sampled Gaussians its
Renyi divergence would be right, but a privacy-loss-distribution accountant would report a number that is
only a lower bound. This module imports dp_accounting, which takes a second; `fedmf.accounting` itself does
not.
"""

from collections import Counter

import attr
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant

from fedmf.accounting.conversion import epsilon_of_order
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import Ledger, renyi_curve, spent
from fedmf.checks import check_open_unit
from fedmf.errors import NotCoveredError

# zero-out adjacency is dp_accounting's "replace a record by a special one".
NEIGHBORING_RELATIONS = {
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    "replace": NeighboringRelation.REPLACE_ONE,
}

# Integers only: dp_accounting's fractional orders carry an absolute error of up to 5e-4.
COMPOSITION_ORDERS = tuple(range(2, 257)) + tuple(2**k for k in range(9, 15))


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SparsifiedGaussianDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # it ships no types
    """One epoch of the sparsified Gaussian matrix mechanism; fields as in `EpochEvent`."""

    noise_multiplier: float
    keep_probability: float
    linf_over_l2: float


def to_dp_event(epoch: EpochEvent) -> dp_event.DpEvent:
    """Return one epoch as a dp_accounting event: exact Gaussian at keep probability 1, else our own event.

    A `GaussianDpEvent` is relative to the norm of one client's vector, whatever the relation.
    """
    if epoch.noise_multiplier == 0:
        return dp_event.NonPrivateDpEvent()
    if epoch.keep_probability == 1:
        return dp_event.GaussianDpEvent(epoch.noise_multiplier)
    return SparsifiedGaussianDpEvent(epoch.noise_multiplier, epoch.keep_probability, epoch.linf_over_l2)


def ledger_to_dp_event(ledger: Ledger) -> dp_event.ComposedDpEvent:
    """Return all epochs of `ledger` as one composed event, equal epochs counted."""
    return dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(to_dp_event(epoch), count)
            for epoch, count in Counter(ledger.entries).items()
        ]
    )


def compose_with(
    ledger: Ledger, event: dp_event.DpEvent, *, delta: float, adjacency: str = "zero_out"
) -> tuple[float, float | None]:
    """Return (epsilon, order) of the ledger's epochs together with another's `event` on the same clients.

    Gaussians and our own events join the ledger. For others dp_accounting gives the Renyi curve, which adds
    to ours; then the order is the best integer from 2 to 16384. Raises `NotCoveredError` where it has no
    curve, and under replacement, where its Renyi accountant does not double a Gaussian's sensitivity: 4
    Gaussians of noise multiplier 5 at delta = 1e-5 get 1.694, their exact epsilon is 3.387.
    """
    check_open_unit("delta", delta)
    epochs, others = _split(event)
    counts = Counter(ledger.entries) + epochs
    if not others:
        found = spent(counts, delta=delta, adjacency=adjacency)
        return found.epsilon, found.order
    if adjacency != "zero_out":
        raise NotCoveredError(
            f"{others[0].event} has no Renyi curve that holds under adjacency={adjacency}; compose it under zero_out."
        )
    accountant = RdpAccountant(list(COMPOSITION_ORDERS), NEIGHBORING_RELATIONS["zero_out"])
    try:
        accountant.compose(dp_event.ComposedDpEvent(others))
    except UnsupportedEventError as error:
        raise NotCoveredError(f"{event} has no Renyi curve: {error}") from error
    ours = renyi_curve(counts)
    return min(
        (epsilon_of_order(a, float(other) + ours(a), delta), float(a))
        for a, other in zip(COMPOSITION_ORDERS, accountant._rdp, strict=True)
    )


def _split(
    event: dp_event.DpEvent, count: int = 1
) -> tuple[Counter[EpochEvent], list[dp_event.SelfComposedDpEvent]]:
    """Return the epochs of ours in `count` times `event`, and the other events."""
    match event:
        case dp_event.NoOpDpEvent():
            return Counter(), []
        case dp_event.SelfComposedDpEvent():
            return _split(event.event, count * int(event.count))
        case dp_event.ComposedDpEvent():
            parts = [_split(part, count) for part in event.events]
            epochs: Counter[EpochEvent] = sum((ours for ours, _ in parts), Counter())
            return epochs, [other for _, others in parts for other in others]
        case SparsifiedGaussianDpEvent():
            ours = EpochEvent(event.noise_multiplier, event.keep_probability, event.linf_over_l2)
            return Counter({ours: count}), []
        case dp_event.GaussianDpEvent():
            return Counter({EpochEvent(event.noise_multiplier, 1.0, 1.0): count}), []
        case _:
            return Counter(), [dp_event.SelfComposedDpEvent(event, count)]
