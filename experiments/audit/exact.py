"""The exact epsilon of the audited law, by simulation, beside the one that is stated.

What the accountant states is an upper bound; with masks it comes from Renyi divergence, and of a law that is known
exactly the exact number can be had. With L the log-likelihood ratio of "in" over "out" and W standard exponential,
independent of it,

    delta(epsilon) = E_in[max(0, 1 - e^(epsilon - L))] = P_in[L - W > epsilon],

so the epsilon at delta is the (1 - delta)-quantile of L - W, of which order statistics give a confidence interval
that is exact for any number of draws. The other direction has -L, with the draws from "out"; the larger one counts.
"""

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import numpy as np
from scipy.stats import binom

from experiments.audit.law import Float64, Law
from fedmf.errors import SettingError


@dataclass(frozen=True)
class ExactEpsilon:
    """An epsilon in nats, estimated by simulation, and the interval [low, high] that holds it with `confidence`."""

    estimate: float
    low: float
    high: float
    confidence: float


def exact_epsilon(
    law: Law, delta: float, *, draws: int, confidence: float, rng: np.random.Generator
) -> ExactEpsilon:
    """Return the epsilon of `law` at `delta`, with every client the canary equally often; 0 or above.

    Each direction's interval has half of the error. Raises `SettingError` as `check_reach` does.
    """
    check_reach(delta, draws=draws, confidence=confidence)
    both = []
    for present, sign in ((True, 1.0), (False, -1.0)):
        losses = sign * law.scores(draws, present=present, rng=rng) - rng.standard_exponential(draws)
        both.append(upper_quantile(losses, delta, error=_error_of_one(confidence)))
    estimate, low, high = (max(0.0, *values) for values in zip(*both, strict=True))
    return ExactEpsilon(estimate, low, high, confidence)


def check_reach(delta: float, *, draws: int, confidence: float) -> None:
    """Raise `SettingError` for a delta that so many draws do not reach: one whose interval has no draw at its end.

    The largest draw lies above the quantile unless none does, (1 - delta)^draws, and the smallest below unless all are
    above.
    """
    if _ranks(draws, delta, _error_of_one(confidence)) is None:
        least = _rounded_up(-math.expm1(math.log(_error_of_one(confidence) / 2) / draws))
        raise SettingError(
            f"delta is {delta:g}; the exact epsilon of pipelines with a keep probability below 1 is simulated with {draws} "
            f"draws, which reach deltas from {least:g} to {1 - least:.7g} at the level of this audit. Give such a delta, or "
            "keep_probabilities=[1.0]."
        )


def _rounded_up(value: float) -> float:
    """Return the next number of two digits.

    >>> _rounded_up(0.000181)
    0.00019
    """
    unit = Decimal(1).scaleb(Decimal(value).adjusted() - 1)
    return float(Decimal(value).quantize(unit, ROUND_CEILING))


def _error_of_one(confidence: float) -> float:
    """Return the share of the error that one direction has."""
    return (1 - confidence) / 2


def _ranks(draws: int, tail: float, error: float) -> tuple[int, int] | None:
    """Return how many of the largest draws to leave out for the lower end and the upper one; None: there are too few."""
    most, least = (int(binom.ppf(share, draws, tail)) for share in (1 - error / 2, error / 2))
    return (most, least) if least >= 1 and most < draws else None


def upper_quantile(values: Float64, tail: float, *, error: float) -> tuple[float, float, float]:
    """Return (estimate, low, high) of the number that a draw exceeds with probability `tail`.

    Of independent draws `values` (draws,); the interval misses it with probability at most `error`. Of n draws the
    number above the quantile is binomial, so that with B its (1 - error/2)-quantile and A its (error/2)-quantile the
    (B + 1)-th largest draw lies above and the A-th largest below with probability at most error/2 each.
    """
    descending = np.sort(values)[::-1]
    ranks = _ranks(len(values), tail, error)
    if ranks is None:
        raise SettingError(
            f"draws is {len(values)}, too few for a tail of {tail:g} at error {error:g}; give more of them."
        )
    most, least = ranks
    middle = int(np.clip(round(len(values) * tail), 1, len(values)))
    return float(descending[middle - 1]), float(descending[most]), float(descending[least - 1])
