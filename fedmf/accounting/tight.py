"""The quadratic-variation bound: the theorem behind `accountant=tight`, in certified arithmetic, and its best numbers.

Per coordinate with squared signal-to-noise tau = (kappa_inf/sigma)^2, keep probability gamma, c = 1 - gamma,
and x a standard normal under Q (the client's vector zeroed):

    L = exp(sqrt(tau) x - tau/2),   Y = c + gamma L (the likelihood ratio),   p = gamma L / Y,
    psi = log E[Y exp(s p^2)]  with s = lam tau,      d_mu(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

Theorem. Zero-out adjacency, P with the client, Q with its vector zeroed; E epochs with restart, which may be
chosen adaptively, one participation in each, fresh secret Bernoulli(gamma) masks; K = (kappa_2/kappa_inf)^2, any
real number of at least 1; n = E K. For all eps, mu > 0, s >= 0 both hockey-stick divergences, P over Q (add) and
Q over P (remove), at e^eps are

    (A)  <= d_mu(eps) + exp(-s mu^2/tau + n psi),
    (B)  <= d_mu(eps)  with  mu^2 = n tau,
    (C)  <= d_mu(eps) + exp(-s mu^2/tau + n psi_b) + n pi      for b^2 >= 3 tau + tau^2/4:

C stops a coordinate where log L reaches b: psi_b has p held at p* = gamma e^b/(c + gamma e^b) there, and pi is the
probability of getting there. The theorem is this project's own and not refereed; proof, needs and tests:
docs/theory.md.

epsilon(tight) = min(Renyi, A, B, C), each at the full delta. The functions of the certificate err upwards: an integral is
bounded by chords of the convex function Y expm1(s p^2) of Y with the exact masses of the cells, and `ROUNDING` covers what
float64 loses. The search over s = lam tau, the share of delta for the tail and, in (C), the share for the stops takes fewer
cells; the choice it ends with is certified once, so a poor search costs tightness and never truth.

    >>> event = EpochEvent(noise_multiplier=0.0860827, keep_probability=0.01, linf_over_l2=0.0059351)
    >>> round(quadratic_variation_epsilon(event, 16, 1e-5), 3)  # by Renyi divergence 2
    1.843
    >>> round(float(Setting(tau=1.0, keep_probability=0.001, coordinates=1.0).psi(300.0)), 3)
    227.079
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, logsumexp

from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon

Floats = np.typing.NDArray[np.float64]

CELLS, FEW_CELLS = 8192, 768  # of a certificate, and of the search
LEFT = -13.0  # below, Phi(-13) times the largest value
RIGHT_SLACK = 80.0  # the right tail weighs e^-80 at most
ROUNDING = 1e-9  # relative; float64 loses below 1e-10 of a mass, a moment or a d_mu here
UNDERFLOW = 1e-300  # what squares of the smallest p may lose
LARGEST_EXPONENT = 1e4  # of s p^2; beyond, rounding is not covered
LARGEST_EPSILON = 1e6
LARGEST_TAU = 1e4
SMALLEST_DELTA = 1e-290  # its shares must not underflow
UNIT = 2.0**-52
TAIL_SHARES = (0.7, 0.5, 0.1, 0.03, 0.01, 0.001)
HIT_SHARES = (0.1, 0.01, 0.001)
SMALLEST_LAM, LARGEST_LAM, LARGEST_STOPPED_LAM = 1e-5, 3e3, 1e6  # of s = lam tau
GRID = 64
REMEMBERED = 1024


@dataclass(frozen=True)
class Setting:
    """What the theorem is about: n = E K coordinates of squared signal-to-noise tau, and gamma in (0, 1).

    coordinates: n, a real number of at least 1.
    """

    tau: float
    keep_probability: float
    coordinates: float

    def hits(self, stop: float | None) -> float:
        """Return n pi, which formula (C) pays for coordinates that reach b = `stop`, rounded upwards; 0 without a stop.

        pi is the probability under P that log L reaches b > 0 by time tau: the reflection principle for a Brownian motion
        with drift -1/2 (probability c) or +1/2 (gamma).
        """
        if stop is None:
            return 0.0
        pi = math.exp(_log_hitting(stop, self.tau, self.keep_probability) + ROUNDING)
        return self.coordinates * min(1.0, pi)

    def psi(self, scaled_lam: Floats | float, stop: float | None = None, *, cells: int = CELLS) -> Floats:
        """Return an upper bound of psi, or of psi_b with b = `stop`, for s = `scaled_lam` >= 0, in its shape.

        Some 1e-6 above it with the usual `cells`. Infinite where rounding is not covered (s p^2 above 10^4).
        """
        tau, gamma = self.tau, self.keep_probability
        s, root = np.asarray(scaled_lam, np.float64), math.sqrt(tau)
        end = root + math.sqrt(2 * (float(s.max()) + RIGHT_SLACK))
        # Of P's mass beyond `end`, c Phi(-end) + gamma Phi(root - end), with the largest value e^s - 1.
        right, largest = s + log_ndtr(root - end), s
        if stop is not None:
            stopped = 1 / (1 + math.exp(-stop) * (1 - gamma) / gamma)  # p*
            largest = s * stopped**2
            hit = (stop + tau / 2) / root * (1 + ROUNDING)
            if hit < end:
                end, right = hit, np.full_like(s, -math.inf)
            right = np.logaddexp(right, _log_hitting(stop, tau, gamma) + log_expm1(largest))
        parts = np.logaddexp(right, _log_integral(s, tau, gamma, end, cells))
        bound = np.logaddexp(0.0, parts + ROUNDING) + UNDERFLOW
        return np.where(largest <= LARGEST_EXPONENT, bound, math.inf)

    def squared_mu(self, s: Floats | float, psi: Floats, tail: float) -> Floats:
        """Return the mu^2 at which exp(-s mu^2/tau + n psi) is `tail`."""
        return self.tau * (self.coordinates * psi - math.log(tail)) / s


@lru_cache(maxsize=REMEMBERED)  # planners and runs ask again and again
def quadratic_variation_epsilon(event: EpochEvent, epochs: int, delta: float) -> float:
    """Return min(A, B, C) of `epochs` >= 1 equal epochs in nats, for gamma < 1.

    Both directions of zero-out adjacency, adaptive streams, one participation an epoch, fresh secret masks. Infinite
    where the bound is not finite, or out of the range of its arithmetic.
    """
    if event.noise_multiplier == 0:
        return math.inf
    signal = event.linf_over_l2 / event.noise_multiplier
    setting = Setting(signal * signal, event.keep_probability, epochs * max(1.0, event.ratio))
    total = setting.coordinates * setting.tau
    if not (0 < setting.tau <= LARGEST_TAU and total < LARGEST_EPSILON and delta > SMALLEST_DELTA):
        return math.inf
    formulas: list[Sequence[float | None]] = [[None], [_stop(setting, share * delta) for share in HIT_SHARES]]
    found = [certified_epsilon(setting, delta, *search(setting, stops, delta)) for stops in formulas]
    return min(certified_gaussian_epsilon(total, delta), *found)


def certified_epsilon(
    setting: Setting, delta: float, scaled_lam: float, tail: float, stop: float | None = None
) -> float:
    """Return an epsilon that formula (A), or (C) with a stop, proves at `delta`; infinite if there is none.

    Both directions, zero-out adjacency. `scaled_lam` is s = lam tau > 0; exp(-s mu^2/tau + n psi) is held to `tail` > 0, which
    fixes mu; `stop` is b of formula (C). The result is valid however they were found; they must not depend on data.
    """
    if stop is not None and stop < least_stop(setting.tau):
        return math.inf
    budget = delta - (tail + setting.hits(stop)) * (1 + ROUNDING)
    psi = setting.psi(scaled_lam, stop)
    return certified_gaussian_epsilon(float(setting.squared_mu(scaled_lam, psi, tail)), budget)


def certified_gaussian_epsilon(mu_squared: float, delta: float) -> float:
    """Return the smallest epsilon found with d_mu(epsilon) <= `delta`, all roundings upwards; infinite if none.

    With mu^2 = n tau this is formula (B).
    """
    mu = math.sqrt(mu_squared * (1 + ROUNDING)) if 0 <= mu_squared < math.inf else math.inf
    if not (mu * mu < LARGEST_EPSILON and delta > 0):
        return math.inf
    epsilon = gaussian_epsilon(mu, delta / (1 + ROUNDING))
    step = UNIT * (epsilon or mu)
    while gaussian_delta(epsilon, mu) * (1 + ROUNDING) > delta:
        epsilon, step = epsilon + step, 2 * step
    return epsilon


def search(
    setting: Setting, stops: Sequence[float | None], delta: float
) -> tuple[float, float, float | None]:
    """Return (s, tail, stop) that give nearly the least epsilon: the best of a grid, improved by a local search."""
    from scipy.optimize import fmin  # 0.1 s, which a client need not spend

    free = {stop: delta - setting.hits(stop) for stop in stops}  # what the stops leave of delta

    def epsilon_of(s: float, psi: Floats, share: float, stop: float | None) -> float:
        if not 0 < share < 1:
            return math.inf
        mu_squared = float(setting.squared_mu(s, psi, share * free[stop]))
        if not 0 <= mu_squared < LARGEST_EPSILON:
            return math.inf
        return gaussian_epsilon(math.sqrt(mu_squared), free[stop] * (1 - share))

    starts = []
    for stop in free:
        grid = np.geomspace(SMALLEST_LAM, LARGEST_LAM if stop is None else LARGEST_STOPPED_LAM, GRID)
        psi = setting.psi(grid, stop, cells=FEW_CELLS)
        for share in TAIL_SHARES:
            i = int(np.argmin(setting.squared_mu(grid, psi, share * free[stop])))
            starts.append((epsilon_of(grid[i], psi[i], share, stop), grid[i], share, stop))
    best, s, share, stop = min(starts, key=lambda start: start[0])

    def epsilon_at(point: Floats) -> float:
        s, share = np.exp(point)
        return epsilon_of(s, setting.psi(s, stop, cells=FEW_CELLS), share, stop)

    if 0 < best < math.inf:
        simplex = np.log([s, share]) + np.array([[0.0, 0.0], [0.3, 0.0], [0.0, -0.3]])
        s, share = np.exp(
            fmin(epsilon_at, simplex[0], xtol=3e-3, ftol=1e-6, initial_simplex=simplex, disp=False)
        )
    return float(s), float(share) * free[stop], stop


def _stop(setting: Setting, hits: float) -> float:
    """Return b with n pi(b) near `hits` or below, at least what formula (C) allows."""
    from scipy.optimize import brentq

    low = least_stop(setting.tau)
    if setting.hits(low) <= hits:
        return low
    high = 2 * low
    while setting.hits(high) > hits:
        high *= 2
    return float(brentq(lambda stop: setting.hits(stop) - hits, high / 2, high, rtol=1e-4))


def least_stop(tau: float) -> float:
    """Return the smallest b that formula (C) allows, rounded upwards: b^2 >= 3 tau + tau^2/4."""
    return math.sqrt(3 * tau + tau * tau / 4) * (1 + ROUNDING)


def _log_integral(s: Floats, tau: float, gamma: float, end: float, cells: int = CELLS) -> Floats:
    """log of an upper bound of E[Y expm1(s p^2); x < end] by chords in Y, which is linear in L; shape of `s`."""
    root = math.sqrt(tau)
    edges = np.linspace(LEFT, end, cells + 1)
    log_l = root * edges - tau / 2
    log_y = np.logaddexp(math.log1p(-gamma), math.log(gamma) + log_l)
    log_value = log_y + log_expm1(s[..., None] * np.exp(2 * (math.log(gamma) + log_l - log_y)))
    log_mass = log_cell_masses(edges)
    # Where in its cell the conditional mean of L lies: the weight of the cell's upper end.
    place = np.expm1(log_cell_masses(edges - root) - log_mass - log_l[:-1]) + ROUNDING
    weight = np.clip(place / np.maximum(np.expm1(np.diff(log_l)), ROUNDING**2), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        low = log_mass + np.log1p(-weight) + log_value[..., :-1]
        high = log_mass + np.log(weight) + log_value[..., 1:]
    left = log_ndtr(LEFT) + log_value[..., :1]
    return np.asarray(logsumexp(np.concatenate([left, low, high], axis=-1), axis=-1))


def log_cell_masses(edges: Floats) -> Floats:
    """Return the logarithms of the standard normal masses between increasing edges: shape [len(edges) - 1]."""
    # Right of 0 the mirrored cell: the tail that is nearer keeps the digits.
    outer, inner = np.where(edges[:-1] >= 0, (-edges[1:], -edges[:-1]), (edges[:-1], edges[1:]))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(log_ndtr(inner) + np.log(-np.expm1(log_ndtr(outer) - log_ndtr(inner))))


def log_expm1(u: Floats | float) -> Floats:
    """Return log(e^u - 1) of u >= 0: -infinity at 0, any shape, float64."""
    with np.errstate(divide="ignore"):
        return np.asarray(u + np.log(-np.expm1(-np.asarray(u))))


def _log_hitting(stop: float, tau: float, gamma: float) -> float:
    root = math.sqrt(tau)
    far, near = log_ndtr((-stop - tau / 2) / root), log_ndtr((-stop + tau / 2) / root)
    without = math.log1p(-gamma) + np.logaddexp(far, near - stop)
    return float(np.logaddexp(without, math.log(gamma) + np.logaddexp(near, far + stop)))
