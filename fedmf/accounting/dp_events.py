"""The edge to dp_accounting: our epochs next to others' events, where the composition is valid.

An epoch with keep probability 1 is a `GaussianDpEvent`. A sparsified one is no event of dp_accounting: expressed as
Poisson-sampled Gaussians its Renyi divergence would be right, but a privacy-loss-distribution accountant would report
a number that is only a lower bound. `compose_with` adds the divergences of others' events to ours instead. This module
imports dp_accounting, which takes a second; `fedmf.accounting` itself does not.
"""

from collections import Counter

from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant

from fedmf.accounting.conversion import epsilon_of_order
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import Ledger, renyi_curve
from fedmf.checks import check_open_unit
from fedmf.errors import NotCoveredError

# Integers only: dp_accounting's fractional orders carry an absolute error of up to 5e-4.
COMPOSITION_ORDERS = tuple(range(2, 257)) + tuple(2**k for k in range(9, 15))


def to_dp_event(epoch: EpochEvent) -> dp_event.DpEvent:
    """Return one epoch with keep probability 1 as a dp_accounting event, relative to the norm of one client's vector.

    Raises `NotCoveredError` for a sparsified epoch.
    """
    if epoch.noise_multiplier == 0:
        return dp_event.NonPrivateDpEvent()
    if epoch.keep_probability < 1:
        raise NotCoveredError(
            f"keep_probability is {epoch.keep_probability}; dp_accounting has no event whose loss distribution bounds that "
            "of a sparsified epoch. Add others' events to the ledger with compose_with."
        )
    return dp_event.GaussianDpEvent(epoch.noise_multiplier)


def compose_with(ledger: Ledger, event: dp_event.DpEvent, *, delta: float) -> tuple[float, float]:
    """Return (epsilon, order) of the ledger's epochs together with another's `event` on the same clients.

    Under zero-out adjacency, which is dp_accounting's "replace a record by a special one": it gives the Renyi curve of
    `event`, which adds to ours. The order is the best integer from 2 to 16384. Raises `NotCoveredError` where it has no
    curve. Under replacement nothing is covered, because its Renyi accountant does not double a Gaussian's sensitivity
    then: 4 Gaussians of noise multiplier 5 at delta = 1e-5 get 1.694, their exact epsilon is 3.387.
    """
    check_open_unit("delta", delta)
    accountant = RdpAccountant(list(COMPOSITION_ORDERS), NeighboringRelation.REPLACE_SPECIAL)
    try:
        accountant.compose(event)
    except UnsupportedEventError as error:
        raise NotCoveredError(f"{event} has no Renyi curve: {error}") from error
    ours = renyi_curve(Counter(ledger.entries))
    return min(
        (epsilon_of_order(a, float(other) + ours(a), delta), float(a))
        for a, other in zip(COMPOSITION_ORDERS, accountant._rdp, strict=True)
    )
