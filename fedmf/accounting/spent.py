"""What a run has spent: (epsilon, delta) of epochs that compose, and the ledger of those that began.

Epochs restart the mechanism (fresh Z, fresh masks), so they compose adaptively: Renyi divergences add up. A
started epoch counts whole. Where every epoch keeps all coordinates the exact Gaussian number is known and
reported with the Renyi number.

    >>> event = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.005935076377073027)
    >>> round(privacy_spent(event, 16, delta=1e-5).epsilon, 6)
    3.681863
    >>> ledger = Ledger().record(event).record(event)
    >>> len(ledger.entries), round(ledger.spent(delta=1e-5).epsilon, 3)
    (2, 1.164)
    >>> Ledger.from_json(ledger.to_json()) == ledger
    True
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedmf.accounting.conversion import Curve, best_order, best_replace_order, replace_divergence
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.accounting.renyi import gaussian_rdp, rdp
from fedmf.accounting.tight import quadratic_variation_epsilon
from fedmf.checks import check_at_least, check_choice, check_open_unit
from fedmf.errors import DataError, NotCoveredError
from fedmf.setting import ACCOUNTANTS, ADJACENCIES

Counts = Mapping[EpochEvent, int]
FORMAT = "fedmf-ledger-1"


@dataclass(frozen=True)
class PrivacySpent:
    """(epsilon, delta) of a run under one adjacency, with what it was computed from.

    epsilon: of the chosen accountant, in nats; the exact value where known (keep probability 1 throughout);
        infinite where a noise multiplier is 0.
    order: the Renyi order that gives `epsilon_rdp`; None where nothing was spent or nothing is finite.
    epsilon_rdp: by Renyi divergence.
    epsilon_exact: None unless known.
    epsilon_tight: of accountant=tight, where that was asked for; never above `epsilon_rdp`. A bound of this project's
        own, not refereed: docs/theory.md.
    """

    epsilon: float
    delta: float
    order: float | None
    adjacency: str
    accountant: str
    epsilon_rdp: float
    epsilon_exact: float | None
    epsilon_tight: float | None


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
    return spent(
        {event: int(epochs)}, delta=delta, adjacency=adjacency, accountant=accountant, precision=precision
    )


def spent(
    counts: Counts,
    *,
    delta: float,
    adjacency: str = "zero_out",
    accountant: str = "rdp",
    precision: float = 0.0,
) -> PrivacySpent:
    """Return what the epochs in `counts` (event -> number) cost together; see `privacy_spent`.

    Raises `NotCoveredError` with accountant=tight also for different epochs of which one is sparsified, and for sparsified
    ones with a count: the bound is proved for equal epochs and for their sums alone.
    """
    check_open_unit("delta", delta)
    check_choice("adjacency", adjacency, ADJACENCIES)
    check_choice("accountant", accountant, ACCOUNTANTS)
    if accountant == "tight" and adjacency == "replace":
        raise NotCoveredError(
            "accountant=tight is proved for adjacency=zero_out only; with adjacency=replace, "
            "use accountant=rdp."
        )
    held = {event: count for event, count in counts.items() if count > 0}
    if held and precision:
        at = spent(held, delta=(1 - 2 * precision) * delta, adjacency=adjacency, accountant=accountant)
        names = ("epsilon", "epsilon_rdp", "epsilon_exact", "epsilon_tight")
        values = {name: value for name in names if (value := getattr(at, name)) is not None}
        return replace(at, delta=delta, **{name: value + 2 * precision for name, value in values.items()})
    exact = _exact(held, delta, adjacency)
    epsilon_rdp, order = _by_rdp(held, delta, adjacency) if held else (0.0, None)
    tight = _tight(held, delta, exact, epsilon_rdp) if accountant == "tight" else None
    return PrivacySpent(
        epsilon=next(value for value in (exact, tight, epsilon_rdp) if value is not None),
        delta=delta,
        order=order,
        adjacency=adjacency,
        accountant=accountant,
        epsilon_rdp=epsilon_rdp,
        epsilon_exact=exact,
        epsilon_tight=tight,
    )


def renyi_curve(counts: Counts, factor: float = 1.0) -> Curve:
    """Return the Renyi divergence of the epochs in `counts` under zero-out adjacency, times `factor`, by order."""
    return lambda order: factor * math.fsum(count * rdp(event, order) for event, count in counts.items())


def divergence(counts: Counts, order: float, adjacency: str = "zero_out") -> float:
    """Return the Renyi divergence of the epochs in `counts` at `order` under `adjacency`, in nats."""
    check_choice("adjacency", adjacency, ADJACENCIES)
    if adjacency == "zero_out":
        return renyi_curve(counts)(order)
    sparse, plain = _replaced(counts)
    return (replace_divergence(sparse, order) if sparse else 0.0) + plain(order)


def _exact(counts: Counts, delta: float, adjacency: str) -> float | None:
    """Epsilon of the one Gaussian that unsparsified epochs compose to; None if one is sparsified."""
    if any(event.keep_probability < 1 for event in counts):
        return None
    if any(0 in (event.noise_multiplier, event.count_noise) for event in counts):
        return math.inf
    sums = math.fsum(count / event.noise_multiplier**2 for event, count in counts.items())
    of_counts = math.fsum(
        count / event.count_noise**2 for event, count in counts.items() if event.count_noise
    )
    if adjacency == "replace":
        sums *= 4
    return gaussian_epsilon(math.sqrt(sums + of_counts), delta)


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
    if event.count_noise is not None:
        raise NotCoveredError(
            "accountant=tight is proved for the sums of sparsified epochs, and these also release a count for the clip norm; use "
            "accountant=rdp."
        )
    return min(quadratic_variation_epsilon(event, epochs, delta), epsilon_rdp)


def _by_rdp(counts: Counts, delta: float, adjacency: str) -> tuple[float, float | None]:
    if adjacency == "zero_out":
        return best_order(renyi_curve(counts), delta)
    sparse, plain = _replaced(counts)
    return best_replace_order(sparse, plain, delta) if sparse else best_order(plain, delta)


def _replaced(counts: Counts) -> tuple[Curve | None, Curve]:
    """(zero-out curve of the sparsified epochs, None for none; curve of the others under replacement).

    Two vectors within Delta_2 of 0 are within 2 Delta_2 of each other: four times a Gaussian's divergence. Two bits are within
    1 of each other, as a bit is of 0: the divergence of an epoch's count is the same under replacement. It comes after the
    epoch's sums, to whose divergence under replacement it adds at each order.
    """
    sparse, plain = Counter[EpochEvent](), Counter[EpochEvent]()
    for event, count in counts.items():
        (sparse if event.keep_probability < 1 else plain)[event.without_count] += count
    plain_curve = renyi_curve(plain, 4)
    counted = [(event.count_noise, count) for event, count in counts.items() if event.count_noise is not None]
    return (
        renyi_curve(sparse) if sparse else None,
        lambda order: plain_curve(order) + math.fsum(n * gaussian_rdp(order, noise) for noise, n in counted),
    )


@dataclass(frozen=True)
class Ledger:
    """The started epochs of one run, in order, append-only; what a run has spent follows from it alone.

    An epoch is recorded when its first round is released, and counts whole from then on.
    """

    entries: tuple[EpochEvent, ...] = ()

    def record(self, event: EpochEvent) -> "Ledger":
        """Return the ledger with one more started epoch; this one is left as it was."""
        return Ledger((*self.entries, event))

    def spent(self, **terms: Any) -> PrivacySpent:
        """Return what the recorded epochs cost together; `terms`, claims and errors as in `privacy_spent`."""
        return spent(Counter(self.entries), **terms)

    def to_json(self) -> str:
        """Return the ledger as one JSON document; floats keep every bit."""
        entries = [
            {name: value for name, value in asdict(event).items() if value is not None}
            for event in self.entries
        ]
        return json.dumps({"format": FORMAT, "entries": entries})

    @staticmethod
    def from_json(text: str) -> "Ledger":
        """Return the ledger that `to_json` wrote; raises `DataError` for anything else."""
        try:
            document = json.loads(text)
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']!r}, not {FORMAT!r}")
            return Ledger(tuple(EpochEvent(**entry) for entry in document["entries"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"the ledger cannot be read: {error}. It must be what Ledger.to_json wrote."
            ) from error
