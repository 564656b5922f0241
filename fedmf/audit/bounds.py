"""Lower bounds on epsilon from attacks that were carried out: what an audit may conclude, and with which confidence.

A mechanism that is (epsilon, delta)-DP limits every attack that tells "the client took part" from "its vector was zero"
(Kairouz, Oh, Viswanath 2015, Theorem 2.1): for both kinds of mistake

    true positive rate <= e^epsilon * false positive rate + delta.

From counted successes follows, with the exact binomial bounds of Clopper and Pearson (1934), an epsilon that the mechanism
exceeds. The bound is true whatever the attack was, if the attack was fixed before the counted runs were seen.
One run with many canaries gives a bound by Theorem 5.2 of Steinke, Nasr, Jagielski (NeurIPS 2023).
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom, binomtest

from fedmf.checks import check_below_one, check_open_unit
from fedmf.errors import SettingError

LARGEST_EPSILON = 50.0  # here randomised response is right with probability 1 in float64: nothing is refuted
TOLERANCE = 1e-9


def epsilon_lower_bound(
    true_positives: int,
    members: int,
    false_positives: int,
    non_members: int,
    *,
    delta: float,
    confidence: float,
) -> float:
    """Return an epsilon, in nats, that the mechanism exceeds or equals with the given confidence; 0 or above.

    Of `members` runs with the client in, the test said "in" in `true_positives`; of `non_members` runs with its vector
    zeroed, in `false_positives`. Each of the two rates has half of the allowed error:

        epsilon >= log((lowest TPR - delta) / highest FPR).

    Holds for independent runs. Counts that are no counts are a `ValueError` of scipy.

    >>> round(epsilon_lower_bound(300, 500, 10, 500, delta=0.05, confidence=0.95), 3)
    2.629
    """
    check_open_unit("delta", delta)
    check_open_unit("confidence", confidence)
    lowest = float(binomtest(true_positives, members).proportion_ci(confidence).low)
    highest = float(binomtest(false_positives, non_members).proportion_ci(confidence).high)
    return max(0.0, math.log((lowest - delta) / highest)) if lowest > delta else 0.0


def one_run_p_value(correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """Return the largest probability of so many right guesses that an (epsilon, delta)-DP mechanism allows.

    Each of `canaries` m clients is in or zeroed out by its own fair coin; the attacker guesses `guesses` r of
    the coins, of its choice, and `correct` v of them are right. With f(v) = P[Binomial(r, q) >= v] and
    q = e^epsilon / (e^epsilon + 1), Theorem 5.2 of Steinke, Nasr, Jagielski (NeurIPS 2023):

        P[at least v right] <= f(v) + 2 m delta max_{i = 1..v} (f(v - i) - f(v)) / i.

    (Theirs runs to i = m; beyond v the numerator stays and the denominator grows.) `guesses` is fixed beforehand.
    """
    check_below_one("delta", delta)
    if not 0 <= correct <= guesses <= canaries or canaries < 1:
        raise SettingError(
            f"correct is {correct}, guesses {guesses}, canaries {canaries}; each must be at most the next."
        )
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, rate))
    steps = np.arange(1, correct + 1)
    below = np.cumsum(binom.pmf(correct - steps, guesses, rate))  # f(v - i) - f(v), summed from the top
    return min(1.0, tail + 2 * canaries * delta * float(np.max(below / steps, initial=0.0)))


def one_run_lower_bound(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> float:
    """Return the epsilon, in nats, up to which the guesses refute (epsilon, delta)-DP; 0 where none is refuted.

    The paper's own example (its Appendix D):

    >>> round(one_run_lower_bound(75, 100, 1000, delta=1e-4, confidence=0.95), 3)
    0.673
    """
    check_open_unit("confidence", confidence)

    def excess(epsilon: float) -> float:
        return one_run_p_value(correct, guesses, canaries, epsilon=epsilon, delta=delta) - (1 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    return max(0.0, float(brentq(excess, 0.0, LARGEST_EPSILON, xtol=TOLERANCE)) - TOLERANCE)
