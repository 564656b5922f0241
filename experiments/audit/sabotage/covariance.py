"""Sabotage of what is made of fresh rows: another covariance over rounds or epochs, few digits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import server.state
from experiments.audit.sabotage.hooks import Sabotage, patched
from experiments.audit.sabotage.rows import CORRELATED, REPEATED
from fedmf.mechanisms.noise import NoiseRow, next_noise
from fedmf.mechanisms.streams.protocol import StreamState
from fedmf.normals import STEP
from fedmf.randomness import SecretKey


@contextmanager
def correlated_by(change: Callable[[NoiseRow], NoiseRow]) -> Iterator[None]:
    """Replace each noise row by `change` of it."""

    def draw(*given: Any, **more: Any) -> tuple[NoiseRow, StreamState]:
        row, after = next_noise(*given, **more)
        return change(row), after

    with patched((server.state, "next_noise", draw)):
        yield


def _without(row: NoiseRow) -> NoiseRow:
    return NoiseRow(np.zeros_like(row.mean), 1.0, row.fresh)


def _of_float16(row: NoiseRow) -> NoiseRow:
    correlated = STEP * (row.mean + row.own * row.fresh)
    return NoiseRow(np.zeros_like(row.mean), 1.0, correlated.astype(np.float16).astype(np.float64) / STEP)


def _sign_turned(row: NoiseRow) -> NoiseRow:
    return NoiseRow(-row.mean, 2 - row.own, row.fresh)


@dataclass(frozen=True, repr=False)
class SameNoiseKey(SecretKey):
    """A secret whose noise rows are those of the first epoch in all of them; masks change as they should."""

    first: SecretKey | None = None

    def derive(self, purpose: str, *position: int | str) -> SecretKey:
        """Return an unrelated key for every purpose and position; that of a noise row hangs on the first key."""
        if purpose == "noise row" and self.first is not None:
            return self.first.derive(purpose, *position)
        return super().derive(purpose, *position)

    def ratchet(self) -> SecretKey:
        """Return the next epoch's secret, as broken as this one."""
        return SameNoiseKey(super().ratchet().reveal(), self.first or SecretKey(self.reveal()))


def with_the_same_noise(secret: SecretKey) -> SecretKey:
    """Return the run secret whose epochs all have the first one's noise."""
    return SameNoiseKey(secret.reveal())


COVARIANCE = (
    Sabotage(
        "the same noise in all epochs",
        "each epoch draws the first one's rows",
        (CORRELATED, REPEATED),
        secret=with_the_same_noise,
    ),
    Sabotage(
        "noise without C",
        "rows are independent where C should correlate them",
        (CORRELATED,),
        patches=partial(correlated_by, _without),
    ),
    Sabotage(
        "another C",
        "rows are correlated with the sign turned",
        (CORRELATED,),
        patches=partial(correlated_by, _sign_turned),
    ),
    Sabotage(
        "noise rounded to float16",
        "noise has 11 significant bits, and the bits below them show the sum that it is added to",
        ("residual grid",),
        patches=partial(correlated_by, _of_float16),
    ),
)
