"""Which free numbers of the quadratic-variation bound give the smallest epsilon, and that epsilon, certified.

epsilon(tight) = min(Renyi, A, B, C), each at the full delta; see `fedmf.accounting.quadratic_variation`. The
search is in plain floats over s = lam tau, the share of delta for the tail and, in formula (C), the share for
the stops. The choice it ends with is evaluated once with certified arithmetic, so a poor search costs tightness
and never truth.

    >>> event = EpochEvent(noise_multiplier=0.0860827, keep_probability=0.01, linf_over_l2=0.0059351)
    >>> round(quadratic_variation_epsilon(event, 16, 1e-5), 3)  # by Renyi divergence 2
    1.843
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedmf.accounting.conversion import least
from fedmf.accounting.epoch import EpochEvent
from fedmf.accounting.gaussian import gaussian_epsilon
from fedmf.accounting.quadratic_variation import (
    LARGEST_EPSILON,
    LEFT,
    RIGHT_SLACK,
    Floats,
    Parameters,
    Setting,
    certified_epsilon,
    certified_gaussian_epsilon,
    least_stop,
    log_expm1,
    stopped_ratio,
)

SHARES = (0.7, 0.5, 0.1, 0.03, 0.01, 0.001)
HIT_SHARES = (0.1, 0.01, 0.001)
SMALLEST_LAM, LARGEST_LAM, LARGEST_STOPPED_LAM = 1e-5, 3e3, 1e6  # of s = lam tau
COARSE, FINE, ZOOMS = 64, 17, 2
NODES = 640
LARGEST_TAU = 1e4
SMALLEST_DELTA = 1e-290  # its shares must not underflow
SHARE_TOLERANCE = 0.03  # of log share
PROMISING = 1.02
LOWEST = -1e300  # in the place of log 0
REMEMBERED = 1024


@lru_cache(maxsize=REMEMBERED)  # planners and runs ask again and again
def quadratic_variation_epsilon(
    event: EpochEvent, epochs: int, delta: float, *, worth: float = math.inf
) -> float:
    """Return min(A, B, C) of `epochs` >= 1 equal epochs in nats, for gamma < 1.

    Both directions of zero-out adjacency, adaptive streams, one participation an epoch, fresh secret masks. Infinite
    where the bound is not finite, or out of the range of its arithmetic. `worth`: what is far above this is not
    searched further.
    """
    if event.noise_multiplier == 0:
        return math.inf
    setting = make_setting(event, epochs)
    total = setting.coordinates * setting.tau
    if not (0 < setting.tau <= LARGEST_TAU and total < LARGEST_EPSILON and delta > SMALLEST_DELTA):
        return math.inf
    best = certified_gaussian_epsilon(total, delta)
    found = (
        certified_epsilon(setting, chosen, delta) for chosen in _choices(setting, delta, min(worth, best))
    )
    return min([best, *found])


def make_setting(event: EpochEvent, epochs: int) -> Setting:
    """Return n = E K, tau and gamma of `epochs` epochs."""
    signal = event.linf_over_l2 / event.noise_multiplier
    return Setting(
        tau=signal * signal,
        keep_probability=event.keep_probability,
        coordinates=epochs * max(1.0, event.ratio),
    )


def _choices(setting: Setting, delta: float, worth: float) -> list[Parameters]:
    """The best parameters of (A), and of (C) with stops that make n pi a small share of delta, if either is `worth` it."""
    stops = sorted({_stop_of(setting, share * delta) for share in HIT_SHARES})
    found = [_best(_Family(setting, None), delta, worth)]
    found.append(
        min((_best(_Family(setting, stop), delta, worth) for stop in stops), key=lambda pair: pair[0])
    )
    return [
        parameters for epsilon, parameters in found if parameters is not None and epsilon < worth * PROMISING
    ]


def _stop_of(setting: Setting, hits: float) -> float:
    """Return b with n pi(b) <= `hits`, as small as formula (C) allows."""
    low = high = least_stop(setting.tau)
    while setting.hits(high) > hits:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if setting.hits(middle) > hits else (low, middle)
    return high


def _best(family: "_Family", delta: float, worth: float) -> tuple[float, Parameters | None]:
    """(epsilon, parameters) with the least epsilon in floats over the share of delta for the tail."""
    free = delta - family.hits
    if free <= 0:
        return math.inf, None

    def epsilon_of(share: float) -> float:
        return _float_epsilon(family.least_squared_mu(share * free)[0], free * (1 - share))

    epsilon, share = min((epsilon_of(share), share) for share in SHARES)
    if not epsilon < worth * PROMISING**2:
        return math.inf, None
    i = SHARES.index(share)
    low, high = SHARES[min(i + 1, len(SHARES) - 1)], SHARES[max(i - 1, 0)]
    epsilon, share = min((epsilon, share), least(epsilon_of, low, high, tolerance=SHARE_TOLERANCE))
    tail = share * free
    return epsilon, Parameters(family.least_squared_mu(tail)[1], tail, family.stop)


def _float_epsilon(mu_squared: float, delta: float) -> float:
    usable = 0 <= mu_squared < LARGEST_EPSILON and 0 < delta < 1
    return gaussian_epsilon(math.sqrt(mu_squared), delta) if usable else math.inf


@dataclass(frozen=True)
class _Family:
    """Formula (A) if `stop` is None, else (C): psi in floats, and the least mu^2 for a given tail."""

    setting: Setting
    stop: float | None

    @cached_property
    def hits(self) -> float:
        return self.setting.hits(self.stop)

    def least_squared_mu(self, tail: float) -> tuple[float, float]:
        """(mu^2, s): quasi-convex in s, because psi is convex in s; a grid in log s and zooms around its best."""
        grid, psi = self._coarse
        for _ in range(ZOOMS):
            i = int(np.argmin(self._squared_mu(grid, psi, tail)))
            low, high = grid[max(i - 1, 0)], grid[min(i + 1, len(grid) - 1)]
            grid = np.geomspace(low, high, FINE)
            psi = self._psi(grid)
        values = self._squared_mu(grid, psi, tail)
        i = int(np.argmin(values))
        return float(values[i]), float(grid[i])

    def _squared_mu(self, s: Floats, psi: Floats, tail: float) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            values = self.setting.tau * (self.setting.coordinates * psi - math.log(tail)) / s
        return np.where(np.isnan(values), math.inf, values)

    @cached_property
    def _coarse(self) -> tuple[Floats, Floats]:
        largest = LARGEST_LAM if self.stop is None else LARGEST_STOPPED_LAM
        grid = np.geomspace(SMALLEST_LAM, largest, COARSE)
        return grid, self._psi(grid)

    def _psi(self, s: Floats) -> Floats:
        """psi, or psi_b, of each s by the trapezoidal rule in logarithms."""
        tau, gamma = self.setting.tau, self.setting.keep_probability
        root = math.sqrt(tau)
        end = root + math.sqrt(2 * (min(float(s[-1]), LARGEST_LAM) + RIGHT_SLACK))
        if self.stop is not None:
            end = min(end, (self.stop + tau / 2) / root)
        x, step = np.linspace(LEFT, end, NODES, retstep=True)
        log_l = root * x - tau / 2
        log_y = np.logaddexp(math.log1p(-gamma), math.log(gamma) + log_l)
        square = np.exp(2 * (math.log(gamma) + log_l - log_y))
        log_weight = log_y - x * x / 2 + math.log(step / math.sqrt(2 * math.pi))
        logs = log_expm1(s[:, None] * square) + log_weight
        if self.stop is None:
            return np.asarray(np.logaddexp(0.0, _log_sums(logs)))
        logs[:, -1] -= math.log(2)  # half a cell at the stop
        largest = log_expm1(s * stopped_ratio(self.stop, gamma) ** 2)
        hit = math.log(max(self.hits / self.setting.coordinates, 1e-300)) + largest
        return np.asarray(np.logaddexp(0.0, np.logaddexp(hit, _log_sums(logs))))


def _log_sums(logs: Floats) -> Floats:
    """log sum exp over the last axis."""
    largest = np.maximum(np.max(logs, axis=-1), LOWEST)
    with np.errstate(divide="ignore"):
        return np.asarray(largest + np.log(np.sum(np.exp(logs - largest[..., None]), axis=-1)))
