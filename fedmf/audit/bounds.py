"""Lower bounds on epsilon from attacks that were carried out: what an audit may conclude, and how surely.

A mechanism that is (epsilon, delta)-DP limits every attack that tells "the client took part" from "its vector
was zero" (Kairouz, Oh, Viswanath 2015, Theorem 2.1): for both kinds of mistake

    true positive rate <= e^epsilon * false positive rate + delta.

From counted successes follows, with Clopper and Pearson's (1934) exact binomial bounds, an epsilon below
which the mechanism cannot lie. The bound is true whatever the attack was; a better attack only makes it
larger. The test must have been fixed before the counted runs were seen.

One run with many canaries gives a bound by Theorem 5.2 of Steinke, Nasr, Jagielski (NeurIPS 2023).
"""

import math
from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.stats import beta, binom

from fedmf.checks import (
    check_at_least,
    check_below_one,
    check_non_negative,
    check_open_unit,
    is_finite_number,
)
from fedmf.errors import SettingError

LARGEST_EPSILON = 50.0  # here randomised response is right with probability 1 in float64: nothing is refuted
TOLERANCE = 1e-9


def lowest_rate(successes: float, trials: int, *, error: float) -> float:
    """Return the Clopper-Pearson lower bound on a success probability.

    It is wrong with probability at most `error`. `successes` may be fractional (an expected count), which is for
    planning only.

    >>> round(lowest_rate(10, 10, error=0.05), 6)  # 0.05 ** (1 / 10)
    0.741134
    """
    _check_count("successes", successes, trials)
    check_open_unit("error", error)
    return 0.0 if successes == 0 else float(beta.ppf(error, successes, trials - successes + 1))


def highest_rate(successes: float, trials: int, *, error: float) -> float:
    """Return the Clopper-Pearson upper bound on a success probability; see `lowest_rate`.

    >>> round(highest_rate(0, 10, error=0.05), 6)  # 1 - 0.05 ** (1 / 10)
    0.258866
    """
    _check_count("successes", successes, trials)
    check_open_unit("error", error)
    return 1.0 if successes == trials else float(beta.ppf(1 - error, successes + 1, trials - successes))


def epsilon_lower_bound(
    true_positives: float,
    members: int,
    false_positives: float,
    non_members: int,
    *,
    delta: float,
    confidence: float,
) -> float:
    """Return an epsilon, in nats, that the mechanism exceeds or equals with the given confidence; 0 or above.

    Of `members` runs with the client in, the test said "in" in `true_positives`; of `non_members` runs with
    its vector zeroed, in `false_positives`. Half of the allowed error goes to each of the two rates:

        epsilon >= log((lowest TPR - delta) / highest FPR).

    Holds for the adjacency that the two kinds of runs differ by, for independent runs, and for a test that
    was fixed beforehand. Raises `SettingError` for counts that do not fit and for values out of range.

    >>> round(epsilon_lower_bound(300, 500, 10, 500, delta=0.05, confidence=0.95), 3)
    2.629
    """
    check_open_unit("delta", delta)
    check_open_unit("confidence", confidence)
    error = (1 - confidence) / 2
    excess = lowest_rate(true_positives, members, error=error) - delta
    if excess <= 0:
        return 0.0
    return max(0.0, math.log(excess / highest_rate(false_positives, non_members, error=error)))


def one_run_p_value(correct: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """Return the most probable an (epsilon, delta)-DP mechanism can make it that so many guesses are right.

    Each of `canaries` m clients is in or zeroed out by its own fair coin; the attacker guesses `guesses` r of
    the coins, of its choice, and `correct` v of them are right. With f(v) = P[Binomial(r, q) >= v] and
    q = e^epsilon / (e^epsilon + 1), Theorem 5.2 of Steinke, Nasr, Jagielski (NeurIPS 2023):

        P[at least v right] <= f(v) + 2 m delta max_{i = 1..v} (f(v - i) - f(v)) / i.

    (Theirs runs to i = m; beyond v the numerator stays and the denominator grows.) Holds for the adjacency
    that one coin decides. `guesses` is fixed beforehand. Raises `SettingError` for counts that do not fit.
    """
    check_non_negative("epsilon", epsilon)
    check_below_one("delta", delta)
    check_guesses(correct, guesses, canaries)
    rate = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, rate))
    if delta == 0 or correct == 0:
        return tail
    steps = np.arange(1, correct + 1)
    below = np.cumsum(binom.pmf(correct - steps, guesses, rate))  # f(v - i) - f(v), summed from the top
    return min(1.0, tail + 2 * canaries * delta * float(np.max(below / steps)))


def one_run_lower_bound(
    correct: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> float:
    """Return the epsilon, in nats, up to which the guesses refute (epsilon, delta)-DP.

    It is 0 where none is refuted. See `one_run_p_value`. Whatever refutes epsilon refutes all smaller ones, which
    are stronger claims. The paper's own example (its Appendix D):

    >>> round(one_run_lower_bound(75, 100, 1000, delta=1e-4, confidence=0.95), 3)
    0.673
    """
    check_open_unit("confidence", confidence)
    error = 1 - confidence
    p_value = partial(one_run_p_value, correct, guesses, canaries, delta=delta)
    if p_value(epsilon=0.0) >= error:
        return 0.0
    root = brentq(lambda epsilon: p_value(epsilon=epsilon) - error, 0.0, LARGEST_EPSILON, xtol=TOLERANCE)
    return max(0.0, float(root) - TOLERANCE)


def check_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Raise `SettingError` unless 0 <= correct <= guesses <= canaries, of which there is one at least."""
    check_at_least("canaries", canaries, 1)
    check_at_least("guesses", guesses, 0)
    check_at_least("correct", correct, 0)
    if not correct <= guesses <= canaries:
        raise SettingError(
            f"correct is {correct}, guesses {guesses}, canaries {canaries}; each must be at most the next."
        )


def _check_count(name: str, count: float, trials: int) -> None:
    check_at_least("trials", trials, 1)
    if not (is_finite_number(count) and 0 <= count <= trials):
        raise SettingError(f"{name} is {count} of {trials} trials; it must lie between 0 and {trials}.")
