"""A clip norm that follows the clients' updates, by a private count once an epoch.

After Andrew, Thakkar, McMahan, Ramaswamy, "Differentially private learning with adaptive clipping" (NeurIPS 2021), Algorithm 1,
with one step an epoch. The clients of epoch e (from 0) multiply their update by 1/c_e, c_0 = 1, before they clip it at C_0, and
the server divides the released mean by 1/c_e: that is clipping at C_0 c_e, with noise in proportion. Noise multiplier, bounds
and mechanism stay what the plan says. Each client adds to its own message one bit: 1 where its scaled update, before any
clip, has a finite norm of at most C_0. With S the number of ones in the epoch, m the clients heard in it, q the `quantile`,

    Y = S + z_s N(0, 1),    c_{e+1} = c_e exp(-rate (min(max(Y/m, 0), 1) - q)).

**Privacy.** Y is released once, when the last round of its epoch is; it is one more Gaussian of sensitivity 1 an epoch:
(a, a/(2 z_s^2))-RDP under zero-out and under replacement, given all that was released before (Mironov 2017, Proposition 7).

- A client is heard at most once in an epoch, and a bit is 0 or 1: the server takes any other byte for a malformed reply,
  which is a zero vector and a 0. So one client moves S by at most 1. Zeroed out, its bit is 0.
- Given the clients' coins and what was released before, the bits of the others are the same in both worlds, and who is heard
  does not depend on data: neither does m. Noise and masks of the sums are independent of the bits and of the noise here.
- So the epoch is its sums, to which the theorem applies, followed by Y: adaptive composition adds the divergences at every order
  (Mironov 2017, Proposition 1), Gaussians add in mu^2 (Dong, Roth, Su 2022). What follows from Y is post-processing.
- Y is on the lattice of `fedmf.mechanisms.noise`; its part of finite precision is in `fedmf.accounting.floating_point`.

**Secrets.** S so far is as secret as the key of the epoch. It is in memory; on disk it is in a box (`fedmf.sealing`) whose key follows
from the epoch's, so that nobody opens it once that key has given way to the next one. Each box has a fresh nonce: a round may be
run again, with other clients heard, and what a failed commit left on the disk must not differ from the next box by a difference of
counts. The noise of Y follows from the epoch's key too: a round that is run again has the same.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedmf.checks import check_noise, check_open_unit, check_positive
from fedmf.errors import RunDirectoryError
from fedmf.mechanisms.noise import NoiseRow, released
from fedmf.randomness import SecretKey, gaussian_row
from fedmf.sealing import seal, unseal
from fedmf.updates.vectors import Vector

RATE = 1.0
FURTHEST = 2.0**20  # c and 1/c, so that no update over- or underflows
LARGEST_CHANGE = 30.0  # of log c, more than from one end to the other
MORE_NOISE = 1.01  # on the sums, what a count may cost that is not told how much
MOST_NOISE = 0.1  # of z_s, a share of the clients asked in an epoch
_COUNT = "count"


@dataclass(frozen=True)
class AdaptiveClipping:
    """How the clip norm moves: to the `quantile` of the clients' norms, with `rate`, by counts with noise `noise`, z_s.

    `noise` None is for `make_plan` to choose, such that it costs 1 % more noise on the sums; it stays None in a plan without
    noise, whose counts have none either. Raises `SettingError` for a quantile outside (0, 1), and for other values that are
    not above 0.
    """

    quantile: float
    rate: float = RATE
    noise: float | None = None

    def __post_init__(self) -> None:
        check_open_unit("adapt", self.quantile)
        check_positive("adapt_rate", self.rate)
        if self.noise is not None:
            check_positive("adapt_noise", self.noise)
            check_noise("adapt_noise", self.noise)

    def moved(self, scale: Vector | None, count: float, heard: int) -> Vector:
        """Return the next epoch's scale 1/c (1,) float32, from the last one's (None: 1) and the count, of `heard` clients.

        Of public values alone, and itself exact in float32: clients and server use the same number.
        """
        share = min(max(count / heard, 0.0), 1.0) if heard else self.quantile
        change = math.exp(min(self.rate * (share - self.quantile), LARGEST_CHANGE))
        moved = (1.0 if scale is None else float(scale[0])) * change
        return np.array([min(max(moved, 1 / FURTHEST), FURTHEST)], np.float32)


def noisy_count(total: int, key: SecretKey, noise: float) -> float:
    """Return the count of the epoch of `key`, with noise: the same whenever it is asked for."""
    row = NoiseRow(np.zeros(1), 1.0, gaussian_row(key.derive("clip count"), 0, 1))
    return float(released(np.array([total], np.float64), row, noise, np.float64)[0])


def seal_count(total: int, key: SecretKey, step: int) -> str:
    """Return the count after round `step` (0-based) of the epoch of `key` in a box, as hexadecimal digits: new at each call."""
    return seal(_box_key(key), {_COUNT: total.to_bytes(8, "little")}, b"%d " % step)[_COUNT].hex()


def open_count(sealed: str, key: SecretKey, step: int) -> int:
    """Return what `seal_count` was given. Raises `RunDirectoryError` for the box of another epoch or round, or a damaged one."""
    opened = unseal(_box_key(key), {_COUNT: bytes.fromhex(sealed)}, b"%d " % step)
    if _COUNT not in opened:
        raise RunDirectoryError(
            f"the count of the clip norm after round {step + 1} of its epoch is not the run's. Restore the checkpoint folder."
        )
    return int.from_bytes(opened[_COUNT], "little")


def _box_key(key: SecretKey) -> bytes:
    return key.derive("box of the clip count").reveal()
