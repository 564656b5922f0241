"""The group `mechanism`, and what a mechanism is fitted to."""

from dataclasses import dataclass
from enum import StrEnum

from experiments.settings.values import Choice, Option
from fedmf.setting import REQUIRED, setting


class WorkloadName(StrEnum):
    """What the mechanism is fitted to: the optimizer over the whole run, or one epoch alone.

    One epoch: of prefix sums, or of the optimizer's momentum.
    """

    run = "run"
    prefix_sum = "prefix_sum"
    momentum = "momentum"


_OWN = 'MODULE:FAMILY, a fedmf.mechanisms.Family of your own (docs/tutorial.md, "Your own mechanism")'


@dataclass(frozen=True)
class MechanismSettings(Choice):
    """The factorization family that correlates the noise."""

    name: str = setting(
        REQUIRED,
        _OWN,
    )


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
