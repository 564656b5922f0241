"""What the attacker assumes about the releases: the exact law of its observations with the client in and out.

One observation is one coordinate of the canary in one epoch: the best linear estimate from all releases of
that epoch, in units of the stated noise, so that a kept copy of the canary's coordinate adds the epoch's
`shift`. How many copies are kept is what the secret masks decide: the canary's own, and those of companions
who sent the same known vector. Coordinates and epochs are independent, so the log-likelihood ratio, the best
of all tests (Neyman, Pearson 1933), is a sum over them of log mixtures of Gaussians.

Which client is the canary, and so in which round of each epoch it takes part, differs from run to run. The
attacker knows it: shifts, and with them the ratio, are those of that client. The threshold is one for all clients.
Every client is the canary of as many runs in as out, so that what bounds each client's rates bounds their means; and
counts of runs with unequal rates vary less than those of equal ones (Hoeffding 1956), so that the bounds on them hold.

The law also decides the threshold, by simulation and before any run is seen, so that all runs may be counted.
If the law is wrong the bound is still true, only weaker.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

Float64 = npt.NDArray[np.float64]
Clients = npt.NDArray[np.int64]

SIMULATED = 10_000  # draws with the client in, and as many with it out, from which the threshold is taken
CANDIDATES = 150  # thresholds looked at on each side
_BATCH = 1000  # draws scored at once, which bounds the memory


@dataclass(frozen=True)
class Law:
    """How many copies of a coordinate are kept, with what probability, and how each moves an observation.

    `kept_in` and `kept_out` (copies + 1,) are the probabilities of 0, 1, .. kept copies with the canary in
    and zeroed out; `shifts` (clients, epochs) what one copy adds in each epoch if that client is the canary,
    `noise` the standard deviation, both in units of the stated noise; `coordinates` how many coordinates the
    canary fills.
    """

    kept_in: Float64
    kept_out: Float64
    shifts: Float64
    coordinates: int
    noise: float = 1.0

    def score(self, observations: Float64, canaries: Clients) -> Float64:
        """Return the log-likelihood ratios of "in" over "out", (runs,).

        Of observations (runs, epochs, coordinates) in runs with these canaries (runs,), int64.
        """
        ratio = self._log_mixture(observations, canaries, self.kept_in)
        ratio -= self._log_mixture(observations, canaries, self.kept_out)
        return np.asarray(ratio.sum(axis=(1, 2)))

    def log_likelihood(self, observations: Float64, canaries: Clients, *, present: bool) -> float:
        """Return the log density of all observations, shapes as in `score`, but for a constant."""
        kept = self.kept_in if present else self.kept_out
        terms = self._log_mixture(observations, canaries, kept)
        return float(terms.sum() - terms.size * math.log(self.noise))

    def _log_mixture(self, observations: Float64, canaries: Clients, kept: Float64) -> Float64:
        """Log density of each observation times its noise, when copies are kept with probabilities `kept`."""
        copies = np.flatnonzero(kept)[:, None, None, None]  # in front, where sums over a few of them are fast
        offsets = self.shifts[canaries][:, :, None] * copies  # (copies, runs, epochs, 1)
        terms = ((observations - offsets) / self.noise) ** 2 / -2 + np.log(kept[copies])
        top = terms.max(axis=0)
        return np.asarray(top + np.log(np.exp(terms - top).sum(axis=0)))

    def simulate(self, canaries: Clients, *, present: bool, rng: np.random.Generator) -> Float64:
        """Return made-up observations (runs, epochs, coordinates) of the law itself in runs with these canaries."""
        shape = (len(canaries), self.shifts.shape[1], self.coordinates)
        probabilities = self.kept_in if present else self.kept_out
        if probabilities.max() == 1:
            kept = np.full(shape, probabilities.argmax())
        else:
            kept = rng.choice(len(probabilities), shape, p=probabilities)
        return self.shifts[canaries][:, :, None] * kept + self.noise * rng.standard_normal(shape)

    def scores(self, runs: int, *, present: bool, rng: np.random.Generator) -> Float64:
        """Return the log-likelihood ratios (runs,) of made-up runs, each client the canary of as many."""
        everyone = np.arange(runs) % len(self.shifts)
        batches = [everyone[start : start + _BATCH] for start in range(0, runs, _BATCH)]
        return np.concatenate(
            [self.score(self.simulate(who, present=present, rng=rng), who) for who in batches]
        )


def own_mask(keep_probability: float, companions: int = 0) -> tuple[Float64, Float64]:
    """Return (kept_in, kept_out) when everyone has a mask of their own: the stated law.

    >>> [probabilities.tolist() for probabilities in own_mask(0.25)]
    [[0.75, 0.25], [1.0, 0.0]]
    """
    copies = np.arange(companions + 2)
    return (
        binom.pmf(copies, companions + 1, keep_probability),
        binom.pmf(copies, companions, keep_probability),
    )


def shared_mask(keep_probability: float, companions: int) -> tuple[Float64, Float64]:
    """Return (kept_in, kept_out) when canary and companions share one mask: all copies are kept, or none.

    >>> [probabilities.tolist() for probabilities in shared_mask(0.25, 2)]
    [[0.75, 0.0, 0.0, 0.25], [0.75, 0.0, 0.25, 0.0]]
    """
    kept_in, kept_out = np.zeros(companions + 2), np.zeros(companions + 2)
    kept_in[[0, companions + 1]] = kept_out[[0, companions]] = 1 - keep_probability, keep_probability
    return kept_in, kept_out


@dataclass(frozen=True)
class Rule:
    """A decision rule fixed beforehand: claim "in" where side * score > threshold.

    With side -1 it claims "out" where the score is low, and the two kinds of runs change places: (epsilon, delta)-DP bounds both kinds of mistake alike.
    """

    side: int
    threshold: float

    def claims(self, scores: Float64) -> npt.NDArray[np.bool_]:
        """Return which runs the rule claims, (runs,), bool."""
        return self.side * scores > self.threshold


@dataclass(frozen=True)
class Count:
    """Successes of a rule over trials: `true_positives` of `members`, `false_positives` of `non_members`."""

    true_positives: int
    members: int
    false_positives: int
    non_members: int

    def bounded(self, bound: "Bound") -> float:
        """Return what `bound` concludes from the counts."""
        return bound(self.true_positives, self.members, self.false_positives, self.non_members)


def count(rule: Rule, scores: Float64, present: npt.NDArray[np.bool_]) -> Count:
    """Return how the rule did on runs with these scores (runs,) and coins `present` (runs,)."""
    claims = rule.claims(scores)
    member = present if rule.side > 0 else ~present
    return Count(
        int(claims[member].sum()), int(member.sum()), int(claims[~member].sum()), int((~member).sum())
    )


Bound = Callable[[float, int, float, int], float]
"""What follows from (true positives, members, false positives, non-members): a bound on epsilon or on mu."""


def choose_rule(law: Law, *, runs: int, bound: Bound, rng: np.random.Generator) -> Rule:
    """Return the rule of `law` that should give the largest `bound` from `runs` runs, half of them "in"."""
    scores_in = law.scores(SIMULATED, present=True, rng=rng)
    scores_out = law.scores(SIMULATED, present=False, rng=rng)
    return best_rule(scores_in, scores_out, runs=runs, bound=bound)


def best_rule(scores_in: Float64, scores_out: Float64, *, runs: int, bound: Bound) -> Rule:
    """Return the rule that promises the largest `bound` from `runs` runs, half of them "in".

    Judged on other scores of members and of non-members, by the bound that follows when both counts come out one
    standard deviation worse than expected: the largest expected bound alone would bet on a handful of false positives.
    """
    trials = max(1, runs // 2)
    found = [
        (_pessimistic(bound, members > threshold, others > threshold, trials), side, threshold)
        for side, members, others in ((1, scores_in, scores_out), (-1, -scores_out, -scores_in))
        for threshold in np.quantile(others, np.linspace(0.5, 0.999, CANDIDATES)).tolist()
    ]
    _, side, threshold = max(found)
    return Rule(side, threshold)


def _pessimistic(
    bound: Bound, hits: npt.NDArray[np.bool_], misses: npt.NDArray[np.bool_], trials: int
) -> float:
    """Return the bound from `trials` runs each, with both kinds of counts worse by one standard deviation."""
    hit, miss = float(hits.mean()), float(misses.mean())
    return bound(
        max(0.0, trials * hit - (trials * hit * (1 - hit)) ** 0.5),
        trials,
        min(float(trials), trials * miss + (trials * miss * (1 - miss)) ** 0.5),
        trials,
    )
