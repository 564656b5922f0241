"""One door to all families: a name, a workload and settings in, a factorization out."""

import inspect
import time
from types import ModuleType

import numpy as np

from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.mechanisms.arrays import Arrays
from fedmf.mechanisms.cache import cached
from fedmf.mechanisms.factorization import Factorization
from fedmf.mechanisms.families import (
    banded_low_rank,
    banded_toeplitz,
    binary_tree,
    blt,
    honaker_full,
    honaker_online,
    independent,
    optimal,
    optimal_dense,
    sqrt_toeplitz,
)
from fedmf.mechanisms.workload import Workload

# A family is a module with fit(workload, **settings), which computes arrays that hold at least `sensitivity`
# and `per_round_error`, and stream(workload, arrays), which deploys them.
_MODULES: dict[str, ModuleType] = {
    "optimal": optimal,
    "sqrt_toeplitz": sqrt_toeplitz,
    "independent": independent,
    "binary_tree": binary_tree,
    "honaker_online": honaker_online,
    "honaker_full": honaker_full,
    "optimal_dense": optimal_dense,
    "banded_low_rank": banded_low_rank,
    "banded_toeplitz": banded_toeplitz,
    "blt": blt,
}
FAMILIES = tuple(_MODULES)


def design(family: str, workload: Workload, **settings: int | None) -> Factorization:
    """Return the factorization of `workload` by `family`, from the cache on disk
    where it was computed before.

    `settings` are those of the family's `fit`, such as `buffers`. Raises `SettingError` for an unknown
    family, a setting the family does not have, or a value out of range.
    """
    check_choice("family", family, FAMILIES)
    module = _MODULES[family]
    known = settings_of(family)
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise SettingError(
            f"{family} has no setting {', '.join(unknown)}; it has {', '.join(known) if known else 'none'}."
        )
    arrays = cached(family, {"workload": workload, **settings}, lambda: _fit(module, workload, settings))
    return Factorization(
        family,
        workload,
        float(arrays["sensitivity"]),
        arrays["per_round_error"].astype(np.float64),
        module.stream(workload, arrays),
        float(arrays["seconds"]),
    )


def settings_of(family: str) -> tuple[str, ...]:
    """Return the names of the settings that `family` takes.

    >>> settings_of("optimal")
    ('buffers',)
    """
    return tuple(inspect.signature(_MODULES[family].fit).parameters)[1:]


def suits(family: str, workload: Workload) -> bool:
    """Return whether `family` takes a workload of this many rounds:
    those with dense matrices have a limit.
    """
    return workload.rounds <= getattr(_MODULES[family], "MOST_ROUNDS", workload.rounds)


def _fit(module: ModuleType, workload: Workload, settings: dict[str, int | None]) -> Arrays:
    begun = time.thread_time()
    arrays: Arrays = module.fit(workload, **settings)
    return {**arrays, "seconds": np.array(time.thread_time() - begun)}
