"""The ledger: one event per started epoch, append-only. What a run has spent follows from it alone.

Check before an epoch begins, record when its first round is released; an epoch that has begun counts whole.

    >>> event = EpochEvent(noise_multiplier=0.05, keep_probability=0.01, linf_over_l2=0.01)
    >>> ledger = Ledger().record(event).record(event)
    >>> len(ledger.entries), round(ledger.spent(delta=1e-5).epsilon, 3)
    (2, 1.174)
    >>> Ledger.from_json(ledger.to_json()) == ledger
    True
"""

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.spent import PrivacySpent, spent
from fedmf.checks import check_positive
from fedmf.errors import DataError, FedmfError, PrivacyBudgetExhausted
from fedmf.rounding import rounded_up

FORMAT = "fedmf-ledger-1"
FIELDS = tuple(field.name for field in dataclasses.fields(EpochEvent))


@dataclass(frozen=True)
class Ledger:
    """The started epochs of one run, in order; different events may follow each other."""

    entries: tuple[EpochEvent, ...] = ()

    def record(self, event: EpochEvent) -> "Ledger":
        """Return the ledger with one more started epoch; this one is left as it was."""
        return Ledger((*self.entries, event))

    def spent(
        self,
        *,
        delta: float,
        adjacency: str = "zero_out",
        accountant: str = "rdp",
        precision: float = 0.0,
    ) -> PrivacySpent:
        """Return what the recorded epochs cost together; claims and errors as in `privacy_spent`."""
        counts = Counter(self.entries)
        return spent(counts, delta=delta, adjacency=adjacency, accountant=accountant, precision=precision)

    def check_next(
        self,
        event: EpochEvent,
        max_epsilon: float,
        *,
        delta: float,
        adjacency: str = "zero_out",
        accountant: str = "rdp",
        precision: float = 0.0,
    ) -> PrivacySpent:
        """Return what would be spent with one more epoch, if that is within `max_epsilon`.

        Raises `PrivacyBudgetExhausted` otherwise, so that the epoch never begins.
        """
        check_positive("max_epsilon", max_epsilon)
        terms: dict[str, Any] = {
            "delta": delta,
            "adjacency": adjacency,
            "accountant": accountant,
            "precision": precision,
        }
        after = self.record(event).spent(**terms)
        if after.epsilon > max_epsilon:
            before = self.spent(**terms)
            raise PrivacyBudgetExhausted(
                f"epoch {len(self.entries) + 1} would bring epsilon from {rounded_up(before.epsilon)} to "
                f"{rounded_up(after.epsilon)} at delta={rounded_up(delta)} (one client, {adjacency}), above "
                f"max_epsilon={max_epsilon:g}; it is not started."
            )
        return after

    def to_json(self) -> str:
        """Return the ledger as one JSON document; floats keep every bit."""
        return json.dumps(
            {"format": FORMAT, "entries": [dataclasses.asdict(event) for event in self.entries]}
        )

    @staticmethod
    def from_json(text: str) -> "Ledger":
        """Return the ledger that `to_json` wrote; raises `DataError` for anything else."""
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(
                f"the ledger is not JSON ({error}); it must be what Ledger.to_json wrote."
            ) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise DataError(f"the ledger's format is not {FORMAT!r}; it must be what Ledger.to_json wrote.")
        entries = document.get("entries")
        if not isinstance(entries, list):
            raise DataError("the ledger has no list of entries; it must be what Ledger.to_json wrote.")
        return Ledger(tuple(_event(entry) for entry in entries))


def _event(entry: object) -> EpochEvent:
    if not isinstance(entry, dict) or set(entry) != set(FIELDS):
        raise DataError(f"the ledger entry {entry!r} is unknown; an entry holds exactly {', '.join(FIELDS)}.")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in entry.values()):
        raise DataError(f"the ledger entry {entry!r} holds something that is not a number.")
    try:
        return EpochEvent(**{name: float(value) for name, value in entry.items()})
    except FedmfError as error:
        raise DataError(f"the ledger entry {entry!r} is impossible: {error}") from error
