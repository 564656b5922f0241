"""What a run has spent: (epsilon, delta) of epochs that compose.

Epochs restart the mechanism (fresh Z, fresh masks), so they compose adaptively: Renyi divergences add up. A
started epoch counts whole. Where every epoch keeps all coordinates the exact Gaussian number is known and
reported, RDP beside.

    >>> event = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.005935076377073027)
    >>> round(privacy_spent(event, 16, delta=1e-5).epsilon, 6)
    3.681863
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fedmf.accounting.adjacency import best_replace_order, replace_divergence
from fedmf.accounting.conversion import best_order
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.accounting.renyi import rdp
from fedmf.accounting.tight import tight_epsilon
from fedmf.checks import check_at_least, check_choice, check_open_unit
from fedmf.choices import ACCOUNTANTS, ADJACENCIES, Adjacency
from fedmf.errors import NotCoveredError

Counts = Mapping[EpochEvent, int]


@dataclass(frozen=True)
class PrivacySpent:
    """(epsilon, delta) of a run under one adjacency, with what it was computed from.

    epsilon: of the chosen accountant, in nats; the exact value where known (keep probability 1 throughout);
        infinite where a noise multiplier is 0.
    order: the Renyi order that gives `epsilon_rdp`; None where nothing was spent or nothing is finite.
    epsilon_rdp: by Renyi divergence.
    epsilon_exact: None unless known.
    epsilon_tight: of accountant=tight, where that was asked for; never above `epsilon_rdp`. A bound of this project's
        own, not refereed: docs/tighter_accountant.md.
    """

    epsilon: float
    delta: float
    order: float | None
    adjacency: Adjacency
    accountant: str
    epsilon_rdp: float
    epsilon_exact: float | None
    epsilon_tight: float | None

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)


def privacy_spent(
    event: EpochEvent,
    epochs: int,
    *,
    delta: float,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
    precision: float = 0.0,
) -> PrivacySpent:
    """Return what `epochs` equal epochs cost at `delta`.

    Holds for adaptive streams and one participation per client and epoch, under the adjacency named. Raises
    `SettingError` for a value out of range, `NotCoveredError` for accountant=tight under replacement. `precision` is what
    finite precision costs, the `a` of `fedmf.accounting.floating_point`: 0 for the theorem's real numbers.
    """
    check_at_least("epochs", epochs, 0)
    counts = Counter({event: int(epochs)})
    return spent(counts, delta=delta, adjacency=adjacency, accountant=accountant, precision=precision)


def spent(
    counts: Counts,
    *,
    delta: float,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
    precision: float = 0.0,
) -> PrivacySpent:
    """Return what the epochs in `counts` (event -> number) cost together; see `privacy_spent`.

    With accountant=tight, different epochs of which one is sparsified raise `NotCoveredError`: the bound is
    proved for equal epochs.
    """
    check_open_unit("delta", delta)
    relation = as_adjacency(adjacency)
    check_accountant(accountant, relation)
    held = {event: count for event, count in counts.items() if count > 0}
    if held and precision:
        at = spent(held, delta=(1 - 2 * precision) * delta, adjacency=adjacency, accountant=accountant)
        names = ("epsilon", "epsilon_rdp", "epsilon_exact", "epsilon_tight")
        values = {name: value for name in names if (value := getattr(at, name)) is not None}
        return replace(at, delta=delta, **{name: value + 2 * precision for name, value in values.items()})
    exact = _exact(held, delta, relation)
    if held:
        epsilon_rdp, order = _by_rdp(held, delta, relation)
    else:
        epsilon_rdp, order = 0.0, None
    tight = _tight(held, delta, exact, epsilon_rdp) if accountant == "tight" else None
    return PrivacySpent(
        epsilon=next(value for value in (exact, tight, epsilon_rdp) if value is not None),
        delta=delta,
        order=order,
        adjacency=relation,
        accountant=accountant,
        epsilon_rdp=epsilon_rdp,
        epsilon_exact=exact,
        epsilon_tight=tight,
    )


def divergence(counts: Counts, order: float, adjacency: str = "zero_out") -> float:
    """Return the Renyi divergence of the epochs in `counts` at `order` under `adjacency`, in nats."""
    relation = as_adjacency(adjacency)
    if relation == "zero_out":
        return _sum(counts.items(), order)
    plain, sparse = _split(counts)
    through = replace_divergence(lambda a: _sum(sparse, a), order) if sparse else 0.0
    return through + _plain_replace(plain, order)


def check_accountant(accountant: str, adjacency: str = "zero_out") -> None:
    """Raise `SettingError` for an unknown accountant, `NotCoveredError` for "tight" under replacement."""
    check_choice("accountant", accountant, ACCOUNTANTS)
    if accountant == "tight" and adjacency == "replace":
        raise NotCoveredError(
            "accountant=tight is proved for adjacency=zero_out only; with adjacency=replace, "
            "use accountant=rdp."
        )


def as_adjacency(name: str) -> Adjacency:
    """Return `name` as an `Adjacency`. Raises `SettingError` unless it is zero_out or replace."""
    check_choice("adjacency", name, ADJACENCIES)
    return "zero_out" if name == "zero_out" else "replace"


def _exact(counts: Counts, delta: float, adjacency: Adjacency) -> float | None:
    """Epsilon of the one Gaussian that unsparsified epochs compose to; None if one is sparsified."""
    if any(event.keep_probability < 1 for event in counts):
        return None
    if any(event.noise_multiplier == 0 for event in counts):
        return math.inf
    mu = math.sqrt(math.fsum(count / event.noise_multiplier**2 for event, count in counts.items()))
    return gaussian_epsilon(2 * mu if adjacency == "replace" else mu, delta)


def _tight(counts: Counts, delta: float, exact: float | None, epsilon_rdp: float) -> float:
    """min(RDP, quadratic variation) of equal epochs; the exact value where known."""
    if exact is not None:
        return min(exact, epsilon_rdp)
    if len(counts) > 1:
        raise NotCoveredError(
            f"the ledger holds {len(counts)} different kinds of epochs; accountant=tight is proved for equal "
            "epochs, use accountant=rdp."
        )
    ((event, epochs),) = counts.items()
    return tight_epsilon(event, epochs, delta, epsilon_rdp)


def _by_rdp(counts: Counts, delta: float, adjacency: Adjacency) -> tuple[float, float | None]:
    plain, sparse = _split(counts)
    if adjacency == "zero_out":
        return best_order(lambda a: _sum(counts.items(), a), delta)
    if not sparse:
        return best_order(lambda a: _plain_replace(plain, a), delta)
    return best_replace_order(lambda a: _sum(sparse, a), lambda a: _plain_replace(plain, a), delta)


Pairs = Iterable[tuple[EpochEvent, int]]


def _split(counts: Counts) -> tuple[list[tuple[EpochEvent, int]], list[tuple[EpochEvent, int]]]:
    """(epochs that keep every coordinate, sparsified epochs)."""
    plain = [(event, count) for event, count in counts.items() if event.keep_probability == 1]
    sparse = [(event, count) for event, count in counts.items() if event.keep_probability < 1]
    return plain, sparse


def _sum(pairs: Pairs, order: float) -> float:
    return math.fsum(count * rdp(event, order) for event, count in pairs)


def _plain_replace(pairs: Pairs, order: float) -> float:
    """Two vectors within Delta_2 of 0 are within 2 Delta_2 of each other: four times the divergence."""
    return 4 * _sum(pairs, order)
