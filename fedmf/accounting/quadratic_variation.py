"""The quadratic-variation bound: the theorem behind `accountant=tight`, in certified arithmetic.

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

Every function here errs upwards: an integral is bounded by chords of the convex function Y expm1(s p^2) of Y
with the exact masses of the cells, and `ROUNDING` covers what float64 loses.

    >>> round(log_exponential_moment(300.0, tau=1.0, keep_probability=0.001), 3)
    227.079
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from fedmf.accounting.gaussian import gaussian_delta, gaussian_epsilon
from fedmf.accounting.renyi import log_sum

Floats = npt.NDArray[np.float64]

CELLS = 8192
LEFT = -13.0  # below, Phi(-13) times the largest value
RIGHT_SLACK = 80.0  # the right tail weighs e^-80 at most
ROUNDING = 1e-9  # relative; float64 loses below 1e-10 of a mass, a moment or a d_mu here
UNDERFLOW = 1e-300  # what squares of the smallest p may lose
LARGEST_EXPONENT = 1e4  # of s p^2; beyond, rounding is not covered
LARGEST_EPSILON = 1e6
UNIT = 2.0**-52


@dataclass(frozen=True)
class Setting:
    """What the theorem is about: n = E K coordinates of squared signal-to-noise tau, and gamma in (0, 1).

    coordinates: n, a real number of at least 1.
    """

    tau: float
    keep_probability: float
    coordinates: float

    def hits(self, stop: float | None) -> float:
        """Return n pi, which formula (C) pays for coordinates that reach b = `stop`; 0 without a stop."""
        if stop is None:
            return 0.0
        pi = hitting_probability(stop, tau=self.tau, keep_probability=self.keep_probability)
        return self.coordinates * pi


@dataclass(frozen=True)
class Parameters:
    """A choice of the free numbers of the theorem, each a valid one: it must not depend on data.

    scaled_lam: s = lam tau. tail: what exp(-s mu^2/tau + n psi) is held to; it fixes mu. stop: b of formula (C),
    None for formula (A).
    """

    scaled_lam: float
    tail: float
    stop: float | None = None


def log_exponential_moment(
    scaled_lam: float, *, tau: float, keep_probability: float, stop: float | None = None
) -> float:
    """Return an upper bound of psi, or of psi_b with b = `stop`, for s = `scaled_lam` >= 0; some 1e-6 above it.

    Infinite where rounding is not covered (s p^2 above 10^4).
    """
    root = math.sqrt(tau)
    end = root + math.sqrt(2 * (scaled_lam + RIGHT_SLACK))
    # Of P's mass beyond `end`, c Phi(-end) + gamma Phi(root - end), with the largest value e^s - 1.
    parts: list[float] = [scaled_lam + log_ndtr(root - end)]
    largest = scaled_lam
    if stop is not None:
        stopped = stopped_ratio(stop, keep_probability)
        largest = scaled_lam * stopped**2
        hit = (stop + tau / 2) / root * (1 + ROUNDING)
        if hit < end:
            end, parts = hit, []
        parts.append(_log_hitting(stop, tau, keep_probability) + float(log_expm1(largest)))
    if not largest <= LARGEST_EXPONENT:
        return math.inf
    parts.append(_log_integral(scaled_lam, tau, keep_probability, end))
    return float(np.logaddexp(0.0, np.logaddexp.reduce(parts) + ROUNDING)) + UNDERFLOW


def hitting_probability(stop: float, *, tau: float, keep_probability: float) -> float:
    """Return pi, the probability under P that log L reaches b = `stop` > 0 by time tau, rounded upwards.

    The reflection principle for a Brownian motion with drift -1/2 (probability c) or +1/2 (gamma).
    """
    return min(1.0, math.exp(_log_hitting(stop, tau, keep_probability) + ROUNDING))


def least_stop(tau: float) -> float:
    """Return the smallest b that formula (C) allows, rounded upwards: b^2 >= 3 tau + tau^2/4."""
    return math.sqrt(3 * tau + tau * tau / 4) * (1 + ROUNDING)


def certified_epsilon(setting: Setting, parameters: Parameters, delta: float) -> float:
    """Return an epsilon that formula (A), or (C) with a stop, proves at `delta`; infinite if there is none.

    Both directions, zero-out adjacency. Nothing of the result rests on how `parameters` were found.
    """
    stop = parameters.stop
    if stop is not None and stop < least_stop(setting.tau):
        return math.inf
    psi = log_exponential_moment(
        parameters.scaled_lam, tau=setting.tau, keep_probability=setting.keep_probability, stop=stop
    )
    budget = delta - (parameters.tail + setting.hits(stop)) * (1 + ROUNDING)
    exponent = setting.coordinates * psi - math.log(parameters.tail)
    mu_squared = setting.tau * exponent / parameters.scaled_lam  # where exp(-s mu^2/tau + n psi) is the tail
    return certified_gaussian_epsilon(mu_squared, budget)


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


def _log_integral(s: float, tau: float, gamma: float, end: float) -> float:
    """log of an upper bound of E[Y expm1(s p^2); x < end] by chords in Y, which is linear in L."""
    root = math.sqrt(tau)
    edges = np.linspace(LEFT, end, CELLS + 1)
    log_l = root * edges - tau / 2
    log_y = np.logaddexp(math.log1p(-gamma), math.log(gamma) + log_l)
    log_value = log_y + log_expm1(s * np.exp(2 * (math.log(gamma) + log_l - log_y)))
    log_mass = log_cell_masses(edges)
    # Where in its cell the conditional mean of L lies: the weight of the cell's upper end.
    place = np.expm1(log_cell_masses(edges - root) - log_mass - log_l[:-1]) + ROUNDING
    rise = np.expm1(np.diff(log_l))
    weight = np.clip(place / np.maximum(rise, ROUNDING**2), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        low = log_mass + log_value[:-1] + np.log1p(-weight)
        high = log_mass + log_value[1:] + np.log(weight)
    left = log_ndtr(LEFT) + float(log_value[0])
    return float(np.logaddexp(left, log_sum(np.concatenate([low, high]))))


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


def stopped_ratio(stop: float, gamma: float) -> float:
    """Return p* = gamma e^b/(c + gamma e^b) at b = `stop`."""
    return 1 / (1 + math.exp(-stop) * (1 - gamma) / gamma)


def _log_hitting(stop: float, tau: float, gamma: float) -> float:
    root = math.sqrt(tau)
    far, near = log_ndtr((-stop - tau / 2) / root), log_ndtr((-stop + tau / 2) / root)
    without = math.log1p(-gamma) + np.logaddexp(far, near - stop)
    return float(np.logaddexp(without, math.log(gamma) + np.logaddexp(near, far + stop)))
