"""Lower bounds on the root loss of every factorization of a workload.

They hold for one participation: sensitivity is the largest column norm of C.
"""

import math
from collections.abc import Sequence

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
