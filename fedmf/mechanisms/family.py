"""One door to all families: a family, a workload and settings in, a factorization out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.mechanisms.cache import cached
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families.banded_low_rank import BANDED_LOW_RANK
from fedmf.mechanisms.families.banded_toeplitz import BANDED_TOEPLITZ
from fedmf.mechanisms.families.binary_tree import BINARY_TREE
from fedmf.mechanisms.families.blt import BLT
from fedmf.mechanisms.families.custom import verified
from fedmf.mechanisms.families.honaker_full import HONAKER_FULL
from fedmf.mechanisms.families.honaker_online import HONAKER_ONLINE
from fedmf.mechanisms.families.independent import INDEPENDENT
from fedmf.mechanisms.families.normalized_sqrt import NORMALIZED_SQRT
from fedmf.mechanisms.families.optimal import OPTIMAL
from fedmf.mechanisms.families.optimal_dense import OPTIMAL_DENSE
from fedmf.mechanisms.families.protocol import Family
from fedmf.mechanisms.families.sqrt_blt import SQRT_BLT
from fedmf.mechanisms.families.sqrt_toeplitz import SQRT_TOEPLITZ
from fedmf.mechanisms.fitted import Fitted
from fedmf.mechanisms.optimum.fixed_point import Solution, certified_run
from fedmf.mechanisms.run_factorization import RunFactorization
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
    """Return the factorization of `workload` by `family`: one of FAMILIES by name, or one of your own.

    `settings` are those of the family, such as `buffers`. Results of the package's families are kept in the
    cache on disk. A family of your own is fitted anew each time and costed by what its stream emits, see
    `families.custom`. Raises `SettingError` for an unknown family, a setting the family does not have, or a
    value out of range.
    """
    return _design(resolve(family), workload, settings)


def design_run(
    family: str | Family, workloads: Sequence[Workload], **settings: int | None
) -> RunFactorization:
    """Return the factorization of each epoch of a run by `family`, fitted to `workloads`, which `of_run` makes.

    Each epoch's is fitted to the epoch's own rounds and all rounds that follow. Raises as `design` does.
    """
    chosen = resolve(family)
    for workload in workloads[:1]:  # all are as long: refused before the first is solved for
        chosen.check_rounds(workload)
    solutions = certified_run(workloads) if chosen.from_optimum else [None] * len(workloads)
    return RunFactorization(
        tuple(
            _design(chosen, workload, settings, solution)
            for workload, solution in zip(workloads, solutions, strict=True)
        )
    )


def _design(
    chosen: Family,
    workload: Workload,
    settings: Mapping[str, int | None],
    solution: Solution | None = None,
) -> Factorization:
    """Return what `design` does; `solution` is the optimum where it is known already."""
    chosen.check_settings(set(settings))
    chosen.check_rounds(workload)
    if _OWN.get(chosen.name) is not chosen:
        return verified(chosen, workload, settings)
    given: dict[str, Any] = dict(settings)
    if solution is not None:  # results are kept by what it is, not by the time that it took
        given["solution"] = replace(solution, seconds=0.0)
    fitted = Fitted.from_arrays(
        cached(
            chosen.name, {"workload": workload, **given}, lambda: _fit(chosen, workload, given).to_arrays()
        )
    )
    assert fitted.left is not None  # only a family of one's own may leave it out
    return Factorization(
        chosen.name,
        workload,
        fitted.sensitivity,
        fitted.per_round_error,
        fitted.left,
        chosen.stream(workload.rounds, fitted.tables),
        fitted.seconds + (0.0 if solution is None else solution.seconds),
    )


def resolve(family: str | Family) -> Family:
    """Return the family of that name, or the value itself if its name is its own.

    >>> resolve("optimal").settings
    ('buffers',)
    """
    if not isinstance(family, Family):
        check_choice("family", family, FAMILIES)
        return _OWN[family]
    if _OWN.get(family.name, family) is not family:
        raise SettingError(
            f"a family of your own is called {family.name!r}, as one of this package's is; rename it."
        )
    return family


def _fit(family: Family, workload: Workload, settings: Mapping[str, Any]) -> Fitted:
    """Return the fit with the CPU time that it took."""
    begun = time.thread_time()
    fitted = family.fit(workload, **settings)
    return replace(fitted, seconds=time.thread_time() - begun)
