"""Lower bounds on the root loss of every factorization of a workload, and Henzinger et al.'s upper bound.

All hold for one participation: sensitivity is the largest column norm of C.
"""

import math
from collections.abc import Sequence

import numpy as np

from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.optimum import fixed_point
from fedmf.mechanisms.run_factorization import RunFactorization
from fedmf.mechanisms.workload import Workload


def lower_bound(workload: Workload) -> float:
    """Return the best lower bound known on root loss: the certificate of the solver."""
    return run_lower_bound((workload,))


def run_lower_bound(workloads: Sequence[Workload]) -> float:
    """Return the best lower bound known on the root loss of a run whose noise restarts, with equal noise in every epoch.

    The root of the sum of the epochs' squared bounds: C is block-diagonal, so that their losses add up.
    """
    return math.hypot(*(solution.lower for solution in fixed_point.certified_run(tuple(workloads))))


def relative_gap(factorization: Factorization | RunFactorization) -> float:
    """Return root_loss / lower_bound - 1: an upper bound on the distance from the optimum."""
    if isinstance(factorization, RunFactorization):
        return factorization.root_loss / run_lower_bound(factorization.workloads) - 1
    return factorization.root_loss / lower_bound(factorization.workload) - 1


def henzinger_lower(rounds: int) -> float:
    """Return sqrt(n) (2 + ln((2n+1)/5) + ln(2n+1)/(2n)) / pi, a lower bound for prefix sums.

    Source: Henzinger, Upadhyay, Upadhyay, "Almost tight error bounds on differentially private continual
    counting" (SODA 2023), Theorem 3.

    >>> round(henzinger_lower(16), 6)
    5.088292
    """
    n = rounds
    return float(np.sqrt(n) * (2 + np.log((2 * n + 1) / 5) + np.log(2 * n + 1) / (2 * n)) / np.pi)


def henzinger_upper(rounds: int) -> float:
    """Return sqrt(n) (1 + ln(4n/5) / pi), stated for the square-root factorization of prefix sums.

    Their Theorem 2. It fails for n <= 6, where their factorization is above it; a test shows both sides.

    >>> round(henzinger_upper(16), 6)
    7.246054
    """
    return float(np.sqrt(rounds) * (1 + np.log(4 * rounds / 5) / np.pi))
