"""Our epochs as events of dp_accounting, and an accountant that composes them with others' events.

An epoch with keep probability 1 is a `GaussianDpEvent`, for every accountant. A sparsified one is a
`SparsifiedGaussianDpEvent`, which `ZeroOutAccountant` takes and dp_accounting's own accountants refuse: expressed as
Poisson-sampled Gaussians its Renyi divergence would be right, but an accountant of privacy loss distributions would report a
number that is only a lower bound. This module imports dp_accounting, which takes a second; `fedmf.accounting` itself does not.

    >>> from dp_accounting import dp_event
    >>> ours = to_dp_event(EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.006))
    >>> accountant = ZeroOutAccountant().compose(ours, 3).compose(dp_event.LaplaceDpEvent(10.0))
    >>> f"{accountant.get_epsilon(1e-5):.3f}"
    '1.504'
"""

from typing import Any

import attr
from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp import RdpAccountant

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.renyi import rdp

# Integers only: dp_accounting's fractional orders carry an absolute error of up to 5e-4.
COMPOSITION_ORDERS = tuple(range(2, 257)) + tuple(2**k for k in range(9, 15))


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SparsifiedGaussianDpEvent(dp_event.DpEvent):  # type: ignore[misc]  # it ships no types
    """One epoch of the sparsified Gaussian matrix mechanism."""

    epoch: EpochEvent


class ZeroOutAccountant(RdpAccountant):  # type: ignore[misc]
    """dp_accounting's Renyi accountant under zero-out adjacency, which also takes our epochs, at integer orders 2 to 16384.

    Zero-out is dp_accounting's "replace a record by a special one". There is none for replacement: its Renyi accountant
    does not double a Gaussian's sensitivity then (4 Gaussians of noise multiplier 5 at delta = 1e-5 get 1.694, their exact
    epsilon is 3.387).
    """

    def __init__(self) -> None:
        super().__init__(list(COMPOSITION_ORDERS), NeighboringRelation.REPLACE_SPECIAL)

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Any:
        if not isinstance(event, SparsifiedGaussianDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        if do_compose:
            self._rdp += [count * rdp(event.epoch, order) for order in COMPOSITION_ORDERS]
        return None


def to_dp_event(epoch: EpochEvent) -> dp_event.DpEvent:
    """Return one epoch as an event of dp_accounting, relative to the norm of one client's vector."""
    if 0 in (epoch.noise_multiplier, epoch.count_noise):
        return dp_event.NonPrivateDpEvent()
    if epoch.count_noise is not None:
        return dp_event.ComposedDpEvent(
            [to_dp_event(epoch.without_count), dp_event.GaussianDpEvent(epoch.count_noise)]
        )
    plain = epoch.keep_probability == 1
    return dp_event.GaussianDpEvent(epoch.noise_multiplier) if plain else SparsifiedGaussianDpEvent(epoch)
