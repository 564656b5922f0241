"""What mechanism.json says: the error of every round of a run beside that of independent noise, for the report."""

import math
from collections.abc import Sequence
from typing import Any

from fedmf.mechanisms import design_run, run_lower_bound
from fedmf.plan import Plan

# Rounds of a run up to which the least possible error is solved for where the mechanism is not the optimum itself.
_LONGEST_CERTIFIED = 2**14


def mechanism_file(plan: Plan, misgivings: Sequence[str]) -> dict[str, Any]:
    """Return the entries of mechanism.json; `misgivings` are sentences about what was asked for."""
    factorization = plan.factorization
    independent = design_run("independent", factorization.workloads)
    rounds = len(factorization.per_round_error)
    is_certified = factorization.family == "optimal" or rounds <= _LONGEST_CERTIFIED
    best = run_lower_bound(factorization.workloads) / math.sqrt(rounds) if is_certified else None
    return {
        "family": factorization.family,
        "epochs": len(factorization.epochs),
        "rounds_per_epoch": factorization.rounds,
        "per_round_error": factorization.per_round_error.tolist(),
        "independent_per_round_error": independent.per_round_error.tolist(),
        "rms_error": factorization.rms_error,
        "lowest_rms_error": best,
        "update_noise_std": _update_noise_std(plan),
        "misgivings": list(misgivings),
    }


def _update_noise_std(plan: Plan) -> float | None:
    """Return z Delta_2/(gamma n) for the radius accounted, None without noise: what one independent round leaves on a coordinate of the mean update.

    In units of the update. Times `per_round_error`, which counts the sensitivity, it is the noise in the accumulated updates.
    """
    if plan.noise_multiplier == 0:
        return None
    assert plan.counted_radius is not None  # make_plan refuses noise without an L2 bound
    return plan.noise_multiplier * plan.counted_radius / plan.denominator
