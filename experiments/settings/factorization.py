"""The factorization of a run from its settings: family, what it is fitted to, and the server's optimizer."""

import math
from collections.abc import Sequence

from client.imports import import_path
from experiments.settings.mechanism import WorkloadName
from fedmf.checks import check_choice
from fedmf.errors import SettingError
from fedmf.mechanisms import (
    FAMILIES,
    Family,
    RunFactorization,
    Workload,
    design,
    design_run,
    momentum,
    of_run,
    run_lower_bound,
)
from fedmf.mechanisms.family import resolve
from fedmf.mechanisms.run_factorization import costed_on
from fedmf.mechanisms.schedules import rates


def find_family(name: str, key: str = "mechanism.name") -> Family:
    """Return the family of that name, or the `Family` at an import path, MODULE:FAMILY.

    Raises `SettingError` about the setting `key` if nothing or something else is found there.

    >>> find_family("optimal").settings
    ('buffers',)
    """
    if ":" not in name:
        check_choice(key, name, FAMILIES)
        return resolve(name)
    found = import_path(name, key)
    if not isinstance(found, Family):
        raise SettingError(
            f"{key} is {name!r}, which is of type {type(found).__name__}; it must be a fedmf.mechanisms.Family, such "
            "as strategy_family(NAME, C) or noising_family(NAME, C^-1) makes of a matrix or of a function of "
            "the workload."
        )
    return resolve(found)


LONGEST_CERTIFIED = (
    2**14
)  # rounds of a run up to which the least error is solved for, where that is not the mechanism itself


def factorize(
    name: str, fitted_to: WorkloadName, rounds: int, epochs: int, *, beta: float, schedule: str
) -> RunFactorization:
    """Return each epoch's factorization by the family `name`, costed on what the server makes of the whole run.

    With workload=run each is fitted to that; the others are fitted to one epoch, the same in all of them. `beta` and
    `schedule` are those of the server's optimizer. Raises `SettingError` as `design` does.
    """
    alone = None
    if fitted_to is not WorkloadName.run:
        alone = momentum(rounds, beta if fitted_to is WorkloadName.momentum else 0.0)
    return fit(find_family(name), run_workloads(rounds, epochs, beta=beta, schedule=schedule), alone)


def fit(
    family: Family, run: Sequence[Workload], alone: Workload | None, **settings: int | None
) -> RunFactorization:
    """Return a run's factorization by `family`: each epoch's fitted to the `run`, or all to the epoch `alone`."""
    if alone is None:
        return design_run(family, run, **settings)
    return costed_on([design(family, alone, **settings)] * len(run), run)


def run_workloads(rounds: int, epochs: int, *, beta: float, schedule: str) -> tuple[Workload, ...]:
    """Return the workload of each epoch of `rounds` rounds: momentum, and the schedule over all rounds of the run."""
    shares = None if schedule == "constant" else rates(schedule, rounds * epochs)
    return of_run(rounds, epochs, beta, shares)


def lowest_rms_error(run: RunFactorization) -> float | None:
    """Return the certificate that no mechanism which restarts every epoch, with equal noise in all, goes below.

    It is the root mean square over all rounds of a run; None where it would take too long to find.
    """
    rounds = len(run.per_round_error)
    if run.family != "optimal" and rounds > LONGEST_CERTIFIED:
        return None
    return run_lower_bound(run.workloads) / math.sqrt(rounds)
