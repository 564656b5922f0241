"""The group `mechanism`, and the factorization of a run: family, what it is fitted to, and the server's optimizer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from client.imports import import_path
from experiments.settings.values import Choice, Option
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
from fedmf.mechanisms.run_factorization import as_run
from fedmf.mechanisms.schedules import rates
from fedmf.setting import REQUIRED, setting

WorkloadName = Literal["run", "prefix_sum", "momentum"]
"""What the mechanism is fitted to: the optimizer over the whole run, or one epoch of prefix sums or of its momentum."""

_OWN = 'MODULE:FAMILY, a fedmf.mechanisms.Family of your own (docs/tutorial.md, "Your own mechanism")'


@dataclass(frozen=True)
class MechanismSettings(Choice):
    """The factorization family that correlates the noise."""

    name: str = setting(REQUIRED, _OWN)


MechanismSettings.options = {
    name: Option(MechanismSettings, means)
    for name, means in {
        "optimal": "the optimal factorization, streamed with the fewest buffers that reach it",
        "optimal_dense": "the optimum as the papers compute it, dense: up to 512 rounds",
        "banded_toeplitz": "a Toeplitz matrix of few bands with optimised coefficients",
        "banded_low_rank": "Denisov et al.'s approximation: some diagonals and a matrix of low rank",
        "blt": "buffered linear Toeplitz matrices with optimised coefficients",
        "sqrt_toeplitz": "square-root factorization of a Toeplitz workload",
        "sqrt_blt": "the square-root factorization of a Toeplitz workload, in O(log T) buffers",
        "normalized_sqrt": "the square root with columns of equal length, in O(log T) buffers",
        "binary_tree": "the binary tree mechanism",
        "honaker_online": "the tree, each node estimated from its own subtree",
        "honaker_full": "the tree, prefix sums from all nodes by least squares",
        "independent": "independent noise in every round (DP-SGD, DP-FedAvg)",
        "custom": _OWN,
    }.items()
}


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
    name: str, fitted_to: str, rounds: int, epochs: int, *, beta: float, schedule: str
) -> RunFactorization:
    """Return each epoch's factorization by the family `name`, costed on what the server makes of the whole run.

    With workload=run each is fitted to that; the others are fitted to one epoch, the same in all of them. `beta` and
    `schedule` are those of the server's optimizer. Raises `SettingError` as `design` does.
    """
    alone = None
    if fitted_to != "run":
        alone = momentum(rounds, beta if fitted_to == "momentum" else 0.0)
    return fit(find_family(name), run_workloads(rounds, epochs, beta=beta, schedule=schedule), alone)


def fit(
    family: Family, run: Sequence[Workload], alone: Workload | None, **settings: int | None
) -> RunFactorization:
    """Return a run's factorization by `family`: each epoch's fitted to the `run`, or all to the epoch `alone`."""
    if alone is None:
        return design_run(family, run, **settings)
    epoch = design(family, alone, **settings)
    return as_run([epoch.costed_on(workload) for workload in run])


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
