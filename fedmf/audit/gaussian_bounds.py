"""Lower bounds on mu, for mechanisms that claim to be no worse than one Gaussian.

mu-GDP (Dong, Roth, Su 2022, Definition 4): telling "in" from "out" is no easier than telling N(mu, 1) from N(0, 1),

    true positive rate <= Phi(Phi^-1(false positive rate) + mu)   of every test.

That is a whole curve of (epsilon, delta) in one number, and a run with keep probability 1 claims exactly this with
mu = sqrt(E)/noise multiplier. So every test refutes at its best point of the curve, and few false positives are
not needed (Nasr et al., USENIX Security 2023). An epsilon that is computed from such a mu holds within the family
only: it assumes that the mechanism's curve is a Gaussian's. The bounds of `fedmf.audit.bounds` assume nothing.

Many runs with one canary, or one run with many (Mahloujifar, Melis, Chaudhuri, ICML 2025).
"""

import math
from collections.abc import Callable

from scipy.special import ndtr, ndtri

from fedmf.audit.bounds import check_guesses, highest_rate, lowest_rate
from fedmf.checks import check_open_unit
from fedmf.errors import SettingError

LARGEST_MU = 60.0  # here a test is right with probability 1 in float64: nothing is refuted
TOLERANCE = 1e-9  # of mu
SLACK = 1e-12  # relative, of sums of probabilities: rounding must not refute anything


def mu_lower_bound(
    true_positives: float, members: int, false_positives: float, non_members: int, *, confidence: float
) -> float:
    """Return a mu that the mechanism exceeds or equals with the given confidence; 0 or above.

    The counts are those of `epsilon_lower_bound`, and half of the error goes to each rate:

        mu >= Phi^-1(lowest TPR) - Phi^-1(highest FPR).

    Holds for independent runs and a test that was fixed beforehand. Raises `SettingError` for counts that do not fit.

    >>> round(mu_lower_bound(700, 1000, 300, 1000, confidence=0.95), 3)  # 1.049 is what the counted rates say
    0.883
    """
    check_open_unit("confidence", confidence)
    error = (1 - confidence) / 2
    low = lowest_rate(true_positives, members, error=error)
    high = highest_rate(false_positives, non_members, error=error)
    return max(
        0.0, float(ndtri(low) - ndtri(high))
    )  # the quantile of a rate of 0 is -infinity, that of 1 infinity


def f_dp_one_run_p_value(
    correct: int, guesses: int, canaries: int, *, inverse: Callable[[float], float]
) -> float:
    """Return the most probable an f-DP mechanism can make it that so many guesses are right.

    Each of `canaries` m clients is in or out by its own fair coin; the attacker guesses `guesses` r of the coins, of
    its choice, and `correct` c of them are right. `inverse` maps a true positive rate to the least false positive
    rate that a symmetric trade-off f allows with it, g = (1 - f)^-1. Mahloujifar, Melis, Chaudhuri (ICML 2025): let
    p_j be the probability of j right guesses, and

        R_i = sum_{j >= i} j p_j / m,        W_i = sum_{j >= i} (r - j) p_j / m.

    Of one client and one i, compare the releases in which it is guessed right and i or more are right, under its coin
    and under the other one, where it is guessed wrong and i - 1 or more are right. With the mean over clients and
    coins, and 1 - f concave,

        g(R_i) <= W_{i-1}.

    To put P[c or more right] = tau the least total probability puts all of it at c, R_c = c tau/m,
    W_c = (r - c) tau/m, and then goes down by the least steps,

        W_{i-1} = max(W_i, g(R_i)),      R_{i-1} = R_i + (i-1)/(r-i+1) (W_{i-1} - W_i).

    (Weight above c raises R_i and lowers W_{i-1}; longer steps raise all that follow.) What is left over goes to "none
    right". So tau is impossible if R_0 + W_0 > r/m, and the answer is the largest tau that is not. It is what these
    inequalities give, and no smaller than the truth; those about other sets of counts than "i or more" are left out,
    as in the paper's algorithm. `guesses` is fixed beforehand. Raises `SettingError` for counts that do not fit.
    """
    check_guesses(correct, guesses, canaries)
    if not _refutes(correct, guesses, canaries, 1.0, inverse):
        return 1.0
    low, high = -800.0, 0.0  # log tau; the lower end is below the smallest float, and possible
    for _ in range(60):
        middle = (low + high) / 2
        if _refutes(correct, guesses, canaries, math.exp(middle), inverse):
            high = middle
        else:
            low = middle
    return math.exp(high)


def f_dp_one_run_mu_lower_bound(correct: int, guesses: int, canaries: int, *, confidence: float) -> float:
    """Return the mu up to which the guesses refute mu-GDP, with the given confidence; 0 where none is refuted.

    See `f_dp_one_run_p_value`. Whatever refutes mu refutes all smaller ones, which are stronger claims.

    >>> round(f_dp_one_run_mu_lower_bound(75, 100, 100, confidence=0.95), 3)
    0.404
    """
    check_open_unit("confidence", confidence)
    check_guesses(correct, guesses, canaries)
    correct, guesses, canaries = int(correct), int(guesses), int(canaries)
    error = 1 - confidence
    if not _refutes(correct, guesses, canaries, error, gaussian_inverse(0.0)):
        return 0.0
    low, high = 0.0, LARGEST_MU
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        if _refutes(correct, guesses, canaries, error, gaussian_inverse(middle)):
            low = middle
        else:
            high = middle
    return low


def gaussian_inverse(mu: float) -> Callable[[float], float]:
    """Return g of mu-GDP, g(y) = Phi(Phi^-1(y) - mu): the least false positive rate at a true positive rate y.

    >>> round(gaussian_inverse(1.0)(0.5), 4)
    0.1587
    """
    if not mu >= 0:
        raise SettingError(f"mu is {mu}; it must be 0 or above.")
    return lambda rate: float(ndtr(ndtri(rate) - mu))


def _refutes(
    correct: int, guesses: int, canaries: int, error: float, inverse: Callable[[float], float]
) -> bool:
    """Whether P[`correct` or more right] = `error` takes more probability than there is."""
    right, wrong = correct * error / canaries, (guesses - correct) * error / canaries
    most = guesses / canaries * (1 + SLACK)
    for i in range(correct, 0, -1):
        step = inverse(min(1.0, right)) - wrong
        if step <= 0:  # nothing changes further down
            break
        right, wrong = right + (i - 1) / (guesses - i + 1) * step, wrong + step
        if right + wrong > most:
            return True
    return right + wrong > most
