"""Where a run stands after a released round, as a table of facts and as one short line for logs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from client.metric_names import ALWAYS
from fedmf.accounting.caveats import LARGEST
from fedmf.rounding import rounded_up

LONGEST_LINE = 120  # characters
NOT_PRIVATE = "NOT private"


@dataclass(frozen=True)
class Standing:
    """Where a run stands after a released round.

    `values` are accuracy and further metrics of the model of round `scored`, the last that was scored; None for one that
    is not defined. `epsilon_end` is the epsilon of all epochs that are planned.
    """

    round: int
    rounds: int
    epoch: int
    epochs: int
    scored: int | None
    values: Mapping[str, Any]
    epsilon: float
    epsilon_end: float
    delta: float
    bytes_per_client: float
    has_noise: bool
    reproducible: bool = False

    def facts(self, seconds_a_round: float | None, left: str) -> dict[str, str]:
        """Return what a live view shows, by its name."""
        facts = {"epoch": f"{self.epoch}/{self.epochs}", "round": f"{self.round}/{self.rounds}"}
        if seconds_a_round is not None:
            facts["speed"] = _speed(seconds_a_round)
        facts["accuracy"] = self._accuracy(of=True)
        facts |= {name: _metric(value) for name, value in self._further()}
        facts["privacy"] = self._privacy(delta=True)
        facts["uplink"] = f"{self.bytes_per_client:,.0f} bytes a client and round, envelope included"
        return {**facts, "time left": left.removesuffix(" left") or "not known yet"}

    def line(self, left: str, *, clients: str = "", job: str = "") -> str:
        """Return the standing in at most `LONGEST_LINE` characters.

        What does not fit is left out: further metrics from the last on, then the epoch, then the round of the score.
        """
        return next(
            (line for line in self._lines(left, clients, job) if len(line) <= LONGEST_LINE),
            f"{[*self._lines(left, clients, job)][-1][: LONGEST_LINE - 1]}…",
        )

    def _lines(self, left: str, clients: str, job: str) -> Iterator[str]:
        further = [f"{name} {_metric(value)}" for name, value in self._further()]
        epoch = f"epoch {self.epoch}/{self.epochs}"
        for kept in range(len(further), -1, -1):
            yield self._line(job, clients, left, epoch, self._accuracy(), further[:kept])
        yield self._line(job, clients, left, "", self._accuracy(), [])
        yield self._line("", clients, left, "", self._accuracy().partition(" (")[0], [])

    def _line(self, job: str, clients: str, left: str, epoch: str, accuracy: str, further: list[str]) -> str:
        parts = [
            job,
            f"round {self.round}/{self.rounds}",
            clients,
            epoch,
            self._privacy(),
            accuracy if self.scored is None else f"accuracy {accuracy}",
            *further,
            left,
        ]
        return " | ".join(part for part in parts if part)

    def _accuracy(self, *, of: bool = False) -> str:
        if self.scored is None:
            return "not scored yet"
        value = self.values.get("accuracy")
        share = "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"
        return f"{share} ({'after ' if of else ''}round {self.scored})"

    def _further(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self.values.items() if name not in ALWAYS]

    def _privacy(self, *, delta: bool = False) -> str:
        """Return the privacy spent, rounded up: no line may claim more of it than the statement."""
        if not self.has_noise:
            return f"{NOT_PRIVATE} (no noise)"
        spent = f"epsilon {rounded_up(self.epsilon)}"
        if delta:
            spent += f" of {rounded_up(self.epsilon_end)} at delta {rounded_up(self.delta)}"
        elif not self.reproducible:
            spent += f" of {rounded_up(self.epsilon_end)}"
        if not self.reproducible and self.epsilon_end <= LARGEST:
            return spent
        why = "reproducible" if self.reproducible else f"epsilon above {LARGEST:g}"
        return f"{spent}, {NOT_PRIVATE}{f' ({why})' if delta else ''}"


def _metric(value: Any) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _speed(seconds_a_round: float) -> str:
    if seconds_a_round >= 1:
        return f"{seconds_a_round:.1f} s a round"
    return f"{1 / max(seconds_a_round, 1e-9):.3g} rounds/s"
