"""Figures of each round that no noise covers, for run.unprotected_metrics=true: what clips, how clients fit, how large the noise is.

They are for simulations on data that are not private. They are in metrics.jsonl, on the page and in the live view. The statement
names them as not covered. A run without that setting makes no `Diagnostics`, and computes nothing of this.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from client.diagnostics import Observed
from fedmf.plan import Plan
from server.state import Release

QUANTILES = {"norm_p10": 0.1, "norm_p50": 0.5, "norm_p90": 0.9}
LIVE = ("clipped_share", "norm_p50", "client_loss", "noise_over_sum")
"""What the live view shows of them."""


class Diagnostics:
    """Gathers the figures of the round in progress."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._forget()

    def _forget(self) -> None:
        self._turns: list[Observed] = []
        self._bytes: dict[str, int] = {}  # of each client's values
        self._sum: npt.NDArray[np.float64] | None = None

    def on_turn(self, turn: Observed) -> None:
        """Take note of a client's turn."""
        self._turns.append(turn)

    def on_reply(self, client: str, data: object) -> None:
        """Measure what a client sent: the size reveals how much its mask kept."""
        self._bytes[client] = len(data) if isinstance(data, bytes) else 0

    def on_sum(self, rotated_sum: npt.NDArray[np.float64]) -> None:
        """Keep the sum of a round before its noise, (D,), until the release."""
        self._sum = self._plan.rotation.unrotate(rotated_sum.copy(), donate=True)

    def take(self, release: Release) -> dict[str, Any]:
        """Return the figures of the round that was released, and forget them; none of a round of an earlier session."""
        found: dict[str, Any] = {}
        if self._bytes:
            found["measured_value_bytes"] = sum(self._bytes.values())
        norms = np.array([turn.norm for turn in self._turns])
        if (norms := norms[np.isfinite(norms)]).size:
            if (bound := self._plan.bounds.l2_norm) is not None:
                found["clipped_share"] = float(np.mean(norms > bound))
            found |= {name: float(np.quantile(norms, share)) for name, share in QUANTILES.items()}
            found["client_loss"] = float(np.mean([turn.loss for turn in self._turns]))
        if self._sum is not None and self._plan.sigma and (length := float(np.linalg.norm(self._sum))):
            found["noise_over_sum"] = float(np.linalg.norm(release.noisy_sum - self._sum)) / length
        self._forget()
        return found
