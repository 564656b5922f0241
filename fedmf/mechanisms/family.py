"""One entrance to all families: a family, a workload and settings in, a factorization out; and how far from the best it is.

Lower bounds hold for one participation: sensitivity is the largest column norm of C.
"""

import math
import time
from collections.abc import Mapping, Sequence

from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families import Family
from fedmf.mechanisms.families.banded_low_rank import BANDED_LOW_RANK
from fedmf.mechanisms.families.custom import check_stream_of
from fedmf.mechanisms.families.optimal import OPTIMAL, OPTIMAL_DENSE
from fedmf.mechanisms.families.optimised_toeplitz import BANDED_TOEPLITZ, BLT
from fedmf.mechanisms.families.square_roots import NORMALIZED_SQRT, SQRT_BLT, SQRT_TOEPLITZ
from fedmf.mechanisms.families.trees import BINARY_TREE, HONAKER_FULL, HONAKER_ONLINE, INDEPENDENT
from fedmf.mechanisms.optimum.fixed_point import Solution, certified, certified_run
from fedmf.mechanisms.run_factorization import RunFactorization, as_run
from fedmf.mechanisms.workload import Workload

_OWN: Mapping[str, Family] = {
    family.name: family
    for family in (
        OPTIMAL,
        SQRT_TOEPLITZ,
        INDEPENDENT,
        BINARY_TREE,
        HONAKER_ONLINE,
        HONAKER_FULL,
        OPTIMAL_DENSE,
        BANDED_LOW_RANK,
        BANDED_TOEPLITZ,
        BLT,
        SQRT_BLT,
        NORMALIZED_SQRT,
    )
}
FAMILIES = tuple(_OWN)


def design(family: str | Family, workload: Workload, **settings: int | None) -> Factorization:
    """Return the factorization of `workload` by `family`: one of FAMILIES by name, or a custom one.

    `settings` are those of the family, such as `buffers`. A custom family is checked, see `families.custom`. Raises
    `SettingError` for an unknown family, a setting the family does not have, or a value out of range.
    """
    chosen = resolve(family)
    chosen.check(workload, settings)
    return _design(chosen, workload, settings, certified(workload) if chosen.from_optimum else None)


def design_run(
    family: str | Family, workloads: Sequence[Workload], **settings: int | None
) -> RunFactorization:
    """Return the factorization of each epoch of a run by `family`, fitted to `workloads`, which `of_run` makes.

    Each epoch's is fitted to the epoch's own rounds and all rounds that follow. Raises as `design` does.
    """
    chosen = resolve(family)
    for workload in workloads:
        chosen.check(workload, settings)
    solutions = certified_run(tuple(workloads)) if chosen.from_optimum else [None] * len(workloads)
    return as_run(
        [
            _design(chosen, workload, settings, solution)
            for workload, solution in zip(workloads, solutions, strict=True)
        ]
    )


def _design(
    chosen: Family, workload: Workload, settings: Mapping[str, int | None], solution: Solution | None
) -> Factorization:
    """Return what `design` does, with the CPU time that it took; `solution` is the optimum where the family takes it."""
    begun = time.thread_time()
    stream = chosen.fit(workload, **settings, **({} if solution is None else {"solution": solution}))
    seconds = time.thread_time() - begun + (0.0 if solution is None else solution.seconds)
    if _OWN.get(chosen.name) is not chosen:
        check_stream_of(chosen, stream, workload)
    return Factorization(chosen.name, workload, stream, seconds)


def resolve(family: str | Family, argument: str = "family") -> Family:
    """Return the family of that name, or the value itself if its name is its own; `argument` is what an error calls it.

    >>> resolve("optimal").settings
    ('buffers',)
    """
    if not isinstance(family, Family):
        check_choice(argument, family, FAMILIES)
        return _OWN[family]
    if _OWN.get(family.name, family) is not family:
        raise SettingError(
            f"a custom family is called {family.name!r}, as one of this package's is; rename it."
        )
    return family


def lower_bound(workload: Workload) -> float:
    """Return the best lower bound known on the root loss of every factorization of a workload: the certificate of the solver."""
    return run_lower_bound((workload,))


def run_lower_bound(workloads: Sequence[Workload]) -> float:
    """Return the best lower bound known on the root loss of a run whose noise restarts, with equal noise in every epoch.

    The root of the sum of the epochs' squared bounds: C is block-diagonal, so that their losses add up.
    """
    return math.hypot(*(solution.lower for solution in certified_run(tuple(workloads))))


def relative_gap(factorization: Factorization | RunFactorization) -> float:
    """Return root_loss / lower_bound - 1: an upper bound on the distance from the optimum."""
    whole = (
        factorization if isinstance(factorization, RunFactorization) else RunFactorization((factorization,))
    )
    return factorization.root_loss / run_lower_bound(whole.workloads) - 1
