"""What finite precision costs: the law of what a run releases, compared with that of the theorem's real numbers.

Setting: docs/theory.md, section 1; the noise is that of `fedmf.mechanisms.noise`. An epoch has T rounds and a lower
triangular C with positive diagonal, b_t = 1/C_tt, c its largest column norm; z = sigma/(c Delta) is the noise multiplier, u =
2^-53. (For a tree C is the inverse of what its stream emits, whose columns are no longer than those of the tree.)

**Theorem.** If the mechanism with real numbers is (epsilon, delta)-DP, by zero-out or replacement, for adaptive streams with
one participation an epoch, then what is released is (epsilon + 2 a, e^a delta + (1 + e^(epsilon + a)) e^a B)-DP with

    a = A(mu) + A(mu_q),   A(m) = m^2/2 + m sqrt(2 log(1/beta)),   beta = `BETA`,   B = 2 beta + E T (d + T + 3) `TAIL`,
    mu = (sum over epochs of mu_e^2)^(1/2) + E^(1/2) 2 h n/z,   mu_q = (d E T)^(1/2) `LAW_ERROR`,
    mu_e = d^(1/2) 2^-44 c sum_t b_t + (d^(1/2) + 14) `rounding` + 4 u T n/z,   h = 540 u.

*Law.* The fresh half-integers are independent, each of a law within LAW_ERROR of that of floor(2^44 Z) + 1/2, but for the
mass TAIL. Pure closeness composes: Bun, Steinke 2016, Propositions 3.3 and 3.5. That is A(mu_q).

*Coupling.* Let Z be real, zeta = floor(2^44 Z) + 1/2, U = 2^44 Z - zeta, q_t the whole number to which the mean was rounded,
and X_t = f_t (q_t + 2^44 Z_t). What is released, a function of q_t + zeta_t = floor(X_t/f_t) + 1/2, is a function of X_t. Given the
past of X, the clients' coins and data, X_t is normal with the standard deviation sigma b_t of the real mechanism and a mean
that differs from the real one by rho_t: what was rounded so far. Both differ in law by a shift d_t = rho_t/(sigma b_t) that the
past decides, so that D_alpha <= alpha mu^2/2 in both directions if sum_t ||d_t||^2 <= mu^2, and [Bun, Steinke, 3.5] gives A(mu).

*The shift.* An error of the row emitted in round s reaches round t as C_ts, so that it moves all means together by c times
its length, in 2-norm over the rounds; errors of several rounds add up (triangle inequality). Rounding to the lattice and U_s
are half a step f_s each: d^(1/2) 2^-44 c b_s. Float64 in the stream errs relative to normal rows, whose 2-norm is at most d^(1/2) + 14 times
their standard deviation but for TAIL: `NoiseStream.rounding`. The sum that is rounded to the lattice errs by 4 u of the
clients' sum, of norm n Delta at most. The clients' float64 sum itself, out of the rotation, is off by h n Delta (docs/theory.md, section
3, with u for 2^-24): that is one number in both worlds in every round but the differing client's, so it counts once an epoch.

*A count.* An epoch may also release one whole number of at most n T with noise of standard deviation z_s, on the lattice z_s 2^-44
(`fedmf.clip_norm`). That is one more draw, whose shift is (1 + ..) 2^-44 + 4 u n T/z_s: its square is added to mu^2.

*Both worlds.* P(A) <= e^a P_real(A) + .., then the real mechanism, then back: 2 a.

`spent` states epsilon at delta as that of real numbers at (1 - 2 a) delta, plus 2 a: e^a (1 - 2 a) <= 1 - a, and a delta is at
least the rest while epsilon is at most `caveats.LARGEST`. Above it no statement calls a run private.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedmf.accounting.caveats import LARGEST
from fedmf.checks import rounded_up
from fedmf.errors import SettingError
from fedmf.normals import LAW_ERROR, REACH, STEP, TAIL, UNIT

BETA = 1e-30
MOST = 5e-4  # of a: beyond, a plan that claims an epsilon is refused
SUM_ERROR = 540 * UNIT  # h
DIGITS = 2  # to which `a` is rounded up: the same on machines whose tables differ by rounding
_MARGIN = 1.001  # of the arithmetic below


@dataclass(frozen=True)
class FloatingPoint:
    """What finite precision adds to the epsilon of a run: 2 `a`, but for probabilities below `beta`.

    `phi` is the share of rounding in the streams in `mu`, relative to that of the lattice.
    """

    a: float
    beta: float
    phi: float


def finite_precision(
    epochs: Iterable[tuple[float, float]],
    *,
    dimension: int,
    rounds: int,
    cohort_size: int,
    noise_multiplier: float,
    delta: float,
    count_noise: float | None = None,
) -> FloatingPoint:
    """Return the price of a run of `epochs`, each with c sum_t b_t and `NoiseStream.rounding`; `rounds` of one epoch.

    The theorem above; `noise_multiplier` is z > 0, on the SUM. `count_noise` is z_s > 0 where each epoch releases a count.
    """
    of_epochs, d = list(epochs), float(dimension)
    draws = len(of_epochs) * rounds
    lattice = [math.sqrt(d) * STEP * shares for shares, _ in of_epochs]
    in_streams = [(math.sqrt(d) + REACH) * rounding for _, rounding in of_epochs]
    of_sum = cohort_size / noise_multiplier
    moved = [one + more + 4 * UNIT * rounds * of_sum for one, more in zip(lattice, in_streams, strict=True)]
    of_counts = []
    if count_noise is not None:
        of_counts = [STEP + 4 * UNIT * rounds * cohort_size / count_noise] * len(of_epochs)
    mu = math.hypot(*moved, *of_counts) + math.sqrt(len(of_epochs)) * 2 * SUM_ERROR * of_sum
    missed = 2 * BETA + (draws * (d + rounds + 3) + len(of_counts)) * TAIL
    a = _MARGIN * (_cost(mu) + _cost(math.sqrt(d * draws + len(of_counts)) * LAW_ERROR))
    rest = (1 + math.exp(LARGEST + MOST)) * (1 + 2 * MOST) * missed
    a = float(rounded_up(max(a, rest / delta), DIGITS))
    return FloatingPoint(a, BETA, sum(in_streams) / sum(lattice))


def stated(price: FloatingPoint | None) -> FloatingPoint | None:
    """Return what a statement may add for finite precision: None for more than 2 `MOST`."""
    return None if price is None or price.a > MOST else price


def check_price(price: FloatingPoint, what: str, dimension: int) -> None:
    """Raise `SettingError` where `price` is more than a plan may cost; `what` names the rounds."""
    if price.a > MOST:
        raise SettingError(
            f"the rounding of {what} with {dimension} coordinates adds {2 * price.a:.2g} to epsilon; it must add at most "
            f"{2 * MOST:g}. Take shorter epochs, a better conditioned mechanism or a larger delta."
        )


def _cost(mu: float) -> float:
    """Return A(mu): two laws within D_alpha <= alpha mu^2/2 differ by a factor e^A but for mass BETA (Bun, Steinke 2016)."""
    return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / BETA))
